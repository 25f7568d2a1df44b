//! Fuzz targets of all parsers of untrusted input. A target is a function that must return for every input: panics, hangs,
//! and the use of much memory are failures.
//!
//! `make fuzz` calls each target with inputs that a fuzzer generates. The tests of this crate call it with its corpus, its
//! seeds, and mutations of both.

mod array_record;
mod compressed;
mod control;
mod directories;
mod features;
mod images;
mod seeds;
mod services;
mod shards;
mod thread_state;
mod tokenizers;
mod values;

pub use compressed::{access_point, bzip2, gzip, xz, zlib, zstd};
pub use control::{access, cache, graph_folder, index, messages, pipeline, raft_log};
pub use directories::{dataset_card, litdata, mds};
pub use features::features;
pub use images::{image, raster};
pub use seeds::{Seed, seeds};
pub use services::{aws_config, hub, kafka_options, kafka_payload};
pub use shards::{
    arrayrecord, arrow, csv, example, jsonl, npy, npz, parquet, parquet_pages, read_shard, tar, tfrecord,
};
pub use thread_state::block_on;
pub use tokenizers::tokenizer;

/// A fuzz target.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// The name of the binary for cargo-fuzz, and of the directory of the corpus.
    pub name: &'static str,
    /// Parses an input.
    pub run: fn(&[u8]),
}

/// Calls a macro with the names of all targets. The name of a target is the name of its function.
#[macro_export]
macro_rules! with_targets {
    ($macro:ident) => {
        $macro! {
            access access_point arrayrecord arrow aws_config bzip2 cache csv dataset_card example features
            graph_folder gzip hub image index jsonl kafka_options kafka_payload litdata mds messages npy npz
            parquet parquet_pages pipeline raft_log raster tar tfrecord tokenizer xz zlib zstd
        }
    };
}

macro_rules! targets {
    ($($name:ident)*) => {
        /// All fuzz targets, by name.
        pub const TARGETS: &[Target] = &[$(Target { name: stringify!($name), run: $name }),*];
    };
}

with_targets!(targets);
