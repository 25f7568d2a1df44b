//! The expiry of tokens: a duration, or never.

use std::fmt;
use std::time::Duration;

use feedline_access::now_s;

use crate::size::parse_duration;

/// Expiry of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expiry {
    /// Valid for this time.
    After(Duration),
    /// Valid until the secret of the cluster is replaced.
    Never,
}

impl Expiry {
    /// Returns the expiry time as a Unix timestamp in seconds.
    pub(crate) fn expires_s(self) -> Option<u64> {
        match self {
            Self::After(time) => Some(now_s().saturating_add(time.as_secs())),
            Self::Never => None,
        }
    }

    /// Returns the validity in seconds; `None` for [`Self::Never`].
    pub(crate) fn lifetime_s(self) -> Option<u64> {
        match self {
            Self::After(time) => Some(time.as_secs()),
            Self::Never => None,
        }
    }
}

impl fmt::Display for Expiry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::After(time) if time.as_secs() > 0 && time.as_secs().is_multiple_of(86_400) => {
                write!(f, "valid for {} days", time.as_secs() / 86_400)
            }
            Self::After(time) => write!(f, "valid for {} s", time.as_secs()),
            Self::Never => f.write_str(
                "valid FOREVER: it can only be revoked by replacing the cluster secret, so keep it safe",
            ),
        }
    }
}

/// Parses a duration such as `90d`, or `never`.
pub(crate) fn parse_expiry(text: &str) -> Result<Expiry, String> {
    if text.trim() == "never" {
        return Ok(Expiry::Never);
    }
    parse_duration(text).map(Expiry::After).map_err(|error| format!("{error}, or never"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expiry_is_a_duration_or_never() {
        for (text, expiry, shown) in [
            ("365d", Expiry::After(Duration::from_secs(365 * 86_400)), "valid for 365 days"),
            ("90 m", Expiry::After(Duration::from_secs(5_400)), "valid for 5400 s"),
            ("never", Expiry::Never, "valid FOREVER"),
        ] {
            assert_eq!(parse_expiry(text), Ok(expiry));
            assert!(expiry.to_string().starts_with(shown), "{expiry}");
        }
        assert!(parse_expiry("always").unwrap_err().ends_with("such as 10s, or never"));
        assert_eq!(Expiry::Never.expires_s(), None);
        assert!(Expiry::After(Duration::from_secs(60)).expires_s().is_some_and(|time| time > now_s()));
    }
}
