//! A point in time in pipeline files, in the form of RFC 3339 or as milliseconds since 1970.

use std::fmt;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize};

/// Milliseconds since 1970-01-01T00:00:00Z.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Timestamp(pub u64);

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TimeVisitor;
        impl Visitor<'_> for TimeVisitor {
            type Value = Timestamp;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time such as `2026-11-27T08:00:00Z`, or milliseconds since 1970")
            }

            fn visit_u64<E: de::Error>(self, milliseconds: u64) -> Result<Timestamp, E> {
                Ok(Timestamp(milliseconds))
            }

            fn visit_i64<E: de::Error>(self, milliseconds: i64) -> Result<Timestamp, E> {
                let unsigned = u64::try_from(milliseconds);
                unsigned
                    .map(Timestamp)
                    .map_err(|_| E::invalid_value(de::Unexpected::Signed(milliseconds), &self))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Timestamp, E> {
                parse(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_any(TimeVisitor)
    }
}

/// Parses `2026-11-27T08:00:00Z`, with an optional fraction, and with an offset such as `+02:00` instead of `Z`.
fn parse(text: &str) -> Option<Timestamp> {
    let number = |range: std::ops::Range<usize>| -> Option<i64> {
        let digits = text.get(range)?;
        digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
    };
    let separators = [(4, "-"), (7, "-"), (13, ":"), (16, ":")];
    let has_separators = separators.into_iter().all(|(at, text_at)| text.get(at..at + 1) == Some(text_at));
    if !has_separators || !matches!(text.get(10..11), Some("T" | "t" | " ")) {
        return None;
    }
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let (milliseconds, zone) = fraction(text.get(19..)?)?;
    let minutes_east = offset_minutes(zone)?;
    let seconds = days_since_1970(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second;
    u64::try_from((seconds - minutes_east * 60) * 1_000 + milliseconds).ok().map(Timestamp)
}

/// Splits an optional fraction of a second from the time zone. Returns milliseconds.
fn fraction(rest: &str) -> Option<(i64, &str)> {
    let Some(digits) = rest.strip_prefix('.') else { return Some((0, rest)) };
    let length = digits.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, zone) = digits.split_at(length);
    let padded = format!("{:0<3}", digits.get(..3).unwrap_or(digits));
    (length > 0).then(|| Some((padded.parse().ok()?, zone)))?
}

fn offset_minutes(zone: &str) -> Option<i64> {
    if matches!(zone, "Z" | "z") {
        return Some(0);
    }
    let sign = match zone.get(..1)? {
        "+" => 1,
        "-" => -1,
        _ => return None,
    };
    let (hours, minutes) = zone[1..].split_once(':')?;
    let is_pair = |digits: &str| digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_pair(hours) || !is_pair(minutes) {
        return None;
    }
    let (hours, minutes): (i64, i64) = (hours.parse().ok()?, minutes.parse().ok()?);
    (hours < 24 && minutes < 60).then_some(sign * (hours * 60 + minutes))
}

/// Days from 1970-01-01 to a date of the Gregorian calendar. The year begins in March, so that the leap day is its last day.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    fn milliseconds(text: &str) -> Option<u64> {
        parse(text).map(|time| time.0)
    }

    #[test]
    fn times_are_parsed() {
        assert_eq!(milliseconds("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(milliseconds("2026-11-27T08:00:00Z"), Some(1_795_766_400_000));
        assert_eq!(milliseconds("2026-11-27T10:00:00.5+02:00"), Some(1_795_766_400_500));
        assert_eq!(milliseconds("2024-02-29 23:59:59.123456-00:30"), Some(1_709_252_999_123));
        assert_eq!(milliseconds("2000-03-01T00:00:00z"), Some(951_868_800_000));
    }

    #[test]
    fn other_text_is_rejected() {
        for text in [
            "",
            "now",
            "2026-11-27",
            "2026-11-27T08:00:00",
            "2026-13-27T08:00:00Z",
            "2026-11-27T08:00:00+2",
            "2026-11-27T08:00:00.Z",
            "1969-12-31T00:00:00Z",
            "2026-11-27T08:0é:00Z",
            "2026-11-27T24:00:00Z",
        ] {
            assert_eq!(milliseconds(text), None, "{text}");
        }
    }
}
