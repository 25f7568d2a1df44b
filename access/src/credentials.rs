//! What a process shows to others: its certificate and its token.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::{Tls, TlsFiles, now_s, warn_if_exposed};

/// What a process shows to whom it connects; by default nothing, over connections that are not encrypted.
#[derive(Debug, Clone, Default)]
pub struct Credentials {
    /// Certificates for `https://` addresses; without, those of the system are trusted.
    pub tls: Option<Arc<Tls>>,
    /// The token.
    pub token: Option<Arc<Bearer>>,
}

impl Credentials {
    /// Certificates for an `https://` address.
    ///
    /// # Errors
    /// As [`Tls::load`].
    pub fn tls(&self) -> Result<Arc<Tls>, String> {
        match &self.tls {
            Some(tls) => Ok(Arc::clone(tls)),
            None => Tls::load(TlsFiles::default()).map(Arc::new),
        }
    }
}

/// A token that is shown with each request.
pub struct Bearer {
    source: Source,
    held: Mutex<Held>,
}

/// Where further tokens come from.
enum Source {
    /// There are none.
    Fixed,
    File(PathBuf),
    /// They are made, each a while after the last.
    Made(Box<dyn Fn() -> String + Send + Sync>, Duration),
}

struct Held {
    token: Arc<str>,
    /// Seconds since 1970, UTC.
    since_s: u64,
}

impl Held {
    fn new(token: Arc<str>) -> Mutex<Self> {
        Mutex::new(Self { token, since_s: now_s() })
    }
}

impl std::fmt::Debug for Bearer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Bearer(hidden)")
    }
}

impl Bearer {
    /// This token.
    pub fn fixed(token: &str) -> Self {
        Self { source: Source::Fixed, held: Held::new(token.trim().into()) }
    }

    /// Tokens that are made here, another one each time that the last is so old.
    pub fn made(every: Duration, make: impl Fn() -> String + Send + Sync + 'static) -> Self {
        let held = Held::new(make().into());
        Self { source: Source::Made(Box::new(make), every), held }
    }

    /// The token in a file.
    ///
    /// # Errors
    /// One sentence with the file and the fix; it does not show what the file says.
    pub fn load(file: PathBuf) -> Result<Self, String> {
        let token = read(&file)?;
        warn_if_exposed("a token", &file);
        Ok(Self { source: Source::File(file), held: Held::new(token) })
    }

    /// Reads the file again, where there is one.
    ///
    /// # Errors
    /// As [`Self::load`]; the token stays what it was.
    pub fn reload(&self) -> Result<bool, String> {
        let Source::File(file) = &self.source else { return Ok(false) };
        let token = read(file)?;
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let has_changed = held.token != token;
        held.token = token;
        drop(held);
        if has_changed {
            warn_if_exposed("a token", file);
        }
        Ok(has_changed)
    }

    /// The token.
    pub fn token(&self) -> Arc<str> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        // A clock that was set back must not keep a token until it has expired for everybody else.
        if let Source::Made(make, every) = &self.source
            && now_s().abs_diff(held.since_s) >= every.as_secs()
        {
            *held = Held { token: make().into(), since_s: now_s() };
        }
        Arc::clone(&held.token)
    }
}

fn read(file: &PathBuf) -> Result<Arc<str>, String> {
    let text = fs::read_to_string(file)
        .map_err(|error| format!("cannot read the token in {}: {error}", file.display()))?;
    let token = text.trim();
    let is_fit = !token.is_empty() && token.chars().all(|c| c.is_ascii_graphic());
    if !is_fit {
        return Err(format!(
            "{} has no token, which is one line of letters and digits; `feedline keys token` makes one",
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
    fn a_token_that_is_made_here_is_made_anew_when_it_is_old() {
        let counting = |every| {
            let made = AtomicU32::new(0);
            Bearer::made(every, move || made.fetch_add(1, Ordering::Relaxed).to_string())
        };
        let at_once = counting(Duration::ZERO);
        assert_eq!([at_once.token(), at_once.token()].map(|token| token.to_string()), ["1", "2"]);
        let later = counting(Duration::from_secs(3_600));
        assert_eq!([later.token(), later.token()].map(|token| token.to_string()), ["0", "0"]);
        assert_eq!(later.reload(), Ok(false));
        // As if the clock had been set back, and then as if an hour had gone by.
        for since_s in [now_s() + 7_200, now_s() - 3_600] {
            let before = later.token();
            later.held.lock().unwrap().since_s = since_s;
            assert_ne!(later.token(), before);
        }
    }

    #[test]
    fn a_token_is_read_again_when_its_file_changes() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        fs::write(&file, "one\n").unwrap();
        let bearer = Bearer::load(file.clone()).unwrap();
        assert_eq!(&*bearer.token(), "one");
        assert_eq!(bearer.reload(), Ok(false));
        fs::write(&file, "two").unwrap();
        assert_eq!(bearer.reload(), Ok(true));
        assert_eq!(&*bearer.token(), "two");
        fs::write(&file, "two lines\nof secrets").unwrap();
        let said = bearer.reload().unwrap_err();
        assert!(said.contains("has no token") && !said.contains("secrets"), "{said}");
        assert_eq!(&*bearer.token(), "two");
        assert_eq!(format!("{bearer:?}"), "Bearer(hidden)");
    }
}
