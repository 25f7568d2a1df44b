//! Writes small graphs, reads their files, and checks the properties of the three structures.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::Path;

use arrow::array::{AsArray, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{Float16Type, Float32Type, Int64Type};
use clap::Parser;
use half::f16;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use tempfile::TempDir;

use super::*;

#[derive(Parser)]
struct GraphLine {
    #[command(flatten)]
    args: GeneratedGraphArgs,
}

fn graph(line: &str, seed: u64) -> Result<GeneratedGraph> {
    let words = std::iter::once("graph").chain(line.split(' '));
    GeneratedGraph::new(&GraphLine::try_parse_from(words).unwrap().args, seed)
}

/// Writes the graph with these flags and the seed 1.
fn written(line: &str, format: FileFormat) -> TempDir {
    written_with_seed(line, format, 1)
}

fn written_with_seed(line: &str, format: FileFormat, seed: u64) -> TempDir {
    let root = TempDir::new().unwrap();
    let mut output = Output::open(root.path(), false).unwrap();
    write(&graph(line, seed).unwrap(), format, &mut output).unwrap();
    output.commit().unwrap();
    root
}

/// Returns the type and the shape of a NumPy array as in its header, and the bytes of its elements.
fn array(root: &TempDir, name: &str) -> (String, String, Vec<u8>) {
    let file = fs::read(root.path().join(name)).unwrap();
    let end = 10 + usize::from(u16::from_le_bytes([file[8], file[9]]));
    assert_eq!(end % 64, 0);
    let header = String::from_utf8(file[10..end].to_vec()).unwrap();
    let between = |start: &str, end: &str| {
        let (_, rest) = header.split_once(start).unwrap();
        rest.split_once(end).unwrap().0.to_owned()
    };
    (between("'descr': '", "'"), between("'shape': (", ")"), file[end..].to_vec())
}

fn integers(root: &TempDir, name: &str) -> Vec<i64> {
    let (descr, _, bytes) = array(root, name);
    assert_eq!(descr, "<i8");
    bytes.chunks_exact(8).map(|bytes| i64::from_le_bytes(bytes.try_into().unwrap())).collect()
}

fn floats(root: &TempDir, name: &str) -> Vec<f32> {
    let (descr, _, bytes) = array(root, name);
    match descr.as_str() {
        "<f2" => {
            bytes.chunks_exact(2).map(|bytes| f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()).collect()
        }
        _ => bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect(),
    }
}

/// Returns the sources and the targets.
fn edges(root: &TempDir) -> (Vec<i64>, Vec<i64>) {
    let mut sources = integers(root, "edges.npy");
    let targets = sources.split_off(sources.len() / 2);
    (sources, targets)
}

fn parquet(path: &Path) -> RecordBatch {
    let builder = ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap()).unwrap();
    let schema = builder.schema().clone();
    let batches: Vec<RecordBatch> = builder.build().unwrap().map(|batch| batch.unwrap()).collect();
    concat_batches(&schema, &batches).unwrap()
}

/// The numbers of edges of each node.
fn degrees(nodes: usize, ends: &[i64]) -> Vec<usize> {
    let mut degrees = vec![0; nodes];
    ends.iter().for_each(|node| degrees[*node as usize] += 1);
    degrees
}

/// An independent implementation in Python computed the numbers.
#[test]
fn communities_have_fixed_edges() {
    let line = "--nodes 12 --edges 8 --communities 3 --seeds-in 1 --features 2 --edge-features 1 \
                --feature-type float32 --weights --times";
    let root = written(line, FileFormat::Npy);
    let (sources, targets) = edges(&root);
    assert_eq!(sources, [8, 10, 3, 8, 7, 10, 2, 0]);
    assert_eq!(targets, [3, 11, 0, 0, 1, 1, 8, 2]);
    let shape = |name| array(&root, name).1;
    assert_eq!(["edges.npy", "x.npy", "edge_x.npy", "y.npy"].map(shape), ["2, 8", "12, 2", "8, 1", "12,"]);
    assert_eq!(floats(&root, "weight.npy")[..3], [0.340_161_98, 0.333_218_46, 0.777_708_6]);
    assert_eq!(integers(&root, "time.npy")[..3], [1759257968, 1754414000, 1753333386]);
    assert_eq!(integers(&root, "y.npy"), [0, 2, 0, 0, 1, 1, 1, 2, 0, 1, 2, 2]);
    assert_eq!(integers(&root, "train.npy"), [0, 2, 3, 8]);
    assert_eq!(integers(&root, "train_time.npy"), [1756550964, 1761396734, 1758895037, 1762107020]);
    assert_eq!(floats(&root, "x.npy")[..4], [0.766_552_03, 0.746_886_25, 1.453_184_4, -0.403_797_2]);
    assert_eq!(floats(&root, "edge_x.npy")[..3], [-0.356_710_8, -0.851_691_84, 0.665_339_23]);
}

