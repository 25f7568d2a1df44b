//! The error of a request that a store denied, which names the identity and the missing right.

use std::fmt;

use crate::causes;

/// A request that a store denied.
#[derive(Debug)]
pub(crate) struct AccessDenied {
    sentence: String,
}

impl AccessDenied {
    pub(crate) fn new(sentence: String) -> Self {
        Self { sentence }
    }
}

impl fmt::Display for AccessDenied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl std::error::Error for AccessDenied {}

/// Finds the explanation of a denied request among the causes of an error.
pub(crate) fn find_access_denied<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> Option<&'a AccessDenied> {
    causes::find(error)
}
