//! Shared code of the fuzz targets: a dataset of one shard with the input bytes, and operators on a few rows.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Once;

use arrow::array::ArrayRef;
use bytes::Bytes;
use feedline_contained::is_contained;
use feedline_data::pipeline::{Format, Pipeline, PipelineError, Source};
use feedline_data::schema::{ColumnType, Schema};
use feedline_operators::{BuiltOperator, Chunk, Column, OutputBuffers, build_operators};
use feedline_sources::{BlockRead, Dataset, Stores};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// The state of the fuzzing thread: a runtime, and a temporary directory, in memory if possible.
struct FuzzState {
    runtime: Runtime,
    folder: TempDir,
}

thread_local! {
    static STATE: OnceCell<FuzzState> = const { OnceCell::new() };
}

/// Hides panics that `feedline_contained` converts into errors from the fuzzer's panic hook.
fn ignore_contained_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let earlier = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !is_contained() {
                earlier(panic);
            }
        }));
    });
}

fn new_state() -> FuzzState {
    ignore_contained_panics();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let memory = PathBuf::from("/dev/shm");
    let root = if memory.is_dir() { memory } else { std::env::temp_dir() };
    let folder = TempDir::new_in(root).expect("the temporary directory can be created");
    FuzzState { runtime: runtime.expect("the runtime starts"), folder }
}

/// Calls `call` with a directory that exists until the fuzzer exits.
pub fn with_folder(call: impl FnOnce(&std::path::Path)) {
    STATE.with(|cell| call(cell.get_or_init(new_state).folder.path()));
}

/// Lists a shard with these bytes, indexes it and reads all of its rows, as a worker does.
pub fn read_shard(bytes: &[u8], format: Format, features: &[(&str, &str)]) {
    STATE.with(|cell| {
        let state = cell.get_or_init(new_state);
        let path = state.folder.path().join("shard");
        std::fs::write(&path, bytes).expect("the temporary file can be written");
        let url = vec![path.to_str().expect("temporary paths are UTF-8").to_owned()];
        let features: BTreeMap<String, String> =
            features.iter().map(|(column, name)| ((*column).to_owned(), (*name).to_owned())).collect();
        let source = Source { url, format, features, credentials: None, mix: None };
        state.runtime.block_on(read(source));
    });
}

async fn read(source: Source) {
    let dataset = Dataset::new(source, Stores::new(Vec::new())).expect("the URL is valid");
    let Ok(shards) = dataset.list().await else { return };
    for shard in shards {
        let Ok(index) = dataset.index_shard(&shard).await else { continue };
        let Some(schema) = &index.schema else { continue };
        for block in &index.blocks {
            let read = BlockRead { shard: &shard, block, schema, rows: None };
            // Errors are expected; only panics and hangs are failures.
            drop(dataset.read_block(&read).await);
        }
    }
}

/// Builds the operators of a pipeline whose source has one column. All files that operators read contain `file`.
///
/// # Errors
/// Errors of the pipeline and of the file.
pub fn operators(
    pipeline: &str,
    (column, column_type): (&str, ColumnType),
    file: &[u8],
) -> Result<Vec<BuiltOperator>, PipelineError> {
    ignore_contained_panics();
    let pipeline = Pipeline::from_yaml(pipeline, "fuzz.yaml")?;
    let schema = Schema::new([(column, column_type)]);
    build_operators(&pipeline, &schema, &|_| Ok(Bytes::copy_from_slice(file)))
}

/// Runs operators on the rows of one column.
pub fn run(operators: &[BuiltOperator], column: &str, values: ArrayRef) {
    let rows = values.len();
    let columns = vec![(column.to_owned(), Column::Arrow(values))];
    let mut chunk = Chunk::new(columns, (0..rows as u64).collect(), vec![0; rows]);
    for built in operators {
        // Errors are expected; only panics and hangs are failures.
        if built.operator.apply(&mut chunk, &mut OutputBuffers::new()).is_err() {
            return;
        }
    }
}
