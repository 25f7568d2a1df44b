//! Datasets on the Hugging Face Hub, as an object store. A key is `ORG/NAME@REVISION/PATH`.
//!
//! Listings use the API of the Hub, and reads use its `resolve` URLs, which redirect to a content network. A listing first
//! replaces the revision by a commit ([`pin`]), so that the content of a key never changes. The version of an object is the hash
//! of its content. The address of the Hub is a setting of the process and not of a pipeline.

mod api;
mod fuzzed;
pub(crate) mod hub_error;
mod store;

pub use self::fuzzed::read_hub_answer;

use std::sync::Arc;
use std::time::Duration;

use feedline_data::read_policy::ReadPolicy;
use feedline_data::urls::HubPath;
use object_store::path::Path;
use object_store::{ClientConfigKey, ClientOptions, GetOptions, ObjectStore};
use url::Url;

use crate::access::StoreOptions;
use crate::bounded_store::BoundedStore;
use crate::client_builder::build_client;
use crate::guard::RequestGuard;

use hub_error::{HubError, STORE};
use store::HubStore;

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// Builds the client of the Hub. `root` is `hf://datasets`.
///
/// # Errors
/// Returns an error if the endpoint is invalid. The message contains no token.
pub(crate) fn build(
    root: &str,
    options: &StoreOptions,
    reads: &ReadPolicy,
    retry_budget: Duration,
    client: ClientOptions,
) -> object_store::Result<BoundedStore> {
    let invalid = |message: String| object_store::Error::Generic { store: STORE, source: message.into() };
    if root != "hf://datasets" {
        return Err(invalid("only datasets can be read: write `hf://datasets/ORG/NAME`".to_owned()));
    }
    let option = |name: &str| options.iter().find(|(key, _)| *key == name).map(|(_, value)| value);
    let endpoint = option("hf_endpoint").filter(|endpoint| !endpoint.is_empty()).unwrap_or(DEFAULT_ENDPOINT);
    let endpoint = Url::parse(endpoint.trim_end_matches('/'))
        .ok()
        .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host() && url.query().is_none())
        .ok_or_else(|| {
            invalid(
                "`HF_ENDPOINT` is not an http(s) URL: write a URL such as `https://huggingface.co`".into(),
            )
        })?;
    let guard = RequestGuard::for_stores(reads);
    let is_http = endpoint.scheme() == "http";
    let client = client.with_config(ClientConfigKey::AllowHttp, is_http.to_string());
    let client = build_client(&client, Some(&guard)).map_err(invalid)?;
    let token = option("hf_token").filter(|token| !token.is_empty()).map(str::to_owned);
    let store = Arc::new(HubStore::new(client, guard, endpoint, token));
    Ok(BoundedStore::new(Arc::clone(&store) as Arc<dyn ObjectStore>, retry_budget).with_pages(store))
}

/// Replaces the revision in the rest of a URL by its commit. A repository becomes a directory, with a slash at the end.
pub(crate) async fn pin(store: &dyn ObjectStore, rest: &str) -> object_store::Result<String> {
    let mut hub = HubPath::parse(rest).map_err(HubError::permanent)?;
    if !hub.is_pinned() {
        let repository = HubPath { path: String::new(), ..hub.clone() };
        let key = Path::parse(repository.rest())?;
        let found = store.get_opts(&key, GetOptions::new().with_head(true)).await?;
        let commit = found.meta.version.ok_or_else(|| HubError::permanent("the Hub returned no commit"))?;
        hub.revision = Some(commit);
    }
    let slash = if hub.path.is_empty() { "/" } else { "" };
    Ok(hub.rest() + slash)
}

#[cfg(test)]
mod tests;
