//! The same edges in different formats become the same folder.

use arrow::array::{Int64Array, StringArray, UInt8Array};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::Write;

use super::super::spec::{ColumnName, GraphSpec, NodeSpec, OneOrMore};
use super::scratch::{Scratch, column};

/// Edges with duplicates and unordered targets.
fn edges() -> Vec<(i64, i64)> {
    (0..500).map(|index| (index * 37 % 101, index * index % 97)).collect()
}

fn spec(path: String, columns: Option<[&str; 2]>) -> GraphSpec {
    let mut spec = GraphSpec::homogeneous(NodeSpec::default(), vec![path]);
    spec.relations[0].columns = columns.map(|columns| columns.map(|name| ColumnName(name.to_owned())));
    spec
}

#[test]
fn all_formats_become_the_same_folder() {
    let scratch = Scratch::new();
    let edges = edges();
    let lines = |separator: char| {
        edges.iter().map(|(source, target)| format!("{source}{separator}{target}\n")).collect::<String>()
    };
    let sources = || edges.iter().map(|edge| edge.0);
    let targets = || edges.iter().map(|edge| edge.1);
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(format!("# comment\na,b\n{}", lines(',')).as_bytes()).unwrap();
    let parquet = vec![
        ("other", column(StringArray::from_iter_values(edges.iter().map(|_| "x")))),
        ("to", column(Int64Array::from_iter_values(targets()))),
        ("from", column(UInt8Array::from_iter_values(sources().map(|source| source as u8)))),
    ];
    let both = sources().chain(targets());
    let pairs = edges.iter().flat_map(|edge| [edge.0, edge.1]);
    let specs = [
        spec(scratch.write("e.csv", format!("src,dst\n{}", lines(','))), None),
        spec(scratch.write("e.tsv", lines('\t')), None),
        spec(scratch.write("e.txt", lines(' ')), Some(["0", "1"])),
        spec(scratch.write("e.csv.gz", gzip.finish().unwrap()), Some(["a", "b"])),
        spec(scratch.write_parquet("e.parquet", parquet), Some(["from", "to"])),
        spec(scratch.write_integers("e.npy", &[2, 500], both), None),
        spec(scratch.write_integers("pairs.npy", &[500, 2], pairs), None),
    ];
    let built: Vec<_> =
        specs.iter().enumerate().map(|(index, spec)| scratch.build(&format!("g{index}"), spec)).collect();
    built[0].check().unwrap();
    for other in &built[1..] {
        assert!(other.files() == built[0].files(), "{}", other.path.display());
    }
}

#[test]
fn several_files_are_one_table() {
    let scratch = Scratch::new();
    let edges = edges();
    let lines: Vec<String> = edges.iter().map(|(source, target)| format!("{source},{target}\n")).collect();
    let whole = scratch.build("whole", &spec(scratch.write("all.csv", lines.concat()), None));
    scratch.write("part-2.csv", lines[300..].concat());
    scratch.write("part-1.csv", lines[..300].concat());
    let pattern = scratch.build("pattern", &spec(scratch.text("part-*.csv"), None));
    let mut listed = spec(String::new(), None);
    listed.relations[0].edges = OneOrMore::More(vec![scratch.text("part-1.csv"), scratch.text("part-2.csv")]);
    let listed = scratch.build("listed", &listed);
    assert!(pattern.files() == whole.files() && listed.files() == whole.files());
}

/// The same array in Fortran order, and with big-endian numbers.
#[test]
fn arrays_of_any_order_are_read() {
    let scratch = Scratch::new();
    let edges = edges();
    let text = |order: &str, descr: &str| {
        let mut header = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': (2, 500), }}");
        header = format!("{header:<117}\n");
        [b"\x93NUMPY\x01\x00\x76\x00".as_slice(), header.as_bytes()].concat()
    };
    let pairs: Vec<u8> =
        edges.iter().flat_map(|edge| [edge.0.to_le_bytes(), edge.1.to_le_bytes()].concat()).collect();
    let both = edges.iter().map(|edge| edge.0).chain(edges.iter().map(|edge| edge.1));
    let big: Vec<u8> = both.clone().flat_map(|number| (number as i32).to_be_bytes()).collect();
    let plain = scratch.build("plain", &spec(scratch.write_integers("e.npy", &[2, 500], both), None));
    let fortran = scratch.write("fortran.npy", [text("True", "<i8"), pairs].concat());
    let big = scratch.write("big.npy", [text("False", ">i4"), big].concat());
    for (name, path) in [("fortran", fortran), ("big", big)] {
        assert!(scratch.build(name, &spec(path, None)).files() == plain.files(), "{name}");
    }
}
