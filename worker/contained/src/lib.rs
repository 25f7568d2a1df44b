//! Converts panics of third-party libraries on corrupted input into errors.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    /// Whether the thread executes work of [`contained`].
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Executes work on untrusted input, and converts a panic to an error. After a panic, the caller must not use state that the work has
/// changed.
///
/// # Errors
/// Returns the errors of the work, and `panic_error` after a panic.
pub fn contained<T>(work: impl FnOnce() -> Result<T, String>, panic_error: &str) -> Result<T, String> {
    let was_contained = CONTAINED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    CONTAINED.set(was_contained);
    result.unwrap_or_else(|_| Err(panic_error.to_owned()))
}

/// Whether [`contained`] converts a panic of the current thread to an error. The panic hook does not log these panics.
pub fn is_contained() -> bool {
    CONTAINED.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error() {
        assert_eq!(contained(|| Ok(1), "damaged"), Ok(1));
        assert_eq!(contained(|| Err::<u8, _>("short".to_owned()), "damaged"), Err("short".to_owned()));
        let panics = || -> Result<u8, String> {
            assert!(!is_contained(), "a panic in a library");
            Ok(1)
        };
        assert_eq!(contained(panics, "damaged"), Err("damaged".to_owned()));
        assert!(!is_contained(), "panics are contained only while the work runs");
        let within =
            contained(|| contained(panics, "inner").or(Ok(2)).map(|it| (it, is_contained())), "outer");
        assert_eq!(within, Ok((2, true)));
    }
}