#[test]
fn other_structures_have_fixed_edges() {
    let root = written("--topology uniform --nodes 10 --edges 8", FileFormat::Npy);
    assert_eq!(edges(&root), (vec![2, 9, 2, 2, 1, 7, 2, 0], vec![1, 8, 7, 9, 9, 9, 0, 5]));
    assert_eq!(integers(&root, "y.npy"), [14, 4, 1, 13, 0, 10, 10, 6, 15, 7]);
    assert_eq!(integers(&root, "train.npy"), [9]);
    let root = written("--topology rmat --nodes 10 --edges 8 --seeds 4", FileFormat::Npy);
    assert_eq!(edges(&root), (vec![8, 9, 2, 5, 3, 8, 8, 2], vec![2, 8, 8, 8, 0, 6, 5, 8]));
    assert_eq!(integers(&root, "train.npy"), [3, 6, 8, 9]);
}

#[test]
fn parquet_files_contain_the_same_numbers() {
    let line = "--nodes 300 --edges 70000 --features 3 --edge-features 2 --weights --times";
    let arrays = written(line, FileFormat::Npy);
    let tables = written(&format!("{line} --feature-format parquet"), FileFormat::Parquet);
    let table = parquet(&tables.path().join("edges.parquet"));
    let names: Vec<_> = table.schema().fields().iter().map(|field| field.name().clone()).collect();
    assert_eq!(names, ["src", "dst", "weight", "time"]);
    let integers_of = |name: &str| table[name].as_primitive::<Int64Type>().values().to_vec();
    assert_eq!((integers_of("src"), integers_of("dst")), edges(&arrays));
    assert_eq!(integers_of("time"), integers(&arrays, "time.npy"));
    let weights = table["weight"].as_primitive::<Float32Type>();
    assert_eq!(weights.values().to_vec(), floats(&arrays, "weight.npy"));
    assert!(weights.values().iter().all(|weight| *weight > 0.0 && *weight <= 1.0));
    for name in ["x", "edge_x"] {
        let table = parquet(&tables.path().join(format!("{name}.parquet")));
        let values = table[name].as_fixed_size_list().values().clone();
        let values: Vec<f32> =
            values.as_primitive::<Float16Type>().values().iter().map(|value| value.to_f32()).collect();
        assert_eq!(values, floats(&arrays, &format!("{name}.npy")));
    }
    for name in ["y.npy", "train.npy", "train_time.npy"] {
        assert_eq!(array(&arrays, name), array(&tables, name));
    }
}

#[test]
fn edges_without_attributes_have_two_columns() {
    let root = written("--nodes 20 --edges 30", FileFormat::Parquet);
    assert_eq!(parquet(&root.path().join("edges.parquet")).num_columns(), 2);
    let names: BTreeSet<String> = fs::read_dir(root.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(names.into_iter().collect::<Vec<_>>(), ["edges.parquet", "train.npy", "y.npy"]);
}

#[test]
fn the_seed_selects_the_graph() {
    let all = |line: &str, seed| -> BTreeMap<String, Vec<u8>> {
        let root = written_with_seed(line, FileFormat::Npy, seed);
        let files = fs::read_dir(root.path()).unwrap().map(|entry| entry.unwrap().path());
        files
            .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(&path).unwrap()))
            .collect()
    };
    for topology in ["communities", "rmat", "uniform"] {
        let line = format!("--topology {topology} --nodes 500 --edges 3000");
        let plain = all(&line, 7);
        assert_eq!(all(&line, 7), plain);
        assert_ne!(all(&line, 8)["edges.npy"], plain["edges.npy"], "{topology}");
        let with_attributes = all(&format!("{line} --weights --times --features 4"), 7);
        assert_eq!(with_attributes.len(), plain.len() + 4, "weights, times of edges and seeds, and features");
        assert!(
            plain.iter().all(|(name, bytes)| with_attributes[name] == *bytes),
            "flags do not change other files"
        );
        // More edges and features are added after the others.
        let longer = all(&format!("--topology {topology} --nodes 500 --edges 4000"), 7);
        let start = |bytes: &[u8]| bytes[128..128 + 3000 * 8].to_vec();
        assert_eq!(start(&longer["edges.npy"]), start(&plain["edges.npy"]));
    }
}

