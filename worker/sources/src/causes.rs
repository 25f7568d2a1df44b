//! The causes of an error: their types and their messages.

use std::error::Error;
use std::iter::successors;

/// An error and its causes, from the outermost to the innermost.
pub(crate) fn chain<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> + 'a {
    successors(Some(error), |&error| error.source())
}

/// Finds the outermost error of a type.
pub(crate) fn find<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    chain(error).find_map(|error| error.downcast_ref())
}

/// Joins the messages of an error and its causes, without those that an earlier message contains.
pub(crate) fn describe(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    for message in chain(error).map(ToString::to_string) {
        if text.is_empty() {
            text = message;
        } else if !text.contains(&message) {
            text.push_str(": ");
            text.push_str(&message);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{message}")]
    struct Outer {
        message: &'static str,
        source: std::num::ParseIntError,
    }

    #[test]
    fn causes_are_found_and_described_once() {
        let source = "x".parse::<u32>().unwrap_err();
        let error = Outer { message: "no number", source: source.clone() };
        assert_eq!(describe(&error), format!("no number: {source}"));
        assert_eq!(find::<std::num::ParseIntError>(&error), Some(&source));
        assert!(find::<std::io::Error>(&error).is_none());
        let error = Outer { message: "invalid digit found in string", source };
        assert_eq!(describe(&error), "invalid digit found in string");
    }
}
