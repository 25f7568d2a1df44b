//! Libraries that panic on damaged input: what they were asked for fails, and nothing else does.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Does work on input that nobody vouches for. A panic in it counts as `error`, one clause; what the work changes outside
/// itself must not be used after that.
///
/// # Errors
/// Those of the work, and `error`.
pub fn contained<T>(work: impl FnOnce() -> Result<T, String>, error: &str) -> Result<T, String> {
    let outer = CONTAINED.replace(true);
    let done = catch_unwind(AssertUnwindSafe(work));
    CONTAINED.set(outer);
    done.unwrap_or_else(|_| Err(error.to_owned()))
}

/// Whether a panic of this thread is contained, so that it is no defect to report.
pub fn is_contained() -> bool {
    CONTAINED.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_of_the_work_alone() {
        assert_eq!(contained(|| Ok(1), "damaged"), Ok(1));
        assert_eq!(contained(|| Err::<u8, _>("short".to_owned()), "damaged"), Err("short".to_owned()));
        let panics = || -> Result<u8, String> {
            assert!(!is_contained(), "a library's mistake");
            Ok(1)
        };
        assert_eq!(contained(panics, "damaged"), Err("damaged".to_owned()));
        assert!(!is_contained(), "only for as long as the work lasts");
        let within =
            contained(|| contained(panics, "inner").or(Ok(2)).map(|it| (it, is_contained())), "outer");
        assert_eq!(within, Ok((2, true)));
    }
}
