//! Hashes as hexadecimal text: of blocks of files, and of the contents of a graph.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

macro_rules! hash {
    ($(#[$doc:meta])* $name:ident, $number:ty, $digits:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(into = "String", try_from = "String")]
        pub struct $name(pub $number);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!("{:0", $digits, "x}"), self.0)
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let is_hash = text.len() == $digits
                    && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
                let number = <$number>::from_str_radix(text, 16).ok().filter(|_| is_hash);
                number.map(Self).ok_or_else(|| {
                    format!(concat!("invalid hash `{}`: expected ", $digits, " hexadecimal digits"), text)
                })
            }
        }

        impl From<$name> for String {
            fn from(hash: $name) -> Self {
                hash.to_string()
            }
        }

        impl TryFrom<String> for $name {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                text.parse()
            }
        }
    };
}

hash!(
    /// The xxh3 of a block of a file.
    BlockHash,
    u64,
    16
);
hash!(
    /// The first 128 bits of the SHA-256 of a topology or of a feature.
    GraphHash,
    u128,
    32
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_round_trip_as_text() {
        assert_eq!(BlockHash(0xab).to_string(), "00000000000000ab");
        assert_eq!("00000000000000ab".parse::<BlockHash>(), Ok(BlockHash(0xab)));
        let hash = GraphHash(u128::MAX / 3);
        assert_eq!(hash.to_string().parse::<GraphHash>(), Ok(hash));
        for wrong in ["", "ab", "00000000000000AB", "+0000000000000ab", "00000000000000abc"] {
            let error = wrong.parse::<BlockHash>().unwrap_err();
            assert!(error.ends_with("expected 16 hexadecimal digits"), "{error}");
        }
    }
}
