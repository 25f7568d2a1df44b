//! Measurements of the current process that the operating system provides.

use std::fs;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum age of a cached peak. Reading the peak takes longer than the rest of a worker's report.
const PEAK_MAX_AGE: Duration = Duration::from_millis(50);

/// Returns the peak resident set size of this process in bytes, at most 50 ms old; 0 where the system does not report it.
pub fn peak_rss_bytes() -> u64 {
    static CACHED_PEAK: Mutex<Option<(Instant, u64)>> = Mutex::new(None);
    let mut last = CACHED_PEAK.lock().unwrap_or_else(PoisonError::into_inner);
    match *last {
        Some((read_at, bytes)) if read_at.elapsed() < PEAK_MAX_AGE => bytes,
        _ => {
            let bytes = status_bytes("VmHWM:");
            *last = Some((Instant::now(), bytes));
            bytes
        }
    }
}

/// Returns the resident set size of this process in bytes; 0 where the system does not report it.
pub fn rss_bytes() -> u64 {
    status_bytes("VmRSS:")
}

/// Reads one size from `/proc/self/status`, which lists sizes in KiB.
fn status_bytes(field: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let value = status.lines().find_map(|line| line.strip_prefix(field));
    let kib: Option<u64> = value.and_then(|value| value.split_whitespace().next()?.parse().ok());
    kib.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_at_least_the_current_size() {
        let rss = rss_bytes();
        assert!(rss > 1 << 16, "{rss}");
        assert!(peak_rss_bytes() >= rss);
        assert_eq!(status_bytes("NoSuchField:"), 0);
    }
}