/// The maximum likelihood estimate for degrees of at least 30 (Clauset, Shalizi, Newman: "Power-law distributions in empirical
/// data", SIAM Review 2009, equation 3.7).
fn exponent(degrees: &[usize]) -> f64 {
    const SMALLEST: f64 = 30.0;
    let tail: Vec<f64> =
        degrees.iter().map(|degree| *degree as f64).filter(|degree| *degree >= SMALLEST).collect();
    assert!(tail.len() > 1_000, "the degrees have a tail");
    1.0 + tail.len() as f64 / tail.iter().map(|degree| (degree / (SMALLEST - 0.5)).ln()).sum::<f64>()
}

#[test]
fn communities_have_power_law_degrees_and_few_outside_edges() {
    let root = written("--nodes 20000 --edges 400000 --communities 4 --seeds-in 1", FileFormat::Npy);
    let (sources, targets) = edges(&root);
    for ends in [&sources, &targets] {
        let exponent = exponent(&degrees(20_000, ends));
        assert!((exponent - 2.2).abs() < 0.1, "{exponent}");
    }
    let community = integers(&root, "y.npy");
    let is_inside =
        |(source, target): &(&i64, &i64)| community[**source as usize] == community[**target as usize];
    let inside = sources.iter().zip(&targets).filter(is_inside).count() as f64 / 400_000.0;
    assert!((inside - 0.9).abs() < 0.005, "{inside}");
    assert!(sources.iter().zip(&targets).all(|(source, target)| source != target));
    // Ids reveal neither the community nor the degree.
    let mean = |ids: Vec<usize>| ids.iter().sum::<usize>() as f64 / ids.len() as f64;
    for label in 0..4 {
        let members = mean((0..20_000).filter(|node| community[*node] == label).collect());
        assert!((members - 10_000.0).abs() < 400.0, "{members}");
    }
    let by_source = mean(sources.iter().map(|node| *node as usize).collect());
    assert!((by_source - 10_000.0).abs() < 2_500.0, "{by_source}");
}

#[test]
fn seeds_are_in_the_first_communities() {
    let root = written("--nodes 3000 --edges 10 --communities 10 --seeds-in 3", FileFormat::Npy);
    let (community, seeds) = (integers(&root, "y.npy"), integers(&root, "train.npy"));
    let expected: Vec<i64> = (0..3_000).filter(|node| community[*node as usize] < 3).collect();
    assert_eq!(seeds, expected);
    let some = written("--nodes 3000 --edges 10 --communities 10 --seeds-in 3 --seeds 200", FileFormat::Npy);
    let some = integers(&some, "train.npy");
    assert_eq!(some.len(), 200);
    assert!(some.iter().all(|node| seeds.binary_search(node).is_ok()));
    let count = |label: i64| some.iter().filter(|node| community[**node as usize] == label).count();
    assert!((0..3).all(|label| count(label) > 40), "the seeds are random members");
}

#[test]
fn degrees_of_rmat_differ_more_than_those_of_uniform_graphs() {
    let top_share = |topology: &str| {
        let root = written(&format!("--topology {topology} --nodes 10000 --edges 100000"), FileFormat::Npy);
        let (sources, targets) = edges(&root);
        assert!(sources.iter().chain(&targets).all(|node| (0..10_000).contains(node)));
        let mut degrees = degrees(10_000, &sources);
        degrees.sort_unstable_by(|a, b| b.cmp(a));
        degrees[..100].iter().sum::<usize>() as f64 / 100_000.0
    };
    let (rmat, uniform) = (top_share("rmat"), top_share("uniform"));
    assert!(rmat > 0.25 && uniform < 0.03, "{rmat} {uniform}");
}

#[test]
fn flags_that_do_not_fit_are_rejected() {
    for (line, expected) in [
        (
            "--topology rmat --communities 3",
            "--communities and --seeds-in apply to --topology communities only: remove them",
        ),
        ("--nodes 5e9", "a graph has at most 4294967295 nodes: lower --nodes"),
        ("--edges 2e12", "a graph has at most 1000000000000 edges: lower --edges"),
        ("--nodes 10 --communities 11", "cannot divide 10 nodes into 11 communities: lower --communities"),
        ("--communities 4 --seeds-in 5", "--seeds-in is 5, but there are 4 communities: lower --seeds-in"),
        ("--nodes 100 --communities 10 --seeds-in 1 --seeds 11", "only 10 nodes can be seeds: lower --seeds"),
        (
            "--feature-type float32",
            "--feature-type and --feature-format need features: add --features or --edge-features",
        ),
    ] {
        assert_eq!(graph(line, 0).err().unwrap().to_string(), expected);
    }
}
