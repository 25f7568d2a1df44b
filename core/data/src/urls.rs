//! Which URLs a pipeline may name: none with a secret in it, only those within allowed prefixes, and none where a cloud keeps
//! what only the machine itself shall know.
//!
//! Text alone decides here. What a host's name resolves to, and where links and redirects lead, whoever reads must look at.

mod braces;
mod metadata;
mod normal;
mod policy;
mod secrets;

pub use braces::expand_braces;
pub use metadata::{is_metadata_address, metadata_host};
pub(crate) use normal::is_local;
pub use normal::{local_path, local_pattern};
pub use policy::UrlPolicy;
pub use secrets::{refuse_secrets, without_query};
