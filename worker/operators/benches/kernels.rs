//! Measures the time that each operator needs per row on one thread: `cargo bench --workspace --bench kernels`.
//!
//! The photographs are in `$FEEDLINE_SHARED_DATA/images` (default `../shared/data`). Without them, one small image is
//! used.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{BinaryViewArray, Int32Array, Int32Builder, ListBuilder, StringViewArray};
use bytes::Bytes;
use criterion::measurement::WallTime;
use criterion::{BatchSize, BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use feedline_data::pipeline::Pipeline;
use feedline_data::schema::{ColumnType, ScalarType, Schema};
use feedline_operators::kernel::with_index;
use feedline_operators::{BuiltOperator, Chunk, Column, OutputBuffers, build_operators};
use serde_json::{Value, json};

/// Photographs per chunk.
const PHOTOGRAPHS: usize = 32;
/// Rows per chunk of small rows.
const ROWS: usize = 4096;

#[expect(
    clippy::disallowed_methods,
    reason = "an environment variable has the directory of the benchmark's data"
)]
fn photographs() -> Vec<Bytes> {
    let shared = std::env::var("FEEDLINE_SHARED_DATA")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data").to_owned());
    let mut paths: Vec<_> = std::fs::read_dir(Path::new(&shared).join("images"))
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default();
    paths.sort();
    let files = paths.iter().filter_map(|path| std::fs::read(path).ok());
    let mut jpegs: Vec<Bytes> =
        files.filter(|file| file.starts_with(&[0xFF, 0xD8])).take(PHOTOGRAPHS).map(Bytes::from).collect();
    if jpegs.is_empty() {
        eprintln!(
            "there are no photographs at {shared}: one small image is used instead; set FEEDLINE_SHARED_DATA"
        );
        jpegs = vec![Bytes::from_static(include_bytes!("../../jpeg/testdata/420.jpg"))];
    }
    jpegs
}

fn build(column: (&str, ColumnType), operators: &[Value]) -> Vec<BuiltOperator> {
    let operators = [operators, &[json!({"batch": {"size": 1}})]].concat();
    let pipeline: Pipeline = serde_json::from_value(json!({
        "name": "kernels",
        "source": {"url": "files", "format": "files"},
        "operators": operators,
    }))
    .expect("the benchmark's pipelines are well-formed");
    build_operators(&pipeline, &Schema::new([column]), &|path| Err(format!("{path} is not read here")))
        .expect("the benchmark's pipelines are sound")
}

fn chunk(name: &str, column: Column) -> Chunk {
    let rows = column.rows();
    Chunk::new(vec![(name.to_owned(), column)], (0..rows as u64).collect(), vec![0; rows])
}

fn binary(values: &[Bytes]) -> Column {
    Column::Arrow(Arc::new(BinaryViewArray::from_iter_values(values)))
}

/// Measures operator `place` on the output of the operators before it.
fn measure(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    column: (ColumnType, Column),
    (place, operators): (usize, &[Value]),
) {
    let (column_type, column) = column;
    group.throughput(Throughput::Elements(column.rows() as u64));
    let built = build(("column", column_type), operators);
    let (before, measured) = (&built[..place], &built[place]);
    let mut input = chunk("column", column);
    for operator in before {
        operator
            .operator
            .apply(&mut input, &mut OutputBuffers::new())
            .expect("the chunk suits the operators");
    }
    let run = |mut chunk: Chunk| {
        measured
            .operator
            .apply(&mut chunk, &mut OutputBuffers::new())
            .expect("the chunk suits the operators");
        chunk
    };
    // Not part of the measured time.
    let copy = || Chunk::new(input.columns.clone(), input.row_ids.clone(), input.passes.clone());
    group.bench_function(name, |bencher| bencher.iter_batched(copy, run, BatchSize::PerIteration));
}

fn images(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("images");
    let plain = photographs();
    let indexed = with_index(&plain);
    let encoded = |files: &[Bytes]| (ColumnType::Binary, binary(files));
    let crop = json!({"random_resized_crop": {"column": "column", "size": [224, 224]}});
    let center = json!({"center_crop": {"column": "column", "size": [224, 224], "resize": 256}});
    let decode = json!({"decode_image": {"column": "column"}});
    let recode = json!({"recode_jpeg": {"column": "column"}});
    let flip = json!({"random_horizontal_flip": {"column": "column", "p": 1.0}});
    let (mean, std) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
    let normalize = json!({"normalize": {"column": "column", "mean": mean, "std": std, "layout": "chw"}});
    let mut images = |name, files, place, operators: &[&Value]| {
        let operators: Vec<Value> = operators.iter().map(|operator| (*operator).clone()).collect();
        measure(&mut group, name, encoded(files), (place, &operators));
    };
    images("random_resized_crop", &plain, 0, &[&crop]);
    images("random_resized_crop, indexed", &indexed, 0, &[&crop]);
    images("random_resized_crop, decoded", &plain, 1, &[&decode, &crop]);
    images("center_crop", &plain, 0, &[&center]);
    images("decode_image", &plain, 0, &[&decode, &crop]);
    images("recode_jpeg", &plain, 0, &[&recode]);
    images("random_horizontal_flip", &plain, 1, &[&crop, &flip]);
    images("normalize", &plain, 1, &[&crop, &normalize]);
    group.finish();
}

fn small_rows(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("small rows");
    let numbers = || {
        let column: Int32Array = (0..ROWS as i32).collect();
        (ColumnType::Scalar(ScalarType::Int32), Column::Arrow(Arc::new(column)))
    };
    let filter = |predicate: &str| json!({"filter": {"where": predicate}});
    measure(&mut group, "filter", numbers(), (0, &[filter("\"column\" % 3 <> 1")]));
    let cast = json!({"cast": {"column": "column", "dtype": "float32"}});
    measure(&mut group, "cast", numbers(), (0, &[cast]));
    let texts =
        StringViewArray::from_iter_values((0..ROWS).map(|row| format!("a sentence with the number {row}")));
    let texts = (ColumnType::Utf8, Column::Arrow(Arc::new(texts)));
    measure(&mut group, "filter by text", texts, (0, &[filter("length(\"column\") > 28")]));
    let mut lists = ListBuilder::new(Int32Builder::new());
    for row in 0..ROWS as i32 {
        lists.append_value((0..row % 48).map(Some));
    }
    let numbers = ColumnType::List(Box::new(ColumnType::Scalar(ScalarType::Int32)));
    let lists = (numbers, Column::Arrow(Arc::new(lists.finish())));
    let pad = json!({"pad": {"column": "column", "length": 64}});
    measure(&mut group, "pad", lists, (0, &[pad]));
    group.finish();
}

criterion_group!(kernels, images, small_rows);
criterion_main!(kernels);
