//! What the fuzzers share: a dataset of one shard that has the fuzzer's bytes, and operators on a few rows.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Once;

use arrow::array::ArrayRef;
use bytes::Bytes;
use feedline_contained::is_contained;
use feedline_data::pipeline::{Format, Pipeline, PipelineError, Source};
use feedline_data::schema::{ColumnType, Schema};
use feedline_operators::{BuiltOperator, Chunk, Column, Slots, build_operators};
use feedline_sources::{BlockRead, Dataset, Stores};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// The fuzzer's thread: a runtime, and a folder in memory where there is one.
struct Bench {
    runtime: Runtime,
    folder: TempDir,
}

thread_local! {
    static BENCH: OnceCell<Bench> = const { OnceCell::new() };
}

/// What is contained is no finding: the fuzzer's hook hears of other panics alone.
fn pass_contained() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let earlier = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |told| {
            if !is_contained() {
                earlier(told);
            }
        }));
    });
}

fn bench() -> Bench {
    pass_contained();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let memory = PathBuf::from("/dev/shm");
    let root = if memory.is_dir() { memory } else { std::env::temp_dir() };
    let folder = TempDir::new_in(root).expect("there is room for a folder");
    Bench { runtime: runtime.expect("a runtime starts"), folder }
}

/// Calls with a folder that is there for the fuzzer's life.
pub fn with_folder(call: impl FnOnce(&std::path::Path)) {
    BENCH.with(|cell| call(cell.get_or_init(bench).folder.path()));
}

/// Lists a shard with these bytes, indexes it and reads all its rows, as a worker does.
pub fn read_shard(bytes: &[u8], format: Format, features: &[(&str, &str)]) {
    BENCH.with(|cell| {
        let bench = cell.get_or_init(bench);
        let path = bench.folder.path().join("shard");
        std::fs::write(&path, bytes).expect("there is room for a file");
        let url = vec![path.to_str().expect("temporary paths are text").to_owned()];
        let features: BTreeMap<String, String> =
            features.iter().map(|(column, name)| ((*column).to_owned(), (*name).to_owned())).collect();
        let source = Source { url, format, features, credentials: None, mix: None };
        bench.runtime.block_on(read(source));
    });
}

async fn read(source: Source) {
    let dataset = Dataset::new(source, Stores::new(Vec::new())).expect("the url is sound");
    let Ok(shards) = dataset.list().await else { return };
    for shard in shards {
        let Ok(index) = dataset.index_shard(&shard).await else { continue };
        let Some(schema) = &index.schema else { continue };
        for block in &index.blocks {
            let read = BlockRead { shard: &shard, block, schema, rows: None };
            // Whether it can be read does not matter; that the call ends does.
            drop(dataset.read_block(&read).await);
        }
    }
}

/// The operators of a pipeline, whose source has one column, and each of whose files has these bytes.
///
/// # Errors
/// Those of the pipeline, and of the file.
pub fn operators(
    pipeline: &str,
    (column, column_type): (&str, ColumnType),
    file: &[u8],
) -> Result<Vec<BuiltOperator>, PipelineError> {
    pass_contained();
    let pipeline = Pipeline::from_yaml(pipeline, "fuzz.yaml")?;
    let schema = Schema::new([(column, column_type)]);
    build_operators(&pipeline, &schema, &|_| Ok(Bytes::copy_from_slice(file)))
}

/// Runs operators on rows of one column.
pub fn run(operators: &[BuiltOperator], column: &str, values: ArrayRef) {
    let rows = values.len();
    let columns = vec![(column.to_owned(), Column::Arrow(values))];
    let mut chunk = Chunk::new(columns, (0..rows as u64).collect(), vec![0; rows]);
    for built in operators {
        // Whether rows fail does not matter; that the call ends does.
        if built.operator.apply(&mut chunk, &mut Slots::new()).is_err() {
            return;
        }
    }
}
