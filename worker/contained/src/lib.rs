//! Converts panics of third-party libraries on damaged input into errors.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    /// Whether the current call runs inside [`contained`].
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Runs work on untrusted input, and returns `error` if the work panics. After a panic, the caller must not use state that the
/// work has changed.
///
/// # Errors
/// The errors of the work, and `error` after a panic.
pub fn contained<T>(work: impl FnOnce() -> Result<T, String>, error: &str) -> Result<T, String> {
    let outer = CONTAINED.replace(true);
    let done = catch_unwind(AssertUnwindSafe(work));
    CONTAINED.set(outer);
    done.unwrap_or_else(|_| Err(error.to_owned()))
}

/// Whether a panic on this thread is converted into an error. The panic hook does not report such panics.
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
