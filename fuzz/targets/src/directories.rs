//! The targets of source formats whose shards need other files of a directory.

use std::fs;

use feedline_data::pipeline::{Format, Source};
use tempfile::TempDir;

use crate::shards::{open, read, read_blocks, write_shard};
use crate::thread_state::{block_on, with_folder};

/// Lists Hugging Face datasets with a description: README.md, `state.json` or `dataset_info.json`.
pub fn dataset_card(bytes: &[u8]) {
    for name in ["README.md", "state.json", "dataset_info.json"] {
        let files: [(&str, &[u8]); 4] = [
            (name, bytes),
            ("data/train-00000-of-00001.jsonl", b"{}"),
            ("x-train.arrow", b""),
            ("test.csv", b"a"),
        ];
        list_directory(&files, Format::HuggingFace);
    }
}

/// Reads a LitData directory: the first part of the input is `index.json`, the rest is a file of the index.
pub fn litdata(bytes: &[u8]) {
    read_directory(bytes, "chunk.bin", Format::LitData);
}

/// Reads an MDS directory: the first part of the input is `index.json`, the rest is a file of the index.
pub fn mds(bytes: &[u8]) {
    read_directory(bytes, "shard.mds", Format::Mds);
}

/// Lists a directory with these files, as a worker does.
fn list_directory(files: &[(&str, &[u8])], format: Format) {
    with_folder(|folder| {
        let folder = TempDir::new_in(folder).expect("the temporary directory can be created");
        for (name, bytes) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().expect("a file has a directory")).expect("it can be created");
            fs::write(path, bytes).expect("the temporary file can be written");
        }
        let dataset = open(Source::new(format, folder.path().to_str().expect("temporary paths are UTF-8")));
        // Errors are expected; only panics and hangs are failures.
        block_on(async { drop(dataset.list().await) });
    });
}

/// Reads a directory with an `index.json` and one file. A line break and `---` divide the input into the index, the file, and
/// optionally another index. The rows are read with the other index too, as if the index had been replaced after the shard
/// was indexed. If an index contains the text `SIZE`, it is replaced by the size of the file.
fn read_directory(bytes: &[u8], name: &str, format: Format) {
    let (index, rest) = divide(bytes);
    let (file, other_index) = divide(rest.unwrap_or_default());
    with_folder(|folder| {
        let folder = folder.join("directory");
        fs::create_dir_all(&folder).expect("the temporary directory can be created");
        let write_index = |index: &[u8]| {
            let index = String::from_utf8_lossy(index).replace("SIZE", &file.len().to_string());
            fs::write(folder.join("index.json"), index).expect("the temporary file can be written");
        };
        write_index(index);
        write_shard(&folder.join(name), file);
        let source = Source::new(format, folder.to_str().expect("temporary paths are UTF-8"));
        block_on(async {
            let (indexed, _) = read(source.clone()).await;
            if let Some(other_index) = other_index {
                write_index(other_index);
                // Another worker, which has no cached index.
                read_blocks(&open(source), &indexed).await;
            }
        });
    });
}

/// Splits an input before and after its first divider.
fn divide(bytes: &[u8]) -> (&[u8], Option<&[u8]>) {
    const DIVIDER: &[u8] = b"\n---\n";
    match bytes.windows(DIVIDER.len()).position(|part| part == DIVIDER) {
        Some(at) => (&bytes[..at], Some(&bytes[at + DIVIDER.len()..])),
        None => (bytes, None),
    }
}
