//! Runs each fuzz target on its corpus, on its seeds, and on mutations of both. The mutations are the same in each run.
//!
//! `FEEDLINE_FUZZ_MUTATIONS=100000` sets the number of mutations per target.

mod mutator;
mod trial;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use feedline_data::pipeline::Format;
use feedline_fuzz_targets::{TARGETS, Target, read_shard, seeds, with_targets};
use feedline_sources::fuzzing::read_parquet_pages;

use self::mutator::mutate;
use self::trial::{Input, run_inputs};

const MUTATIONS: u64 = 2_000;

/// Generates a test for each target, so that several targets run at the same time.
macro_rules! tests {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                run_target(stringify!($name));
            }
        )*
    };
}

with_targets!(tests);

fn run_target(name: &str) {
    let target = target(name);
    let inputs = inputs(target);
    assert!(!inputs.is_empty(), "{name} has no input: add one to fuzz/corpus/{name}, or a seed");
    let originals: Vec<Vec<u8>> = inputs.iter().map(|input| input.bytes.clone()).collect();
    let mutations =
        (0..mutations()).map(|seed| Input { name: seed.to_string(), bytes: mutate(&originals, seed) });
    run_inputs(target, inputs.into_iter().chain(mutations)).unwrap_or_else(|failure| panic!("{failure}"));
}

fn target(name: &str) -> &'static Target {
    TARGETS.iter().find(|target| target.name == name).expect("the target is in the table")
}

/// Reads the corpus of a target, and generates its seeds.
fn inputs(target: &Target) -> Vec<Input> {
    let mut inputs = Vec::new();
    for entry in fs::read_dir(fuzz_folder().join("corpus").join(target.name)).into_iter().flatten() {
        let path = entry.expect("the corpus is readable").path();
        let name = path.file_name().expect("a file has a name").to_string_lossy().into_owned();
        inputs.push(Input { name, bytes: fs::read(&path).expect("the corpus is readable") });
    }
    // The order in the directory would change the mutations.
    inputs.sort_unstable_by(|left, right| left.name.cmp(&right.name));
    let seeds = seeds(target.name).expect("seeds can be generated");
    inputs.extend(seeds.into_iter().map(|seed| Input { name: seed.name, bytes: seed.bytes }));
    inputs
}

#[expect(clippy::disallowed_methods, reason = "a switch for the author of a change, not a setting")]
fn mutations() -> u64 {
    std::env::var("FEEDLINE_FUZZ_MUTATIONS")
        .map_or(MUTATIONS, |count| count.parse().expect("FEEDLINE_FUZZ_MUTATIONS is a number"))
}

fn fuzz_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is in fuzz").to_owned()
}

#[test]
fn every_target_has_a_binary_for_cargo_fuzz() {
    let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    let binaries = binaries(&fs::read_to_string(fuzz_folder().join("Cargo.toml")).unwrap());
    assert_eq!(names, binaries.keys().collect::<Vec<_>>(), "the targets and fuzz/Cargo.toml differ");
    for (name, path) in binaries {
        let source = fs::read_to_string(fuzz_folder().join(&path)).unwrap();
        let call = format!("feedline_fuzz_targets::{name}(bytes)");
        assert!(source.contains(&call), "fuzz/{path} does not call {call}");
    }
}

/// Returns the names and paths of the `[[bin]]` entries of a manifest.
fn binaries(manifest: &str) -> BTreeMap<String, String> {
    let value = |entry: &str, key: &str| {
        let line = entry.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
        line.expect("an entry has a name and a path").trim_matches('"').to_owned()
    };
    manifest.split("[[bin]]").skip(1).map(|entry| (value(entry, "name"), value(entry, "path"))).collect()
}

#[test]
fn every_directory_of_the_corpus_belongs_to_a_target() {
    for entry in fs::read_dir(fuzz_folder().join("corpus")).unwrap() {
        let name = entry.unwrap().file_name();
        assert!(TARGETS.iter().any(|target| *target.name == *name), "fuzz/corpus/{}", name.display());
    }
}

/// Mutations of inputs that the reader rejects would test only its first check.
#[test]
fn each_source_format_has_an_input_with_rows() {
    let formats = [
        ("arrayrecord", Format::ArrayRecord),
        ("arrow", Format::Arrow),
        ("csv", Format::Csv),
        ("jsonl", Format::Jsonl),
        ("npy", Format::Npy),
        ("npz", Format::Npz),
        ("parquet", Format::Parquet),
        ("tar", Format::WebDataset),
        ("tfrecord", Format::TfRecord),
    ];
    for (name, format) in formats {
        let has_rows = |input: &Input| read_shard(&input.bytes, format, &[]) > 0;
        assert!(inputs(target(name)).iter().any(has_rows), "no input of {name} has rows");
    }
}

#[test]
fn each_codec_of_parquet_pages_has_inputs_with_pages() {
    let inputs = inputs(target("parquet_pages"));
    for codec in 0..3 {
        let of_codec = inputs.iter().filter(|input| input.bytes.first() == Some(&codec));
        let sizes: Vec<u64> = of_codec.map(|input| read_parquet_pages(&input.bytes)).collect();
        assert!(sizes.len() >= 5 && !sizes.contains(&0), "codec {codec}: {sizes:?}");
    }
}
