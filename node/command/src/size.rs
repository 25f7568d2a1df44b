//! Parses and formats sizes in bytes, durations, rates and counts.

use std::time::Duration;

/// Units of sizes, with their number of bytes. A size without a unit is in bytes.
const UNITS: [(&str, u64); 10] = [
    ("", 1),
    ("B", 1),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

/// Parses a size such as `512MiB`, `2GB`, `1.5 GiB` or a plain number of bytes.
///
/// # Errors
/// Returns a message that names the units.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let invalid = || {
        format!(
            "invalid size `{text}`: expected a number with a unit (KB, MB, GB, TB, KiB, MiB, GiB, TiB), such as 4GiB"
        )
    };
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    let unit = unit.trim();
    let number: f64 = number.parse().map_err(|_| invalid())?;
    let known = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit));
    let bytes = number * known.ok_or_else(invalid)?.1 as f64;
    if !(1.0..=i64::MAX as f64).contains(&bytes) {
        return Err(invalid());
    }
    Ok(bytes as u64)
}

/// Parses bytes per second such as `1.25GB`. 0 means that the bandwidth is unknown.
///
/// # Errors
/// Returns a message that names the units.
pub fn parse_bandwidth(text: &str) -> Result<u64, String> {
    if text.trim() == "0" { Ok(0) } else { parse_bytes(text) }
}

/// Parses a duration such as `10s`, `500ms`, `2m`, `30d` or a plain number of seconds.
///
/// # Errors
/// Returns a message that names the units.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let invalid =
        || format!("invalid duration `{text}`: expected a number with a unit (ms, s, m, h, d), such as 10s");
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    let number: f64 = number.parse().map_err(|_| invalid())?;
    let seconds = match unit.trim() {
        "ms" => number / 1e3,
        "" | "s" => number,
        "m" | "min" => number * 60.0,
        "h" => number * 3_600.0,
        "d" => number * 86_400.0,
        _ => return Err(invalid()),
    };
    Duration::try_from_secs_f64(seconds).map_err(|_| invalid())
}

/// Formats a size in decimal units: `24.1 MB`.
pub fn format_bytes(bytes: f64) -> String {
    let units = [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    match units.iter().find(|(scale, _)| bytes >= *scale) {
        Some((scale, unit)) => format!("{:.1} {unit}", bytes / scale),
        None => format!("{bytes:.0} B"),
    }
}

/// Formats a rate, with one decimal below 100.
pub fn format_rate(per_s: f64) -> String {
    if per_s < 100.0 { format!("{per_s:.1}") } else { format!("{per_s:.0}") }
}

/// Formats a count with a noun in the singular or plural: `1 epoch`, `2 epochs`, `2 batches`.
pub fn format_count(count: u64, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        _ if noun.ends_with("ch") && noun != "epoch" => format!("{count} {noun}es"),
        _ => format!("{count} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_bytes_accepts_units_and_rejects_other_text() {
        assert_eq!(parse_bytes("4GiB"), Ok(4 << 30));
        assert_eq!(parse_bytes("512MiB"), Ok(512 << 20));
        assert_eq!(parse_bytes("2GB"), Ok(2_000_000_000));
        assert_eq!(parse_bytes("1.5 kib"), Ok(1536));
        assert_eq!(parse_bytes("12345"), Ok(12345));
        for wrong in ["", "GiB", "4 apples", "-1GB", "0", "1e30", "nan", "99999999999TB", "1.2.3"] {
            assert!(parse_bytes(wrong).is_err_and(|error| error.contains("such as 4GiB")), "{wrong}");
        }
    }

    #[test]
    fn parse_duration_accepts_units_and_rejects_other_text() {
        assert_eq!(parse_duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(parse_duration("500 ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("0"), Ok(Duration::ZERO));
        for wrong in ["", "s", "10 years", "-1s"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn format_count_adds_the_plural() {
        let shown = [(1, "batch"), (2, "batch"), (1, "epoch"), (0, "epoch"), (3, "row")];
        let shown = shown.map(|(count, noun)| format_count(count, noun));
        assert_eq!(shown, ["1 batch", "2 batches", "1 epoch", "0 epochs", "3 rows"]);
    }

    #[test]
    fn format_bytes_selects_a_unit() {
        assert_eq!(format_bytes(999.0), "999 B");
        assert_eq!(format_bytes(60_211_200.0), "60.2 MB");
        assert_eq!(format_bytes(2.5e12), "2.5 TB");
    }
}
