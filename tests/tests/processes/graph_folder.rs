//! `feedline graph`: builds real graphs, describes and checks them, and rejects invalid input with one sentence.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use feedline_tests::{Call, Scratch, data, feedline, wait_for};
use serde_json::Value;

/// Returns the single error message of a failed call.
fn sentence(call: &Call, status: i32) -> String {
    assert_eq!(call.status, status, "{call:?}");
    let lines: Vec<&str> = call.stderr.lines().filter(|line| line.starts_with("feedline: ")).collect();
    assert_eq!(lines.len(), 1, "one sentence: {}", call.stderr);
    assert!(!call.stderr.contains("panicked"), "{}", call.stderr);
    lines[0].to_owned()
}

/// Builds a graph in the directory `name`, checks it, and returns its description.
fn build(scratch: &Scratch, name: &str, flags: &[&str]) -> Value {
    let arguments = [&["graph", "build", name][..], flags].concat();
    let built = scratch.call(&arguments);
    assert_eq!(built.status, 0, "{}", built.stderr);
    assert!(built.stdout.contains(&format!("built {name} in ")), "{}", built.stdout);
    let checked = scratch.call(&["graph", "check", name]);
    assert_eq!(checked.status, 0, "{}", checked.stderr);
    assert!(checked.stdout.contains("no errors"), "{}", checked.stdout);
    let info = scratch.call(&["graph", "info", name, "--json"]);
    assert_eq!(info.status, 0, "{}", info.stderr);
    serde_json::from_str(&info.stdout).expect("the description is JSON")
}

/// Returns the data of an array with numbers of 64 or 32 bits.
fn numbers<const N: usize, T>(folder: &Path, path: &str, convert: fn([u8; N]) -> T) -> Vec<T> {
    let bytes = fs::read(folder.join(path)).expect("the build wrote the array");
    let (chunks, rest) = bytes[128..].as_chunks::<N>();
    assert!(rest.is_empty());
    chunks.iter().map(|chunk| convert(*chunk)).collect()
}

/// Returns the edges of a relation as pairs of source and target, in their order.
fn edges(folder: &Path, key: &str) -> Vec<(u32, u32)> {
    let offsets = numbers(folder, &format!("topology/{key}.offsets.npy"), u64::from_le_bytes);
    let sources = numbers(folder, &format!("topology/{key}.sources.npy"), u32::from_le_bytes);
    let mut edges = Vec::new();
    for (target, ends) in (0..).zip(offsets.windows(2)) {
        edges.extend(sources[ends[0] as usize..ends[1] as usize].iter().map(|&source| (source, target)));
    }
    edges
}

fn count(description: &Value, kind: &str, index: usize, key: &str) -> u64 {
    description[kind][index][key].as_u64().expect("the description has the count")
}

#[test]
fn cora_is_built_with_features_labels_and_seeds() {
    let Some(folder) = data::graphs("the build of Cora") else { return };
    let scratch = Scratch::new();
    let file = |name: &str| folder.join(name).to_str().expect("the path is text").to_owned();
    let (tsv, x, y) = (file("cora.edges.tsv"), file("cora.features.f16.npy"), file("cora.labels.i8.npy"));
    let (feature, label) = (format!("x={x}"), format!("y={y}"));
    let flags =
        ["--edges", &tsv, "--undirected", "--feature", &feature, "--label", &label, "--seeds", "all=all"];
    let description = build(&scratch, "cora", &flags);
    assert_eq!(count(&description, "nodes", 0, "count"), 2_708);
    assert_eq!(count(&description, "relations", 0, "edges"), 10_556);
    assert_eq!(count(&description, "seeds", 0, "rows"), 2_708);
    let text = fs::read_to_string(&tsv).expect("the edges are text");
    let pair = |line: &str| {
        let (source, target) = line.split_once('\t')?;
        Some((target.parse::<u32>().ok()?, source.parse::<u32>().ok()?))
    };
    let by_target: BTreeSet<(u32, u32)> =
        text.lines().map(|line| pair(line).expect("two integers")).collect();
    let expected: Vec<(u32, u32)> = by_target.into_iter().map(|(target, source)| (source, target)).collect();
    assert_eq!(edges(&scratch.path().join("cora"), "node__to__node"), expected);
    let stored = fs::read(scratch.path().join("cora/nodes/node.x.npy")).expect("the build wrote the feature");
    assert!(stored[128..] == fs::read(&x).expect("the features exist")[128..], "features are not changed");
    let info = scratch.call(&["graph", "info", "cora"]).stdout;
    for part in ["node__to__node  10556", "undirected", "float16[1433]", "order none"] {
        assert!(info.contains(part), "`{part}` is missing in:\n{info}");
    }
    // Other orders of the nodes are permutations of the same graph.
    for (name, order) in [("degree", "degree"), ("vip", "vip:all:10,5")] {
        let description = build(&scratch, name, &[&flags[..], &["--order", order]].concat());
        assert_eq!(count(&description, "relations", 0, "edges"), 10_556);
        let folder = scratch.path().join(name);
        let positions = numbers(&folder, "ids/node.positions.npy", u32::from_le_bytes);
        let mut original: Vec<(u32, u32)> = edges(&folder, "node__to__node")
            .into_iter()
            .map(|(source, target)| (positions[target as usize], positions[source as usize]))
            .collect();
        original.sort_unstable();
        assert_eq!(original, expected.iter().map(|&(source, target)| (target, source)).collect::<Vec<_>>());
        let info = scratch.call(&["graph", "info", name]).stdout;
        assert!(info.contains(&format!("order {order}, ")), "{info}");
        if name == "vip" {
            assert_eq!(description["vip"]["curves"][0][63], serde_json::json!([2_708, 1_000_000]));
        }
    }
}

