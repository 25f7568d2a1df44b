//! Batches of sampled neighbors through the whole system: equal in every mode, valid on real graphs, and one sentence for each
//! invalid input.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};

use arrow::array::{Array, ArrayRef, RecordBatch};
use feedline_tests::process::Processes;
use feedline_tests::running::Running;
use feedline_tests::{Call, Scratch, assert_clean, data, embedded, wait_for_rows};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::Value;

use self::input::{
    NODES, array_rows, build, build_small, feature_bytes, integers, list, pipeline, pipeline_text,
    to_integers, write_array,
};

mod feature_cache;
mod input;
mod partitioned;

const SAMPLE: &str = "size: 64, fanouts: [5, 3], features: {x: float16}, edge_features: [w], edge_ids: true";
const WINDOW: &str = "shuffle: { window: 500 }\n";

/// Returns the single error message of a failed call.
fn sentence(call: &Call) -> String {
    assert_eq!(call.status, 1, "{call:?}");
    let lines: Vec<&str> = call.stderr.lines().filter(|line| line.starts_with("feedline: ")).collect();
    assert_eq!(lines.len(), 1, "one sentence: {}", call.stderr);
    assert!(!call.stderr.contains("panicked"), "{}", call.stderr);
    lines[0].to_owned()
}

fn assert_equal(report: &Value, expected: &Value, mode: &str) {
    assert_clean(report);
    for key in ["digest", "content_digest", "rows", "batches"] {
        assert_eq!(report[key], expected[key], "{key}: {mode}");
    }
}

#[test]
fn every_mode_delivers_the_same_graph_batches() {
    let scratch = Scratch::new();
    build_small(&scratch, "g", 0.0);
    let blocks = "size: 100, fanouts: [4, 4], layout: blocks, replace: true, remainder: drop, features: [x]";
    let jobs = [
        (pipeline(&scratch, "g", WINDOW, SAMPLE), vec!["--epochs", "2"]),
        (pipeline(&scratch, "g", WINDOW, blocks), vec!["--consumers", "2"]),
    ];
    let (one, three) =
        (Processes::start(scratch.path().join("one"), 1), Processes::start(scratch.path().join("three"), 3));
    let (one, three) = (one.url(), three.url());
    let local = |workers, cores| vec!["--workers", workers, "--cores", cores];
    let modes = [
        ("one thread", local("1", "1")),
        ("two threads", local("1", "2")),
        ("eight threads", local("1", "8")),
        ("two embedded workers", local("2", "2")),
        ("four embedded workers", local("4", "4")),
        ("TCP", vec!["--coordinator", &one, "--transport", "tcp"]),
        ("a Unix socket", vec!["--coordinator", &one, "--transport", "unix"]),
        ("shared memory", vec!["--coordinator", &one, "--transport", "memory"]),
        ("three worker processes", vec!["--coordinator", &three]),
    ];
    for (file, arguments) in &jobs {
        let expected = scratch.run(file, arguments);
        let rows = if arguments.contains(&"--epochs") { 2 * NODES } else { NODES };
        assert_eq!(expected["rows"], rows);
        for (name, mode) in &modes {
            let report = scratch.run(file, &[&arguments[..], mode].concat());
            assert_equal(&report, &expected, name);
        }
    }
}

