//! The hashes of shard files in `index.json`. Every algorithm of MosaicML Streaming is supported.

use std::collections::BTreeMap;

use sha1::digest::DynDigest;
use xxhash_rust::xxh3::Xxh3;
use xxhash_rust::xxh32::Xxh32;
use xxhash_rust::xxh64::Xxh64;

/// Computes the hashes of one file. Ignores algorithms that Feedline does not support.
pub(super) struct FileHashes<'a> {
    hashes: Vec<(&'a str, &'a str, Hasher)>,
}

enum Hasher {
    Digest(Box<dyn DynDigest + Send>),
    Xxh32(Xxh32),
    Xxh64(Xxh64),
    Xxh3(Box<Xxh3>),
    Xxh128(Box<Xxh3>),
}

impl<'a> FileHashes<'a> {
    /// `expected` maps the names of algorithms to hexadecimal hashes.
    pub(super) fn new(expected: &'a BTreeMap<String, String>) -> Self {
        let hashes = expected
            .iter()
            .filter_map(|(name, hash)| Some((name.as_str(), hash.as_str(), Hasher::new(name)?)))
            .collect();
        Self { hashes }
    }

    /// Returns the algorithms of `expected` that Feedline does not support.
    pub(super) fn unsupported(expected: &BTreeMap<String, String>) -> impl Iterator<Item = &str> {
        expected.keys().map(String::as_str).filter(|name| Hasher::new(name).is_none())
    }

    /// Whether the file has no hash of a supported algorithm.
    pub(super) fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// Adds the next part of the file.
    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.hashes.iter_mut().for_each(|(_, _, hasher)| hasher.update(bytes));
    }

    /// Compares the hashes of the file with the expected hashes.
    pub(super) fn verify(self) -> Result<(), String> {
        for (name, expected, hasher) in self.hashes {
            if !hasher.finish().eq_ignore_ascii_case(expected) {
                return Err(format!(
                    "the {name} hash of the file differs from `index.json`: copy the file again, or write the dataset again"
                ));
            }
        }
        Ok(())
    }

    /// Compares the hashes of a file in memory with the expected hashes.
    pub(super) fn verify_all(mut self, file: &[u8]) -> Result<(), String> {
        self.update(file);
        self.verify()
    }
}

impl Hasher {
    fn new(name: &str) -> Option<Self> {
        Some(match name {
            "blake2b" => Self::Digest(Box::<blake2::Blake2b512>::default()),
            "blake2s" => Self::Digest(Box::<blake2::Blake2s256>::default()),
            "md5" => Self::Digest(Box::<md5::Md5>::default()),
            "sha1" => Self::Digest(Box::<sha1::Sha1>::default()),
            "sha224" => Self::Digest(Box::<sha2::Sha224>::default()),
            "sha256" => Self::Digest(Box::<sha2::Sha256>::default()),
            "sha384" => Self::Digest(Box::<sha2::Sha384>::default()),
            "sha512" => Self::Digest(Box::<sha2::Sha512>::default()),
            "sha3_224" => Self::Digest(Box::<sha3::Sha3_224>::default()),
            "sha3_256" => Self::Digest(Box::<sha3::Sha3_256>::default()),
            "sha3_384" => Self::Digest(Box::<sha3::Sha3_384>::default()),
            "sha3_512" => Self::Digest(Box::<sha3::Sha3_512>::default()),
            "xxh32" => Self::Xxh32(Xxh32::new(0)),
            "xxh64" => Self::Xxh64(Xxh64::new(0)),
            "xxh3_64" => Self::Xxh3(Box::new(Xxh3::new())),
            "xxh128" | "xxh3_128" => Self::Xxh128(Box::new(Xxh3::new())),
            _ => return None,
        })
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Digest(hasher) => hasher.update(bytes),
            Self::Xxh32(hasher) => hasher.update(bytes),
            Self::Xxh64(hasher) => hasher.update(bytes),
            Self::Xxh3(hasher) | Self::Xxh128(hasher) => hasher.update(bytes),
        }
    }

    /// Returns the hash in hexadecimal digits.
    fn finish(self) -> String {
        match self {
            Self::Digest(hasher) => hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect(),
            Self::Xxh32(hasher) => format!("{:08x}", hasher.digest()),
            Self::Xxh64(hasher) => format!("{:016x}", hasher.digest()),
            Self::Xxh3(hasher) => format!("{:016x}", hasher.digest()),
            Self::Xxh128(hasher) => format!("{:032x}", hasher.digest128()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::testing::testdata;

    #[test]
    fn each_algorithm_verifies_a_file_of_the_library_on_its_own() {
        let index = std::fs::read(testdata("mds/br/index.json")).unwrap();
        let index: Value = serde_json::from_slice(&index).unwrap();
        let hashes = index["shards"][0]["zip_data"]["hashes"].clone();
        let hashes: BTreeMap<String, String> = serde_json::from_value(hashes).unwrap();
        assert_eq!(hashes.len(), 17);
        let file = std::fs::read(testdata("mds/br/shard.00000.mds.br")).unwrap();
        let mut damaged = file.clone();
        damaged[200] ^= 1;
        for (name, hash) in hashes {
            let expected = BTreeMap::from([(name.clone(), hash)]);
            let mut parts = FileHashes::new(&expected);
            file.chunks(100).for_each(|part| parts.update(part));
            assert_eq!(parts.verify(), Ok(()), "{name}");
            let error = FileHashes::new(&expected).verify_all(&damaged).unwrap_err();
            assert!(error.contains(&format!("the {name} hash of the file differs")), "{error}");
        }
    }
}
