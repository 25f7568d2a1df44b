//! Formats numbers with units for explanations.

/// Numbers whose absolute value is smaller are formatted as 0.
const MIN_DISPLAYED: f64 = 1e-9;

/// Formats a number with three significant digits, such as `12`, `3.4` or `0.056`. Numbers above 100 are rounded to whole
/// numbers.
pub(crate) fn format_number(value: f64) -> String {
    if !value.is_finite() {
        return "any number of".into();
    }
    if value.abs() < MIN_DISPLAYED {
        return "0".into();
    }
    let digits = match value.abs() {
        large if large >= 100.0 => 0,
        medium if medium >= 10.0 => 1,
        small if small >= 1.0 => 2,
        tiny => (2.0 - tiny.log10().floor()) as usize,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Formats a size in decimal units, such as `1.5 GB`.
pub(crate) fn format_bytes(value: f64) -> String {
    let units = ["TB", "GB", "MB", "kB"];
    for (power, unit) in units.iter().enumerate() {
        let size = 1000f64.powi(4 - power as i32);
        if value >= size {
            return format!("{} {unit}", format_number(value / size));
        }
    }
    format!("{} B", format_number(value))
}

/// Formats a duration, such as `3.2 ms`, `410 us` or `1.5 s`.
pub(crate) fn format_seconds(value: f64) -> String {
    if value >= 1.0 {
        format!("{} s", format_number(value))
    } else if value >= 1e-3 {
        format!("{} ms", format_number(value * 1e3))
    } else {
        format!("{} us", format_number(value * 1e6))
    }
}

/// Formats a count with a noun in the singular or plural, such as `1 core` or `2 cores`.
pub(crate) fn format_count(value: f64, noun: &str) -> String {
    let plural = if (value - 1.0).abs() < 1e-9 { "" } else { "s" };
    format!("{} {noun}{plural}", format_number(value))
}

#[cfg(test)]
mod tests {
    use super::format_number;

    #[test]
    fn numbers_have_three_significant_digits() {
        let shown = [12345.6, 100.0, 12.34, 1.0, 0.5, 0.0561, 0.001234, 1e-12, -0.0, -2.5].map(format_number);
        assert_eq!(shown, ["12346", "100", "12.3", "1", "0.5", "0.0561", "0.00123", "0", "0", "-2.5"]);
    }
}
