//! Reloads certificates, the token and the cluster's secret while a process runs. The files are polled, because Kubernetes
//! replaces mounted files through links, and network file systems report no changes.

use std::sync::Arc;
use std::time::Duration;

use feedline_access::{ClusterSecret, Credentials};
use tokio::task::JoinHandle;

/// Interval between reloads.
const RELOAD_INTERVAL: Duration = Duration::from_secs(5);

/// A task that reloads files until this value is dropped.
#[derive(Debug)]
pub(crate) struct ReloadTask(JoinHandle<()>);

impl Drop for ReloadTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Credentials that are reloaded until this value is dropped.
#[derive(Debug)]
pub(crate) struct ReloadedCredentials {
    /// The credentials.
    pub(crate) credentials: Credentials,
    _tasks: Vec<ReloadTask>,
}

impl ReloadedCredentials {
    /// Reloads the files of these credentials. Must be called inside a tokio runtime.
    pub(crate) fn new(credentials: Credentials) -> Self {
        let tls = credentials
            .tls
            .clone()
            .map(|tls| reload_periodically("certificates", "new connections use them", move || tls.reload()));
        let token = credentials
            .token
            .clone()
            .map(|token| reload_periodically("token", "new requests use it", move || token.reload()));
        Self { credentials, _tasks: tls.into_iter().chain(token).collect() }
    }
}

/// Reloads the cluster's secret. Must be called inside a tokio runtime.
pub(crate) fn reload_secret(secret: Arc<ClusterSecret>) -> ReloadTask {
    let effect = "its signatures are valid, and tokens of the previous secret stay valid until they expire";
    reload_periodically("secret", effect, move || secret.reload())
}

/// Calls `reload` periodically, and logs each change and each new error once. `effect` describes a change.
fn reload_periodically(
    files: &'static str,
    effect: &'static str,
    reload: impl Fn() -> Result<bool, String> + Send + Sync + 'static,
) -> ReloadTask {
    let reload = Arc::new(reload);
    ReloadTask(tokio::spawn(async move {
        let mut interval = tokio::time::interval(RELOAD_INTERVAL);
        let mut reported = ReportedError::default();
        loop {
            interval.tick().await;
            let reload = Arc::clone(&reload);
            let Ok(result) = tokio::task::spawn_blocking(move || (*reload)()).await else { continue };
            let is_new_error = reported.is_new(result.as_ref().err());
            match result {
                Ok(true) => tracing::info!("the {files} changed; {effect}"),
                Err(reason) if is_new_error => tracing::warn!(
                    reason,
                    "the {files} changed but cannot be loaded; this process keeps using the previous {files}"
                ),
                Ok(false) | Err(_) => {}
            }
        }
    }))
}

/// The last error of a reload, which is logged once.
#[derive(Debug, Default)]
struct ReportedError(Option<String>);

impl ReportedError {
    /// Records the error of a reload, if any. Returns whether it must be logged.
    fn is_new(&mut self, error: Option<&String>) -> bool {
        let is_new = error.is_some() && self.0.as_ref() != error;
        self.0 = error.cloned();
        is_new
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use feedline_access::{BearerToken, Secret};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn files_are_reloaded_within_a_minute_until_the_task_is_dropped() {
        let count = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&count);
        let task = reload_periodically("files", "they changed", move || {
            counted.fetch_add(1, Ordering::Relaxed);
            Err("the file is missing".to_owned())
        });
        tokio::time::sleep(Duration::from_secs(60)).await;
        let reloads = count.load(Ordering::Relaxed);
        assert!((6..=13).contains(&reloads), "{reloads}");
        drop(task);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(count.load(Ordering::Relaxed) <= reloads + 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_replaced_token_and_secret_are_in_use_within_a_minute() {
        let folder = tempfile::tempdir().unwrap();
        let [token_file, secret_file] = ["token", "secret"].map(|name| folder.path().join(name));
        let [old, new] = [0, 1].map(|_| Secret::new().unwrap());
        std::fs::write(&token_file, "one").unwrap();
        std::fs::write(&secret_file, old.text()).unwrap();
        let token = Arc::new(BearerToken::load(token_file.clone()).unwrap());
        let secret = Arc::new(ClusterSecret::load(secret_file.clone()).unwrap());
        let _token = ReloadedCredentials::new(Credentials { tls: None, token: Some(Arc::clone(&token)) });
        let _secret = reload_secret(Arc::clone(&secret));
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(secret.fingerprint(), old.fingerprint());
        std::fs::write(&token_file, "two").unwrap();
        std::fs::write(&secret_file, new.text()).unwrap();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!((&*token.token(), secret.fingerprint()), ("two", new.fingerprint()));
    }

    #[test]
    fn an_error_is_logged_once_until_it_changes_or_the_files_are_valid_again() {
        let mut reported = ReportedError::default();
        let [missing, invalid] = ["missing", "invalid"].map(str::to_owned);
        let results = [None, Some(&missing), Some(&missing), Some(&invalid), None, Some(&invalid)];
        let logged = results.map(|error| reported.is_new(error));
        assert_eq!(logged, [false, true, false, true, false, true]);
    }
}