#[test]
fn a_killed_worker_and_a_resume_do_not_change_graph_batches() {
    let scratch = Scratch::new();
    build_small(&scratch, "g", 0.0);
    let file = pipeline(&scratch, "g", WINDOW, SAMPLE);
    let shape = ["--virtual-consumers", "2", "--epochs", "2"];
    let expected = scratch.run(&file, &shape);
    let mut processes = Processes::start(scratch.path().join("processes"), 2);
    let url = processes.url();
    let slow = ["--coordinator", &url, "--audit", "--report", "json", "--step-ms", "60"];
    let run = Running::start(&[&["run", &file], &shape[..], &slow].concat());
    wait_for_rows(&url, 64);
    processes.replace_worker(0);
    assert!(!run.has_ended(), "the run was too short");
    assert_equal(&run.wait().report(), &expected, "a killed worker");

    for (limit, first, rest) in [("900", "1", "4"), ("3100", "3", "1")] {
        let place = scratch.file(&format!("place-{limit}.json"));
        let position = ["--position", &place];
        let part =
            scratch.run(&file, &[&shape[..], &position, &["--limit", limit, "--workers", first]].concat());
        let rest =
            scratch.run(&file, &[&shape[..], &position, &["--workers", rest, "--consumers", "2"]].concat());
        let batches = |report: &Value| report["batches"].as_u64().expect("a number of batches");
        assert_eq!(batches(&part) + batches(&rest), batches(&expected), "limit {limit}");
        assert_eq!(rest["digest"], expected["digest"], "limit {limit}");
        let place = scratch.file(&format!("place-{limit}-processes.json"));
        let position = ["--position", &place];
        scratch.run(&file, &[&shape[..], &position, &["--limit", limit]].concat());
        let rest = scratch.run(&file, &[&shape[..], &position, &["--coordinator", &url]].concat());
        assert_eq!(rest["digest"], expected["digest"], "limit {limit} on processes");
    }
}

#[test]
fn features_that_are_built_again_do_not_change_a_running_job() {
    let scratch = Scratch::new();
    build_small(&scratch, "g", 0.0);
    build_small(&scratch, "h", 100.0);
    let (file, other) = (pipeline(&scratch, "g", WINDOW, SAMPLE), pipeline(&scratch, "h", WINDOW, SAMPLE));
    let (before, after) = (scratch.run(&file, &[]), scratch.run(&other, &[]));
    assert_ne!(before["digest"], after["digest"]);
    let processes = Processes::start(scratch.path().join("processes"), 1);
    let url = processes.url();
    let by = ["--coordinator", &url, "--audit", "--report", "json", "--step-ms", "60"];
    let run = Running::start(&[&["run", &file][..], &by].concat());
    wait_for_rows(&url, 64);
    // The seeds, which a running job reads, stay as they are.
    for name in ["nodes/node.x.npy", "graph.json"] {
        fs::copy(scratch.path().join("h").join(name), scratch.path().join("g").join(name))
            .expect("both graphs have the file");
    }
    assert!(!run.has_ended(), "the run was too short");
    assert_equal(&run.wait().report(), &before, "the running job");
    assert_equal(&scratch.run(&file, &["--coordinator", &url]), &after, "a new job");
}

/// Checks the edges of a relation in a batch: the offsets, the number of edges, and that `is_edge` is true for each source and target
/// in the user's order. Returns the number of edges.
fn check_edges(
    records: &RecordBatch,
    prefix: &str,
    (sources, targets): (&[i64], &[i64]),
    mut is_edge: impl FnMut(usize, i64, i64) -> bool,
) -> usize {
    let (ends, rows) =
        (integers(records, &format!("{prefix}colptr")), integers(records, &format!("{prefix}row")));
    assert_eq!(ends.first(), Some(&0));
    assert!(ends.len() <= targets.len() + 1);
    assert_eq!(ends.last().copied(), Some(rows.len() as i64));
    for (target, range) in ends.windows(2).enumerate() {
        assert!(range[0] <= range[1]);
        for edge in range[0] as usize..range[1] as usize {
            let (source, target) = (sources[rows[edge] as usize], targets[target]);
            assert!(is_edge(edge, source, target), "there is no edge {source} -> {target}");
        }
    }
    let counts: i64 = integers(records, &format!("{prefix}num_sampled_edges")).iter().sum();
    assert_eq!(counts as usize, rows.len());
    rows.len()
}

