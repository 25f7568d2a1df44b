//! What a process shows to others: its certificate and its token.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use crate::{Tls, TlsFiles};

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
    file: Option<PathBuf>,
    token: Mutex<Arc<str>>,
}

impl std::fmt::Debug for Bearer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Bearer(hidden)")
    }
}

impl Bearer {
    /// This token.
    pub fn fixed(token: &str) -> Self {
        Self { file: None, token: Mutex::new(token.trim().into()) }
    }

    /// The token in a file.
    ///
    /// # Errors
    /// One sentence with the file and the fix; it does not show what the file says.
    pub fn load(file: PathBuf) -> Result<Self, String> {
        let token = read(&file)?;
        Ok(Self { file: Some(file), token: Mutex::new(token) })
    }

    /// Reads the file again, where there is one.
    ///
    /// # Errors
    /// As [`Self::load`]; the token stays what it was.
    pub fn reload(&self) -> Result<bool, String> {
        let Some(file) = &self.file else { return Ok(false) };
        let token = read(file)?;
        let mut held = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        let has_changed = *held != token;
        *held = token;
        Ok(has_changed)
    }

    /// The token.
    pub fn token(&self) -> Arc<str> {
        Arc::clone(&self.token.lock().unwrap_or_else(PoisonError::into_inner))
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
    use super::*;

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
