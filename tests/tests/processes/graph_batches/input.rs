//! Graphs that the tests build: a small one with edge features, and the lists of a batch.

use std::fs;
use std::path::Path;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type};
use feedline_tests::Scratch;

/// The number of nodes of the small graph, all of which are seeds.
pub(super) const NODES: u32 = 3_000;

/// Writes a NumPy array with numbers in little-endian order.
pub(super) fn write_array(
    scratch: &Scratch,
    name: &str,
    descr: &str,
    shape: [usize; 2],
    numbers: impl IntoIterator<Item = f32>,
) -> String {
    let text =
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({}, {}), }}", shape[0], shape[1]);
    let text = format!("{text:<117}\n");
    let mut array = b"\x93NUMPY\x01\x00".to_vec();
    array.extend((text.len() as u16).to_le_bytes());
    array.extend(text.bytes());
    array.extend(numbers.into_iter().flat_map(f32::to_le_bytes));
    fs::write(scratch.path().join(name), array).expect("the scratch directory is writable");
    scratch.file(name)
}

/// Builds a graph in the directory `name`.
pub(super) fn build(scratch: &Scratch, name: &str, flags: &[&str]) {
    let built = scratch.call(&[&["graph", "build", name][..], flags].concat());
    assert_eq!(built.status, 0, "{}", built.stderr);
}

/// Builds the small graph with the features `x` of the nodes and `w` of the edges. The numbers of `x` begin at `first`.
pub(super) fn build_small(scratch: &Scratch, name: &str, first: f32) {
    let mut random = 7_u64;
    let mut next = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let edges = 12 * u64::from(NODES);
    let lines: String = (0..edges)
        // The product of two numbers makes the degrees unequal.
        .map(|edge| format!("{},{}\n", next(60) * next(50), edge * 7 % u64::from(NODES)))
        .collect();
    let edge_file = scratch.write("small.csv", &lines);
    let x = (0..NODES * 16).map(|number| first + number as f32);
    let x = write_array(scratch, "small.x.npy", "<f4", [NODES as usize, 16], x);
    let w = (0..edges as u32 * 2).map(|number| number as f32);
    let w = write_array(scratch, "small.w.npy", "<f4", [edges as usize, 2], w);
    let (x, w) = (format!("x={x}"), format!("w={w}"));
    let files =
        ["--edges", &edge_file, "--feature", &x, "--edge-feature", &w, "--edge-ids", "--seeds", "all=all"];
    build(scratch, name, &files);
}

/// Writes a pipeline file that samples the seed set `all` of a graph.
pub(super) fn pipeline(scratch: &Scratch, graph: &str, rest: &str, sample: &str) -> String {
    let text = pipeline_text(scratch, graph, rest, sample);
    let name: String = sample.chars().filter(char::is_ascii_alphanumeric).collect();
    scratch.write(&format!("{graph}-{name}.yaml"), &text)
}

pub(super) fn pipeline_text(scratch: &Scratch, graph: &str, rest: &str, sample: &str) -> String {
    format!(
        "name: graph\nsource: {{ url: '{}', format: graph, seeds: all }}\nseed: 5\n{rest}operators: [ sample_neighbors: {{ {sample} }} ]\n",
        scratch.file(graph)
    )
}

/// Returns the values of a list column of a batch, which has one row.
pub(super) fn list(records: &RecordBatch, name: &str) -> ArrayRef {
    let column = records.column_by_name(name).unwrap_or_else(|| panic!("there is no column {name}"));
    column.as_list::<i32>().value(0)
}

/// Returns the integers of a list column of a batch.
pub(super) fn integers(records: &RecordBatch, name: &str) -> Vec<i64> {
    to_integers(&list(records, name))
}

/// Returns integers of any type.
pub(super) fn to_integers(column: &ArrayRef) -> Vec<i64> {
    let column = cast(column, &DataType::Int64).expect("the column contains integers");
    assert_eq!(column.null_count(), 0);
    column.as_primitive::<Int64Type>().values().to_vec()
}

/// Returns the bytes of the rows of a feature in a batch.
pub(super) fn feature_bytes(records: &RecordBatch, name: &str) -> Vec<u8> {
    let rows = list(records, name);
    let numbers = rows.as_fixed_size_list().values().to_data();
    let width = numbers.data_type().primitive_width().expect("features are numbers");
    numbers.buffers()[0].as_slice()[numbers.offset() * width..][..numbers.len() * width].to_vec()
}

/// Returns the rows of an array file, each as bytes.
pub(super) fn array_rows(path: &Path, row_bytes: usize) -> Vec<Vec<u8>> {
    let bytes = fs::read(path).expect("the array exists");
    bytes[128..].chunks(row_bytes).map(<[u8]>::to_vec).collect()
}