#[test]
fn batches_of_cora_contain_its_edges_features_and_labels() {
    let Some(folder) = data::graphs("sampling of Cora") else { return };
    let scratch = Scratch::new();
    let path = |name: &str| folder.join(name).to_str().expect("the path is text").to_owned();
    let tsv = fs::read_to_string(path("cora.edges.tsv")).expect("the edges are text");
    let mut neighbors: BTreeMap<i64, BTreeSet<i64>> = BTreeMap::new();
    for line in tsv.lines() {
        let (one, two) = line.split_once('\t').expect("two columns");
        let [one, two] = [one, two].map(|node| node.parse::<i64>().expect("an integer"));
        neighbors.entry(one).or_default().insert(two);
        neighbors.entry(two).or_default().insert(one);
    }
    let features = array_rows(&folder.join("cora.features.f16.npy"), 2 * 1_433);
    let labels = array_rows(&folder.join("cora.labels.i8.npy"), 1);
    let (edges, x, y) = (path("cora.edges.tsv"), path("cora.features.f16.npy"), path("cora.labels.i8.npy"));
    let (feature, label) = (format!("x={x}"), format!("y={y}"));
    for order in ["none", "degree"] {
        let flags = ["--edges", &edges, "--undirected", "--feature", &feature, "--label", &label];
        build(&scratch, order, &[&flags[..], &["--seeds", "all=all", "--order", order]].concat());
        let text = pipeline_text(&scratch, order, WINDOW, "size: 100, fanouts: [4, -1], features: [x]");
        let mut all_seeds = Vec::new();
        embedded::for_each_batch(scratch.path(), &text, |records| {
            let nodes = integers(records, "n_id");
            let counts = integers(records, "num_sampled_nodes");
            assert_eq!(counts.iter().sum::<i64>() as usize, nodes.len());
            assert_eq!(nodes.iter().collect::<BTreeSet<_>>().len(), nodes.len(), "a node has one local id");
            let seeds = &nodes[..counts[0] as usize];
            assert_eq!(integers(records, "input_id"), seeds, "all nodes are seeds in their order");
            let expected: Vec<i64> = seeds.iter().map(|seed| i64::from(labels[*seed as usize][0])).collect();
            assert_eq!(integers(records, "y"), expected);
            let rows: Vec<u8> = nodes.iter().flat_map(|node| features[*node as usize].clone()).collect();
            assert!(feature_bytes(records, "x") == rows, "the features are those of the nodes");
            let mut found: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
            check_edges(records, "", (&nodes, &nodes), |_, source, target| {
                found.entry(target).or_default().push(source);
                neighbors[&target].contains(&source)
            });
            for (place, node) in nodes[..(counts[0] + counts[1]) as usize].iter().enumerate() {
                let mut sources = found.remove(node).unwrap_or_default();
                let degree = neighbors.get(node).map_or(0, BTreeSet::len);
                let wanted = if place < seeds.len() { degree.min(4) } else { degree };
                sources.sort_unstable();
                sources.dedup();
                assert_eq!(sources.len(), wanted, "the neighbors of {node} are distinct and complete");
            }
            assert!(found.is_empty(), "nodes of the last hop are not expanded");
            all_seeds.extend_from_slice(seeds);
        });
        all_seeds.sort_unstable();
        assert_eq!(all_seeds, (0..2_708).collect::<Vec<i64>>(), "each seed is delivered once");
    }
}

/// Reads the columns of a Parquet file.
fn parquet_columns(path: &std::path::Path, names: &[&str]) -> Vec<Vec<ArrayRef>> {
    let file = File::open(path).expect("the file exists");
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).and_then(|builder| builder.build());
    let mut columns = vec![Vec::new(); names.len()];
    for records in reader.expect("the file is Parquet") {
        let records = records.expect("the file is intact");
        for (column, name) in columns.iter_mut().zip(names) {
            column.push(records.column_by_name(name).expect("the column exists").clone());
        }
    }
    columns
}

fn numbers(parts: &[ArrayRef]) -> Vec<i64> {
    parts.iter().flat_map(to_integers).collect()
}

