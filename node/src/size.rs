//! Sizes in bytes and durations as people write them on a command line, and as they are shown to people.

use std::time::Duration;

/// Units of a size; the empty one is bytes.
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

/// Reads a size such as `512MiB`, `2GB`, `1.5 GiB` or a plain number of bytes.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let refused = || {
        format!(
            "invalid size `{text}`: expected a number with a unit (KB, MB, GB, TB, KiB, MiB, GiB, TiB), such as 4GiB"
        )
    };
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    let unit = unit.trim();
    let number: f64 = number.parse().map_err(|_| refused())?;
    let known = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit));
    let bytes = number * known.ok_or_else(refused)?.1 as f64;
    if !(1.0..=i64::MAX as f64).contains(&bytes) {
        return Err(refused());
    }
    Ok(bytes as u64)
}

/// Reads bytes per second such as `1.25GB`; 0 where none is known.
pub(crate) fn parse_bandwidth(text: &str) -> Result<u64, String> {
    if text.trim() == "0" { Ok(0) } else { parse_bytes(text) }
}

/// Reads a duration such as `10s`, `500ms`, `2m`, `30d` or a plain number of seconds.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let refused =
        || format!("invalid duration `{text}`: expected a number with a unit (ms, s, m, h, d), such as 10s");
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    let number: f64 = number.parse().map_err(|_| refused())?;
    let seconds = match unit.trim() {
        "ms" => number / 1e3,
        "" | "s" => number,
        "m" | "min" => number * 60.0,
        "h" => number * 3_600.0,
        "d" => number * 86_400.0,
        _ => return Err(refused()),
    };
    Duration::try_from_secs_f64(seconds).map_err(|_| refused())
}

/// A size for people, in decimal units: `24.1 MB`.
pub(crate) fn show_bytes(bytes: f64) -> String {
    let units = [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    match units.iter().find(|(scale, _)| bytes >= *scale) {
        Some((scale, unit)) => format!("{:.1} {unit}", bytes / scale),
        None => format!("{bytes:.0} B"),
    }
}

/// A rate for people: a decimal where it is small.
pub(crate) fn show_rate(per_s: f64) -> String {
    if per_s < 100.0 { format!("{per_s:.1}") } else { format!("{per_s:.0}") }
}

/// A count with its noun: `1 epoch`, `2 epochs`, `2 batches`.
pub(crate) fn show_count(count: u64, noun: &str) -> String {
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
    fn reads_sizes() {
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
    fn reads_durations() {
        assert_eq!(parse_duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(parse_duration("500 ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("0"), Ok(Duration::ZERO));
        for wrong in ["", "s", "10 years", "-1s"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn shows_counts() {
        let shown = [(1, "batch"), (2, "batch"), (1, "epoch"), (0, "epoch"), (3, "row")];
        let shown = shown.map(|(count, noun)| show_count(count, noun));
        assert_eq!(shown, ["1 batch", "2 batches", "1 epoch", "0 epochs", "3 rows"]);
    }

    #[test]
    fn shows_sizes() {
        assert_eq!(show_bytes(999.0), "999 B");
        assert_eq!(show_bytes(60_211_200.0), "60.2 MB");
        assert_eq!(show_bytes(2.5e12), "2.5 TB");
    }
}
