//! Credentials of a process: its certificates and its token.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::{Tls, TlsFiles, now_s, warn_if_exposed};

/// Credentials for connections to other processes. The default has no credentials, for connections without encryption.
#[derive(Debug, Clone, Default)]
pub struct Credentials {
    /// Certificates for `https://` addresses; `None` trusts the system CA certificates.
    pub tls: Option<Arc<Tls>>,
    /// The token.
    pub token: Option<Arc<BearerToken>>,
}

impl Credentials {
    /// Returns the certificates for an `https://` address.
    ///
    /// # Errors
    /// Returns the errors of [`Tls::load`].
    pub fn tls(&self) -> Result<Arc<Tls>, String> {
        match &self.tls {
            Some(tls) => Ok(Arc::clone(tls)),
            None => Tls::load(TlsFiles::default()).map(Arc::new),
        }
    }
}

/// A token that a client sends with each request.
pub struct BearerToken {
    source: TokenSource,
    current: Mutex<CurrentToken>,
}

/// The source of new tokens.
enum TokenSource {
    /// The token never changes.
    Fixed,
    File(PathBuf),
    /// A function that generates tokens, and the age at which a token is replaced.
    Generated(Box<dyn Fn() -> String + Send + Sync>, Duration),
}

struct CurrentToken {
    token: Arc<str>,
    /// Creation time as a Unix timestamp in seconds.
    created_s: u64,
}

impl CurrentToken {
    fn new(token: Arc<str>) -> Mutex<Self> {
        Mutex::new(Self { token, created_s: now_s() })
    }
}

impl std::fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BearerToken(hidden)")
    }
}

impl BearerToken {
    /// Creates a token that never changes.
    pub fn fixed(token: &str) -> Self {
        Self { source: TokenSource::Fixed, current: CurrentToken::new(token.trim().into()) }
    }

    /// Creates a token from a function. When the token has reached the given age, the function creates a new token.
    pub fn generated(max_age: Duration, generate: impl Fn() -> String + Send + Sync + 'static) -> Self {
        let current = CurrentToken::new(generate().into());
        Self { source: TokenSource::Generated(Box::new(generate), max_age), current }
    }

    /// Reads the token from a file.
    ///
    /// # Errors
    /// Returns a message with the file and the fix, without the contents of the file.
    pub fn load(file: PathBuf) -> Result<Self, String> {
        let token = read_token(&file)?;
        warn_if_exposed("a token", &file);
        Ok(Self { source: TokenSource::File(file), current: CurrentToken::new(token) })
    }

    /// Reloads the token, if it was loaded from a file. Returns whether the token has changed.
    ///
    /// # Errors
    /// Returns the errors of [`Self::load`]. After an error, the previous token stays in use.
    pub fn reload(&self) -> Result<bool, String> {
        let TokenSource::File(file) = &self.source else { return Ok(false) };
        let token = read_token(file)?;
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let has_changed = current.token != token;
        current.token = token;
        drop(current);
        if has_changed {
            warn_if_exposed("a token", file);
        }
        Ok(has_changed)
    }

    /// Returns the current token.
    pub fn token(&self) -> Arc<str> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        // The absolute difference also covers a clock that was set back: servers must not receive an expired token.
        if let TokenSource::Generated(generate, max_age) = &self.source
            && now_s().abs_diff(current.created_s) >= max_age.as_secs()
        {
            *current = CurrentToken { token: generate().into(), created_s: now_s() };
        }
        Arc::clone(&current.token)
    }
}

fn read_token(file: &PathBuf) -> Result<Arc<str>, String> {
    let text = fs::read_to_string(file)
        .map_err(|error| format!("cannot read the token in {}: {error}", file.display()))?;
    let token = text.trim();
    let is_valid = !token.is_empty() && token.chars().all(|c| c.is_ascii_graphic());
    if !is_valid {
        return Err(format!(
            "{} contains no valid token: expected one line of letters and digits; create a token with `feedline keys token`",
            file.display()
        ));
    }
    Ok(token.into())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn a_generated_token_is_replaced_at_its_maximum_age() {
        let counting = |max_age| {
            let count = AtomicU32::new(0);
            BearerToken::generated(max_age, move || count.fetch_add(1, Ordering::Relaxed).to_string())
        };
        let at_once = counting(Duration::ZERO);
        assert_eq!([at_once.token(), at_once.token()].map(|token| token.to_string()), ["1", "2"]);
        let later = counting(Duration::from_secs(3_600));
        assert_eq!([later.token(), later.token()].map(|token| token.to_string()), ["0", "0"]);
        assert_eq!(later.reload(), Ok(false));
        // A clock that was set back, and a token of one hour.
        for created_s in [now_s() + 7_200, now_s() - 3_600] {
            let before = later.token();
            later.current.lock().unwrap().created_s = created_s;
            assert_ne!(later.token(), before);
        }
    }

    /// Secrets of Kubernetes have no line end, so that Prometheus can use them. Editors and shells write one.
    #[test]
    fn a_token_file_may_end_with_a_line_end() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        for (before, after) in [("one", "two\n"), ("one\n", "two"), ("one\r\n", "two\r\n")] {
            fs::write(&file, before).unwrap();
            let bearer = BearerToken::load(file.clone()).unwrap();
            assert_eq!(&*bearer.token(), "one");
            fs::write(&file, after).unwrap();
            assert_eq!(bearer.reload(), Ok(true));
            assert_eq!(&*bearer.token(), "two");
        }
        fs::write(&file, "two").unwrap();
        let bearer = BearerToken::load(file.clone()).unwrap();
        fs::write(&file, "two\n").unwrap();
        assert_eq!(bearer.reload(), Ok(false), "a line end does not change the token");
    }

    #[test]
    fn a_changed_token_file_is_reloaded() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        fs::write(&file, "one\n").unwrap();
        let bearer = BearerToken::load(file.clone()).unwrap();
        assert_eq!(&*bearer.token(), "one");
        assert_eq!(bearer.reload(), Ok(false));
        fs::write(&file, "two").unwrap();
        assert_eq!(bearer.reload(), Ok(true));
        assert_eq!(&*bearer.token(), "two");
        fs::write(&file, "two lines\nof secrets").unwrap();
        let error = bearer.reload().unwrap_err();
        assert!(error.contains("contains no valid token") && !error.contains("secrets"), "{error}");
        assert_eq!(&*bearer.token(), "two");
        assert_eq!(format!("{bearer:?}"), "BearerToken(hidden)");
    }
}