#[test]
fn batches_of_debian_contain_its_edges_features_and_labels() {
    let Some(folder) = data::graphs("sampling of Debian's packages") else { return };
    let (scratch, folder) = (Scratch::new(), folder.join("debian"));
    let path = |name: &str| folder.join(name).to_str().expect("the path is text").to_owned();
    let (edges, packages, x) = (path("edges.parquet"), path("packages.parquet"), path("x.npy"));
    let columns = parquet_columns(&folder.join("edges.parquet"), &["from", "to", "relation"]);
    let [from, to, relation] = [0, 1, 2].map(|column| numbers(&columns[column]));
    let columns = parquet_columns(&folder.join("packages.parquet"), &["section", "source"]);
    let (sections, source_of) = (numbers(&columns[0]), numbers(&columns[1]));
    let features = array_rows(&folder.join("x.npy"), 2 * 128);
    let names = ["depends", "recommends", "suggests"];
    let relation_text = |(number, name): (usize, &&str)| {
        format!(
            "  - source: package\n    name: {name}\n    target: package\n    edges: {edges}\n    columns: [from, to]\n    where: {{ \
             relation: {number} }}\n    edge_ids: true\n"
        )
    };
    let relations: String = names.iter().enumerate().map(relation_text).collect();
    let sample = "size: 1000, features: [x], edge_ids: true, fanouts: { package__depends__package: [4, 3], \
                  package__recommends__package: [2, 2], package__suggests__package: [1, 0], package__built_from__source: [2, 2], \
                  source__builds__package: [1, -1] }";
    for order in ["none", "degree"] {
        let file = format!(
            "order: {order}\nnodes:\n  package:\n    ids: {packages}:package\n    features:\n      x: {x}\n    labels:\n      section: \
             {packages}:section\n    seeds:\n      all: all\nrelations:\n{}  - source: package\n    name: built_from\n    target: source\n    \
             edges: {packages}\n    columns: ['#row', source]\n    reverse: builds\n    edge_ids: true\n",
            relations
        );
        scratch.write("debian.yaml", &file);
        build(&scratch, order, &["--from", "debian.yaml"]);
        let text = pipeline_text(&scratch, order, "shuffle: { window: 100000 }\n", sample);
        let (mut seeds, mut edge_count) = (Vec::new(), 0);
        embedded::for_each_batch(scratch.path(), &text, |records| {
            let (nodes, sources) = (integers(records, "package.n_id"), integers(records, "source.n_id"));
            let count = integers(records, "package.num_sampled_nodes")[0] as usize;
            assert_eq!(integers(records, "input_id"), nodes[..count]);
            let expected = nodes[..count].iter().map(|node| sections[*node as usize]).collect::<Vec<_>>();
            assert_eq!(integers(records, "section"), expected);
            let rows: Vec<u8> = nodes.iter().flat_map(|node| features[*node as usize].clone()).collect();
            assert!(feature_bytes(records, "package.x") == rows, "the features are those of the packages");
            for (number, name) in names.iter().enumerate() {
                let prefix = format!("package__{name}__package.");
                let ids = integers(records, &format!("{prefix}e_id"));
                edge_count += check_edges(records, &prefix, (&nodes, &nodes), |edge, source, target| {
                    let row = ids[edge] as usize;
                    (from[row], to[row], relation[row]) == (source, target, number as i64)
                });
            }
            for (prefix, ends) in [
                ("package__built_from__source.", (&nodes[..], &sources[..])),
                ("source__builds__package.", (&sources[..], &nodes[..])),
            ] {
                let ids = integers(records, &format!("{prefix}e_id"));
                edge_count += check_edges(records, prefix, ends, |edge, one, two| {
                    let (package, source) = if prefix.starts_with('p') { (one, two) } else { (two, one) };
                    ids[edge] == package && source_of[package as usize] == source
                });
            }
            seeds.extend_from_slice(&nodes[..count]);
        });
        seeds.sort_unstable();
        assert_eq!(seeds, (0..63_666).collect::<Vec<i64>>(), "each seed is delivered once");
        assert!(edge_count > 100_000, "{edge_count} edges");
    }
}

