//! Entry points of the fuzz targets for parsers that have no shard: configuration files, payloads, pages of Parquet files, and
//! answers of a schema registry and of the Hugging Face Hub.

pub use crate::formats::read_parquet_pages;
pub use crate::hub::read_hub_answer;
#[cfg(feature = "kafka")]
pub use crate::kafka::{decode_payloads, read_registry_answer};
pub use crate::profile::read_config;
