//! The flags that select a cluster, and the default from `FEEDLINE_COORDINATOR`.

use clap::Args;

/// The coordinator's default address.
const DEFAULT_COORDINATOR: &str = "http://127.0.0.1:7070";
/// The environment variable that contains the default of `--coordinator`.
pub(super) const COORDINATOR_VARIABLE: &str = "FEEDLINE_COORDINATOR";
/// The clap group of [`RemoteArgs`], which marks the commands that run in this process or on a cluster.
pub(super) const REMOTE_GROUP: &str = "remote";

/// Selects the cluster that a command connects to.
#[derive(Args, Debug, Clone)]
#[group(skip)]
pub(crate) struct ClusterArgs {
    /// URL of a coordinator, or URLs of several coordinators of one cluster.
    #[arg(
        long,
        global = true,
        env = COORDINATOR_VARIABLE,
        hide_env_values = true,
        value_name = "URL,URL",
        value_delimiter = ',',
        default_value = DEFAULT_COORDINATOR
    )]
    coordinator: Vec<String>,
}

impl ClusterArgs {
    /// Returns the URLs, or the default if the environment variable is empty.
    pub(crate) fn urls(&self) -> Vec<String> {
        let urls = non_empty(&self.coordinator);
        if urls.is_empty() { vec![DEFAULT_COORDINATOR.to_owned()] } else { urls }
    }
}

/// Selects a cluster instead of workers in this process.
#[derive(Args, Debug, Clone, Default)]
#[group(id = REMOTE_GROUP)]
pub(crate) struct RemoteArgs {
    /// Run on the workers of this cluster instead of in this process: URL of a coordinator, such as http://10.0.0.1:7070,
    /// or URLs of several coordinators of one cluster. Cannot be combined with flags for workers in this process.
    #[arg(long, env = COORDINATOR_VARIABLE, hide_env_values = true, value_name = "URL,URL", value_delimiter = ',')]
    coordinator: Vec<String>,
}

impl RemoteArgs {
    /// Returns the URLs, or none if the command runs in this process.
    pub(crate) fn urls(&self) -> Vec<String> {
        non_empty(&self.coordinator)
    }
}

/// Removes empty URLs.
pub(super) fn non_empty(urls: &[String]) -> Vec<String> {
    urls.iter().filter(|url| !url.is_empty()).cloned().collect()
}