#[test]
fn graphs_larger_than_the_memory_do_not_change_batches() {
    let scratch = Scratch::new();
    build_small(&scratch, "g", 0.0);
    let file = pipeline(&scratch, "g", WINDOW, SAMPLE);
    let expected = scratch.run(&file, &["--workers", "1"]);
    let size =
        |file: &str| fs::metadata(scratch.path().join("g").join(file)).expect("a file of the graph").len();
    let arrays = fs::read_dir(scratch.path().join("g/topology")).expect("the build wrote the topology");
    let topology: u64 = arrays.map(|file| file.expect("a file").metadata().expect("a file").len()).sum();
    let features = size("nodes/node.x.npy") + 36_000 * 8;
    for (memory, cores) in [(4_096, "2"), (topology, "1"), (topology, "4"), (topology + features / 10, "2")] {
        let memory = memory.to_string();
        let flags = ["--workers", "1", "--cores", cores, "--memory", "64MiB", "--graph-memory", &memory];
        assert_equal(&scratch.run(&file, &flags), &expected, &format!("{memory} bytes for graphs"));
        let cached = [&flags[..], &["--feature-cache", "1MiB"]].concat();
        assert_equal(&scratch.run(&file, &cached), &expected, &format!("{memory} bytes, and a cache"));
    }
    // The bytes that are damaged belong to a row that is not in memory.
    let path = scratch.path().join("g/nodes/node.x.npy");
    let mut bytes = fs::read(&path).expect("the build wrote the feature");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&path, bytes).expect("the feature is writable");
    let memory = topology.to_string();
    let flags = ["--workers", "1", "--memory", "64MiB", "--graph-memory", &memory];
    let error = sentence(&scratch.call(&[&["run", &file][..], &flags].concat()));
    assert!(
        error.contains("node.x.npy` at byte 128: ") && error.contains("copy the folder again"),
        "{error}"
    );
}

#[test]
fn graphs_that_cannot_be_sampled_are_rejected_in_one_sentence() {
    let scratch = Scratch::new();
    build_small(&scratch, "g", 0.0);
    let file = pipeline(&scratch, "g", WINDOW, SAMPLE);
    let call = scratch.call(&["run", &file, "--memory", "64MiB", "--graph-memory", "65MiB"]);
    assert_eq!(call.status, 2);
    assert!(call.stderr.contains("raise --memory or lower --graph-memory"), "{}", call.stderr);

    let path = scratch.path().join("g/nodes/node.x.npy");
    let mut bytes = fs::read(&path).expect("the build wrote the feature");
    bytes[5_000] ^= 1;
    fs::write(&path, bytes).expect("the feature is writable");
    let error = sentence(&scratch.call(&["run", &file]));
    assert!(
        error.contains("node.x.npy` at byte 128: ") && error.contains("copy the folder again"),
        "{error}"
    );

    // 300 rows of 64 KiB.
    let x = write_array(&scratch, "wide.npy", "<f4", [300, 1 << 14], (0..300 << 14).map(|_| 1.0));
    let edges: String = (0..300).map(|node| format!("{node},{}\n", (node + 1) % 300)).collect();
    let (edges, feature) = (scratch.write("circle.csv", &edges), format!("x={x}"));
    build(&scratch, "wide", &["--edges", &edges, "--feature", &feature, "--seeds", "all=all"]);
    let file = pipeline(&scratch, "wide", "", "size: 300, fanouts: [1], features: [x]");
    let error = sentence(&scratch.call(&["run", &file, "--memory", "32MiB", "--graph-memory", "24MiB"]));
    assert!(error.contains("a batch of 300 seeds needs 19 MiB, but this worker has only 13 MiB"), "{error}");
    let file = pipeline(&scratch, "wide", "", "size: 10, fanouts: [1], features: [x], edge_ids: true");
    let error = sentence(&scratch.call(&["run", &file]));
    assert!(error.contains("of `node__to__node` in the user's edge list; build it with edge ids"), "{error}");
    let file = pipeline_text(&scratch, "wide", "", "size: 10, fanouts: [1], features: [x]");
    let mut batches = 0;
    embedded::for_each_batch(scratch.path(), &file, |records| {
        assert_eq!(list(records, "x").len(), integers(records, "n_id").len());
        batches += 1;
    });
    assert_eq!(batches, 30);
}
