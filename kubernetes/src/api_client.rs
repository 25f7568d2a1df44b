//! Connects to the API server of Kubernetes.

use std::error::Error;
use std::time::Duration;

use kube::{Client, Config};

/// Maximum time to connect to the API server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Creates a client for the API server that a kubeconfig names, or for the cluster of this pod. `KUBECONFIG` names the
/// kubeconfig; the default is `~/.kube/config`. Must be called inside a tokio runtime.
///
/// # Errors
/// Returns a message if neither exists, or if the settings are invalid.
pub async fn connect() -> Result<Client, String> {
    let mut config = Config::infer().await.map_err(|error| {
        format!(
            "cannot find the API server of Kubernetes: {}; set KUBECONFIG, or run in a pod with a service account token",
            describe(&error)
        )
    })?;
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    create(config)
}

/// Creates a client, which uses the proxy of the kubeconfig or of `HTTPS_PROXY`.
fn create(config: Config) -> Result<Client, String> {
    let server = config.cluster_url.to_string();
    Client::try_from(config)
        .map_err(|error| format!("cannot connect to the API server at {server}: {}", describe(&error)))
}

/// Returns the message of an error, and the message of the error that caused it.
pub(crate) fn describe(error: &dyn Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let (text, cause) = (error.to_string(), cause.to_string());
    if text.contains(&cause) { text } else { format!("{text}: {cause}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_proxy_is_supported() {
        let mut config = Config::new("https://10.0.0.1:6443".parse().unwrap());
        config.proxy_url = Some("http://proxy.example:3128".parse().unwrap());
        assert!(create(config).is_ok());
    }
}
