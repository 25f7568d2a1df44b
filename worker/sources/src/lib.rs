//! Lists, indexes and reads datasets in object stores, in every source format.
//!
//! The crate does not read environment variables or spawn tasks. Its only state is open clients and small caches of
//! shard footers. It depends on the source of a pipeline, but not on its operators.

mod access;
mod blocks;
mod bounded_store;
mod cache;
mod clients;
mod columns;
mod dataset;
mod error;
mod formats;
mod guard;
mod http_client;
mod limits;
mod links;
mod list;
mod local;
mod location;
mod object;
mod reader;
mod retry;
mod rows;
mod select;
mod stores;
#[cfg(test)]
mod testing;
mod throttling;
mod views;
mod window;

pub use access::{Credential, ObjectAccess};
pub use columns::arrow_field;
pub use dataset::{BlockRows, Dataset};
pub use error::SourceError;
pub use reader::{BlockRead, RowFailure};
pub use retry::DEFAULT_RETRY_BUDGET;
pub use stores::Stores;
pub use throttling::METRICS;
