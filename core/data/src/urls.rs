//! Checks of the URLs in a pipeline: no secrets in URLs, only allowed prefixes, and no cloud metadata services.
//!
//! These checks examine only the text of a URL. The worker that reads a URL checks resolved addresses, links and redirects.

mod braces;
mod hub;
mod kafka;
mod metadata;
mod normal;
mod percent;
mod policy;
mod secrets;

pub use braces::expand_braces;
pub use hub::{HubPath, without_commit};
pub use kafka::{is_kafka, kafka_servers};
pub use metadata::{is_metadata_address, metadata_host};
pub(crate) use normal::is_local;
pub use normal::{local_path, local_pattern};
pub use percent::percent_decode;
pub use policy::UrlPolicy;
pub use secrets::{check_no_secrets, without_query};
