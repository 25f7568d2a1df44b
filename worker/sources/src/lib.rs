//! Lists, indexes and reads datasets in object stores, in every source format.
//!
//! The crate does not read environment variables or spawn tasks. Its only state is open clients and small caches of
//! shard footers, and the governors of stores. It depends on the source of a pipeline, but not on its operators.

mod access;
mod access_denied;
mod block_read;
mod blocks;
mod bounded_store;
mod cache;
mod causes;
mod client_builder;
mod clients;
mod columns;
mod content;
mod credentials_client;
mod dataset;
mod digest;
mod directory;
mod error;
mod exact_cast;
mod formats;
#[doc(hidden)]
pub mod fuzzing;
mod governor;
mod governors;
mod graph_description;
mod guard;
mod hedged_reads;
mod http_client;
mod hub;
mod identified_store;
mod identity;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(not(feature = "kafka"))]
#[path = "kafka_disabled.rs"]
mod kafka;
mod kafka_options;
mod limits;
mod links;
mod list;
mod local;
mod location;
mod merged_reads;
mod object;
mod partitions;
mod profile;
mod read_memory;
mod reader;
mod requests;
mod response_body;
mod responses;
mod retry;
mod rows;
mod select;
mod shard_values;
mod store_file;
mod stores;
mod table_roots;
mod tables;
#[cfg(test)]
mod testing;
mod throttling;
mod version;
mod views;
mod window;

pub use access::{Credential, ObjectAccess};
pub use columns::{arrow_field, empty_batch};
pub use content::{Decoders, METRICS as COMPRESSION_METRICS, RunTurn};
pub use dataset::{Dataset, OpenBlock, SampledRows, SampledShard};
pub use error::SourceError;
pub use formats::npy::header::{MAX_HEADER_END, NpyArrayHeader, NpyHeaderError};
pub use formats::npz::local_archive::{ArchiveMember, LocalArchive};
pub use governors::WorkerGovernors;
pub use read_memory::ReadMemory;
pub use reader::{BlockRead, BlockRows, LostRows, RowFailure};
pub use retry::DEFAULT_RETRY_BUDGET;
pub use store_file::StoreFile;
pub use stores::Stores;
pub use throttling::METRICS;
