//! A length of time in pipeline files, such as `5m`.

use std::fmt;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// The units, from the longest to the shortest, with their lengths in milliseconds.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// A length of time in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Period(pub u64);

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = UNITS.iter().find(|(_, length)| self.0.is_multiple_of(*length));
        let (name, length) = unit.unwrap_or(&UNITS[UNITS.len() - 1]);
        write!(f, "{}{name}", self.0 / length)
    }
}

impl Serialize for Period {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Period {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PeriodVisitor;
        impl Visitor<'_> for PeriodVisitor {
            type Value = Period;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time with a unit, such as `30s`, `5m` or `1h`")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Period, E> {
                parse(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_str(PeriodVisitor)
    }
}

fn parse(text: &str) -> Option<Period> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let (_, length) = UNITS.iter().find(|(name, _)| *name == unit.trim_start())?;
    number.parse::<u64>().ok()?.checked_mul(*length).map(Period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_are_read_and_written_with_the_longest_unit() {
        for (text, milliseconds, written) in [
            ("5m", 300_000, "5m"),
            ("90 s", 90_000, "90s"),
            ("120s", 120_000, "2m"),
            ("24h", 86_400_000, "1d"),
            ("250ms", 250, "250ms"),
        ] {
            assert_eq!(parse(text), Some(Period(milliseconds)), "{text}");
            assert_eq!(Period(milliseconds).to_string(), written);
        }
        for text in
            ["", "5", "m", "5 minutes", "-5m", "1.5h", "99999999999999999999s", "18446744073709551615d"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