#[test]
fn debian_is_built_with_types_and_relations() {
    let Some(folder) = data::graphs("the build of Debian's packages") else { return };
    let scratch = Scratch::new();
    let debian = folder.join("debian");
    let path = |name: &str| debian.join(name).to_str().expect("the path is text").to_owned();
    let (edges_file, packages, x) = (path("edges.parquet"), path("packages.parquet"), path("x.npy"));
    let relation = |name: &str, number: u32| {
        format!(
            "  - source: package\n    name: {name}\n    target: package\n    edges: {edges_file}\n    columns: [from, to]\n    \
             where: {{ relation: {number} }}\n"
        )
    };
    let file = format!(
        "nodes:\n  package:\n    ids: {packages}:package\n    features:\n      x: {x}\n      kib: {{ from: '{packages}:installed_kib', \
         dtype: float32 }}\n    labels:\n      section: {packages}:section\n    seeds:\n      all: all\nrelations:\n{}{}{}  - source: \
         package\n    name: built_from\n    target: source\n    edges: {packages}\n    columns: ['#row', source]\n    reverse: builds\n",
        relation("depends", 0),
        relation("recommends", 1),
        relation("suggests", 2),
    );
    scratch.write("debian.yaml", &file);
    let description = build(&scratch, "g", &["--from", "debian.yaml", "--memory", "8MiB"]);
    let counts: Vec<u64> = (0..2).map(|index| count(&description, "nodes", index, "count")).collect();
    assert_eq!(counts, [63_666, 34_172]);
    let edges: Vec<u64> = (0..5).map(|index| count(&description, "relations", index, "edges")).collect();
    assert_eq!(edges, [247_364, 28_927, 23_253, 63_666, 63_666]);
    assert_eq!(description["relations"][4]["name"], "builds");
    assert_eq!(description["nodes"][0]["features"][0]["dtype"], "float32");
    let offsets = numbers(&scratch.path().join("g"), "ids/package.offsets.npy", u64::from_le_bytes);
    let text = fs::read(scratch.path().join("g/ids/package.text.npy")).expect("the build wrote the ids");
    assert_eq!(&text[128..128 + offsets[1] as usize], b"0ad");
}

/// Folders in the layouts of GraphBolt and OGB. Nodes 0 and 2 lead to 1, and 1 leads to 3.
#[test]
fn datasets_of_other_tools_are_built() {
    let scratch = Scratch::new();
    for folder in ["bolt/edges", "ogb/raw", "ogb/split/time"] {
        fs::create_dir_all(scratch.path().join(folder)).expect("the scratch directory is writable");
    }
    scratch.write("bolt/edges/to.csv", "0,1\n2,1\n1,3\n");
    let metadata = "dataset_name: small\ngraph:\n  nodes:\n  - num: 4\n  edges:\n  - format: csv\n    path: edges/to.csv\n\
                    tasks:\n- name: node_classification\n  num_classes: 2\n";
    scratch.write("bolt/metadata.yaml", metadata);
    scratch.write("ogb/raw/edge.csv", "0,1\n2,1\n1,3\n");
    scratch.write("ogb/raw/node-feat.csv", "0.5,1\n2,3\n4,5\n6,7\n");
    scratch.write("ogb/raw/node-label.csv", "1\n0\n1\n0\n");
    scratch.write("ogb/raw/num-node-list.csv", "4\n");
    for (name, seeds) in [("train", "2\n0\n"), ("valid", "1\n"), ("test", "3\n")] {
        scratch.write(&format!("ogb/split/time/{name}.csv"), seeds);
    }
    let description = build(&scratch, "a", &["--graphbolt", "bolt", "--edge-ids"]);
    assert_eq!(count(&description, "nodes", 0, "count"), 4);
    assert!(description["relations"][0]["edge_ids"].is_object());
    assert_eq!(edges(&scratch.path().join("a"), "node__to__node"), [(0, 1), (2, 1), (1, 3)]);
    let flags = ["--ogb", "ogb", "--undirected", "--dtype", "x=float16", "--order", "vip:train:2,2"];
    let description = build(&scratch, "b", &flags);
    assert_eq!(description["nodes"][0]["features"][0]["dtype"], "float16");
    assert_eq!(count(&description, "relations", 0, "edges"), 6);
    assert_eq!(description["vip"]["seeds"], "train");
    let dtype = ["graph", "build", "c", "--ogb", "ogb", "--dtype", "z=float16"];
    let error = sentence(&scratch.call(&dtype), 2);
    assert!(error.contains("the dataset has no feature `z`"), "{error}");
    let error = sentence(&scratch.call(&["graph", "build", "c", "--ogb", "bolt"]), 1);
    assert!(error.contains("there is no folder `raw`"), "{error}");
}

