//! Durations in the report.

/// Formats a duration with a suitable unit; `-` if it is 0.
pub(super) fn format_seconds(seconds: f64) -> String {
    match seconds {
        0.0 => "-".to_owned(),
        s if s < 1e-6 => format!("{:.0} ns", s * 1e9),
        s if s < 1e-3 => format!("{:.1} us", s * 1e6),
        s if s < 1.0 => format!("{:.2} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}