#[test]
fn invalid_calls_and_damaged_graphs_are_rejected_with_one_sentence() {
    let scratch = Scratch::new();
    scratch.write("e.csv", "0,1\n1,2\n2,5\n");
    let error = sentence(&scratch.call(&["graph", "build", "g", "--edges", "none.csv"]), 1);
    assert!(error.contains("`none.csv`: the file does not exist"), "{error}");
    let error = sentence(&scratch.call(&["graph", "build", "g", "--edges", "e.csv", "--nodes", "3"]), 1);
    assert!(error.contains("`e.csv`: row 2: the node 5 does not exist: there are 3 nodes"), "{error}");
    let error =
        sentence(&scratch.call(&["graph", "build", "g", "--edges", "e.csv", "--dtype", "x=float16"]), 2);
    assert!(error.contains("there is no feature `x`"), "{error}");
    assert!(!scratch.path().join("g").exists());
    let order = ["graph", "build", "g", "--edges", "e.csv", "--order", "vip:train:15,10"];
    let error = sentence(&scratch.call(&order), 2);
    assert!(error.contains("the seed set `train`, which does not exist"), "{error}");
    build(&scratch, "g", &["--edges", "e.csv"]);
    let error = sentence(&scratch.call(&["graph", "build", "g", "--edges", "e.csv"]), 1);
    assert!(error.contains("the directory is not empty"), "{error}");
    let path = scratch.path().join("g/topology/node__to__node.sources.npy");
    let mut bytes = fs::read(&path).expect("the build wrote the array");
    bytes[130] ^= 1;
    fs::write(&path, bytes).expect("the array is writable");
    let error = sentence(&scratch.call(&["graph", "check", "g"]), 1);
    assert!(
        error.contains("node__to__node.sources.npy` at byte 128: ") && error.contains("have the hash"),
        "{error}"
    );
    let error = sentence(&scratch.call(&["graph", "info", "no-graph"]), 1);
    assert!(error.contains("graph.json` does not exist"), "{error}");
}

/// Returns the peak resident bytes of a process until it ends, without code.
fn peak_bytes(process: &mut Child) -> u64 {
    let mut peak = 0;
    while process.try_wait().expect("the process can be observed").is_none() {
        let status = fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap_or_default();
        let bytes = |field: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(field));
            line.and_then(|size| size.trim().strip_suffix(" kB")?.parse::<u64>().ok())
                .map_or(0, |kib| kib << 10)
        };
        peak = peak.max(bytes("VmHWM:").saturating_sub(bytes("RssFile:")));
    }
    peak
}

/// The edges with their weights, times and positions have six times the memory of the build.
#[test]
fn a_build_keeps_its_memory_limit() {
    const LIMIT: u64 = 32 << 20;
    /// Stacks, decoders and buffers of files.
    const BESIDE_BYTES: u64 = 48 << 20;
    let scratch = Scratch::new();
    scratch.make_data(
        "graph",
        "input",
        &["--nodes", "1e5", "--edges", "3e6", "--format", "parquet", "--weights", "--times", "--seed", "1"],
    );
    let mut build = Command::new(feedline())
        .args([
            "graph",
            "build",
            "g",
            "--edges",
            "input/edges.parquet",
            "--weight",
            "weight",
            "--time",
            "time",
        ])
        .args(["--edge-ids", "--memory", "32MiB", "--cores", "2"])
        .current_dir(scratch.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary starts");
    let peak = peak_bytes(&mut build);
    assert!(build.wait().expect("the build has ended").success());
    assert!(peak < LIMIT * 13 / 10 + BESIDE_BYTES, "the peak is {} MiB", peak >> 20);
    assert!(peak > LIMIT / 4, "the peak is {} MiB, so the test measured nothing", peak >> 20);
}

/// A build that is killed leaves no folder at its path, and the next build removes the rest.
#[test]
fn a_killed_build_leaves_nothing_that_looks_complete() {
    let scratch = Scratch::new();
    let lines: String =
        (0..2_000_000_u64).map(|edge| format!("{},{}\n", edge % 90_001, edge * 7 % 90_007)).collect();
    scratch.write("e.csv", &lines);
    let mut build = Command::new(feedline())
        .args(["graph", "build", "g", "--edges", "e.csv", "--memory", "32MiB"])
        .current_dir(scratch.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary starts");
    let staging = scratch.path().join(".g.building");
    wait_for("the build to start", || staging.join("spill/edges-0").exists().then_some(()));
    build.kill().expect("the build runs");
    build.wait().expect("the build has ended");
    assert!(staging.exists() && !scratch.path().join("g").exists());
    let again = scratch.call(&["graph", "build", "g", "--edges", "e.csv", "--memory", "32MiB"]);
    assert_eq!(again.status, 0, "{}", again.stderr);
    assert!(!staging.exists() && scratch.path().join("g/graph.json").exists());
}
