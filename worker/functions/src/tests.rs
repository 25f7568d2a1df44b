//! Runs functions in real processes on small chunks. Tests are skipped with a message if target/venv does not exist.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, ListArray, StringViewArray};
use arrow::datatypes::{Float32Type, Int32Type, Int64Type};
use feedline_data::pipeline::{ElementType, Function, FunctionEnvironment, FunctionOutput};
use feedline_data::schema::{ColumnType, Field, ScalarType};
use feedline_operators::{Chunk, Column, FunctionCall, Image, OutputBuffers, Tensor};

use crate::{ChunkOutcome, FunctionSettings, RowFunction};

mod source_columns;

const MODULE: &str = r#"
import ctypes, os, subprocess, sys, time
import numpy as np

def double(batch):
    return {"y": batch["x"] * 2, "seen": np.full(len(batch["x"]), len(batch["x"]))}

def in_place(batch):
    batch["x"] += 1
    return {"x": batch["x"]}

def every(batch):
    words = [text.split() if text is not None else [] for text in batch["text"]]
    heights = [image.shape[0] + int(image.sum()) for image in batch["image"]]
    return {
        "upper": [str(text).upper() for text in batch["text"]],
        "words": words,
        "sums": [np.cumsum(row).astype(np.int32) for row in batch["list"]],
        "raw": [bytes(data)[::-1] for data in batch["raw"]],
        "height": np.array(heights, np.int64),
        "mean": batch["tensor"].mean(axis=(1, 2), dtype=np.float32),
        "flags": batch["tensor"] > 3,
    }

def picky(batch):
    if 5 in batch["x"]:
        raise ValueError("five is right out")
    return {"y": batch["x"]}

def segfaults(batch):
    if 5 in batch["x"]:
        ctypes.string_at(0)
    return {"y": batch["x"]}

def quits(batch):
    if 5 in batch["x"]:
        raise SystemExit("no fives")
    return {"y": batch["x"]}

def exits(batch):
    if 5 in batch["x"]:
        os._exit(3)
    return {"y": batch["x"]}

def sleeps(batch):
    if 5 in batch["x"]:
        time.sleep(1000)
    return {"y": batch["x"]}

def leaks(batch):
    if 5 in batch["x"]:
        hoard = []
        while True:
            hoard.append(bytearray(os.urandom(1 << 20)))
    return {"y": batch["x"]}

def once(batch):
    marker = os.path.join(os.path.dirname(__file__), "marker")
    if not os.path.exists(marker):
        open(marker, "w").close()
        os.abort()
    return {"y": batch["x"]}

def hires(batch):
    if 5 in batch["x"]:
        hoard = "hoard = b'x' * (400 << 20); import time; time.sleep(1000)"
        subprocess.run([sys.executable, "-c", hoard])
    return {"y": batch["x"]}

def forks(batch):
    much = np.ones(200 << 20, np.uint8)
    child = os.fork()
    if child == 0:
        time.sleep(0.2)
        os._exit(int(much[0]))
    return {"y": batch["x"] + os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}

def drops(batch):
    return {"y": batch["x"][batch["x"] != 5]}

def floats(batch):
    return {"y": batch["x"] / 2}

def forgets(batch):
    return {"z": batch["x"]}

def lists(batch):
    return [1, 2]

def seeded(batch, seeds):
    return {"y": (seeds >> np.uint64(1)).astype(np.int64)}

def generators(batch, rngs):
    return {"y": np.array([rng.integers(1 << 40) for rng in rngs])}

def even(batch):
    return batch["x"] % 2 == 0

def even_numbers(batch):
    return batch["x"] % 2

def describe(batch):
    def plain(value):
        return None if value is None else [plain(row) for row in value] if value.dtype == object else value.tolist()
    rows = range(len(next(iter(batch.values()))))
    return {"seen": [" ".join(f"{name}={plain(values[row])}" for name, values in batch.items()) for row in rows]}
"#;

/// The interpreter that `make test` prepares.
#[expect(clippy::disallowed_methods, reason = "continuous integration must not skip a test")]
fn python() -> Option<PathBuf> {
    let test = std::env::current_exe().ok()?;
    let target = test.ancestors().nth(3)?.to_owned();
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
    let found =
        [target, beside].into_iter().map(|target| target.join("venv/bin/python")).find(|path| path.exists());
    if found.is_none() {
        assert!(std::env::var_os("CI").is_none(), "target/venv is missing: run `make python`");
        eprintln!("skipped: Python functions need target/venv (`make test` prepares it)");
    }
    found
}

/// A directory with the test module, and the settings that run its functions.
struct Scene {
    folder: tempfile::TempDir,
    settings: FunctionSettings,
}

impl Scene {
    fn new() -> Option<Self> {
        let settings = FunctionSettings { python: python()?, environment: Vec::new() };
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("mine.py"), MODULE).unwrap();
        Some(Self { folder, settings })
    }

    fn function(&self, name: &str) -> Function {
        let path = vec![self.folder.path().to_str().unwrap().to_owned()];
        let made = Function { path, timeout_s: 300, ..Function::new(format!("mine:{name}")) };
        made.output("y", FunctionOutput::numbers(ScalarType::Int64, []))
    }

    fn run(&self, function: Function, inputs: &[Field], chunk: Chunk) -> Result<ChunkOutcome, String> {
        let is_filter = function.outputs.is_empty();
        let call =
            FunctionCall { function, is_filter, index: 0, draw_key: 0, seed: 7, inputs: inputs.to_vec() };
        let function = RowFunction::new(Arc::new(call), self.settings.clone(), 1, &Arc::default());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(function.apply(chunk, OutputBuffers::new(), false))
    }

    fn of_numbers(&self, name: &str) -> (Vec<i64>, Vec<(u32, String)>) {
        let applied = self.run(self.function(name), &x(), numbers(8)).unwrap();
        (values(&applied.chunk, "y"), applied.chunk.failures)
    }
}

fn x() -> Vec<Field> {
    vec![Field { name: "x".to_owned(), column_type: ColumnType::Scalar(ScalarType::Int64) }]
}

fn numbers(rows: u64) -> Chunk {
    let x: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows as i64));
    Chunk::new(vec![("x".to_owned(), Column::Arrow(x))], (0..rows).collect(), vec![0; rows as usize])
}

fn array<'a>(chunk: &'a Chunk, column: &str) -> &'a ArrayRef {
    match chunk.column(column) {
        Some(Column::Arrow(array)) => array,
        other => panic!("{column}: {other:?}"),
    }
}

fn values(chunk: &Chunk, column: &str) -> Vec<i64> {
    array(chunk, column).as_primitive::<Int64Type>().values().to_vec()
}

#[test]
fn functions_add_and_replace_columns_and_calls_are_limited_in_rows() {
    let Some(scene) = Scene::new() else { return };
    let seen = FunctionOutput::numbers(ScalarType::Int64, []);
    let function = Function { rows: Some(3), ..scene.function("double").output("seen", seen) };
    let applied = scene.run(function, &x(), numbers(8)).unwrap();
    assert_eq!(values(&applied.chunk, "y"), [0, 2, 4, 6, 8, 10, 12, 14]);
    assert_eq!(values(&applied.chunk, "seen"), [3, 3, 3, 3, 3, 3, 2, 2]);
    assert_eq!((applied.calls, applied.deaths), (3, 0));
    assert!(applied.process_cpu.as_nanos() > 0 && applied.thread_cpu.as_nanos() > 0);
    let mut function = scene.function("in_place");
    function.outputs = [("x".to_owned(), FunctionOutput::numbers(ScalarType::Int64, []))].into();
    let applied = scene.run(function, &x(), numbers(3)).unwrap();
    assert_eq!(values(&applied.chunk, "x"), [1, 2, 3]);
}

#[test]
fn every_type_is_transferred_in_both_directions() {
    let Some(scene) = Scene::new() else { return };
    let list = |inner| ColumnType::List(Box::new(ColumnType::Scalar(inner)));
    let fields = [
        ("text", ColumnType::Utf8),
        ("raw", ColumnType::Binary),
        ("list", list(ScalarType::Int32)),
        ("image", ColumnType::Image),
        ("tensor", ColumnType::Tensor { scalar: ScalarType::UInt8, shape: vec![2, 2] }),
    ];
    let inputs = fields.map(|(name, column_type)| Field { name: name.to_owned(), column_type });
    let lists =
        ListArray::from_iter_primitive::<Int32Type, _, _>([Some(vec![Some(1), Some(2)]), Some(vec![])]);
    let image = |height, value| Image { width: 1, height, data: vec![value; height as usize * 3].into() };
    let tensor = Tensor {
        scalar: ScalarType::UInt8,
        shape: vec![2, 2],
        data: [1, 2, 3, 4, 5, 5, 5, 5][..].into(),
        rows: 2,
    };
    let texts: ArrayRef = Arc::new(StringViewArray::from(vec![Some("ein größeres Wort"), None]));
    let raw: ArrayRef = Arc::new(arrow::array::BinaryViewArray::from_iter_values([&b"abc"[..], b""]));
    let columns = [
        Column::Arrow(texts),
        Column::Arrow(raw),
        Column::Arrow(Arc::new(lists)),
        Column::Images(vec![image(2, 0), image(3, 1)]),
        Column::Tensor(tensor),
    ];
    let names = inputs.iter().map(|field| field.name.clone());
    let chunk = Chunk::new(names.zip(columns).collect(), vec![0, 1], vec![0, 0]);
    let mut function = scene.function("every");
    function.outputs = [
        ("upper", FunctionOutput::element(ElementType::Text)),
        ("words", FunctionOutput::list(ElementType::Text)),
        ("sums", FunctionOutput::list(ElementType::Number(ScalarType::Int32))),
        ("raw", FunctionOutput::element(ElementType::Bytes)),
        ("height", FunctionOutput::numbers(ScalarType::Int64, [])),
        ("mean", FunctionOutput::numbers(ScalarType::Float32, [])),
        ("flags", FunctionOutput::numbers(ScalarType::Bool, [2, 2])),
    ]
    .map(|(name, output)| (name.to_owned(), output))
    .into();
    let chunk = scene.run(function, &inputs, chunk).unwrap().chunk;
    assert_eq!(chunk.failures, []);
    let upper: Vec<_> = array(&chunk, "upper").as_string_view().iter().flatten().collect();
    assert_eq!(upper, ["EIN GRÖSSERES WORT", "NONE"]);
    let words = array(&chunk, "words").as_list::<i32>().clone();
    let first: Vec<_> = words.value(0).as_string_view().iter().map(|word| word.unwrap().to_owned()).collect();
    assert_eq!(
        (first.as_slice(), words.value(1).len()),
        (&["ein", "größeres", "Wort"].map(String::from)[..], 0)
    );
    let sums = array(&chunk, "sums").as_list::<i32>().value(0);
    assert_eq!(sums.as_primitive::<Int32Type>().values(), &[1, 3]);
    let raw: Vec<_> = array(&chunk, "raw").as_binary_view().iter().flatten().collect();
    assert_eq!(raw, [&b"cba"[..], b""]);
    assert_eq!(values(&chunk, "height"), [2, 3 + 9]);
    assert_eq!(array(&chunk, "mean").as_primitive::<Float32Type>().values(), &[2.5, 5.0]);
    let Some(Column::Tensor(flags)) = chunk.column("flags") else { panic!("`flags` must be a tensor") };
    assert_eq!(flags.data[..], [0, 0, 0, 1, 1, 1, 1, 1]);
}

#[test]
fn one_bad_row_fails_alone_with_its_reason() {
    let Some(scene) = Scene::new() else { return };
    let bounded = |name: &str| {
        // Leaking takes a while on a busy machine.
        let timeout_s = if name == "sleeps" { 1 } else { 300 };
        Function { timeout_s, memory: 256 << 20, ..scene.function(name) }
    };
    for (name, said) in [
        (
            "picky",
            "the function `mine:picky` failed: ValueError: five is right out (at mine.py line 27 in picky: raise",
        ),
        ("segfaults", "the function `mine:segfaults` was killed by signal 11 (segmentation fault)"),
        ("quits", "failed: SystemExit: no fives (at mine.py line"),
        ("exits", "exited with code 3"),
        ("sleeps", "took more than 1 s"),
        ("leaks", "used more than 256 MiB of memory"),
        ("hires", "used more than 256 MiB of memory"),
        ("drops", "failed: `y` has 0 rows, but the function received 1; return one row for each"),
    ] {
        let chunk = scene.run(bounded(name), &x(), numbers(8)).unwrap().chunk;
        assert_eq!(values(&chunk, "y"), [0, 1, 2, 3, 4, 0, 6, 7], "{name}");
        assert!(
            matches!(&chunk.failures[..], [(5, reason)] if reason.contains(said)),
            "{:?}",
            chunk.failures
        );
    }
}

#[test]
fn memory_shared_with_a_forked_process_counts_once() {
    let Some(scene) = Scene::new() else { return };
    let function = Function { memory: 300 << 20, ..scene.function("forks") };
    let ChunkOutcome { chunk, deaths, .. } = scene.run(function, &x(), numbers(8)).unwrap();
    assert_eq!((values(&chunk, "y"), deaths), ((1..9).collect(), 0), "{:?}", chunk.failures);
}

#[test]
fn a_sporadic_crash_loses_no_rows() {
    let Some(scene) = Scene::new() else { return };
    let ChunkOutcome { chunk, calls, deaths, .. } =
        scene.run(scene.function("once"), &x(), numbers(8)).unwrap();
    assert_eq!((values(&chunk, "y"), chunk.failures.len()), ((0..8).collect(), 0));
    assert_eq!((calls, deaths), (2, 1));
}

#[test]
fn errors_of_results_name_the_expected_and_the_actual_type() {
    let Some(scene) = Scene::new() else { return };
    for (name, said) in [
        (
            "floats",
            "`y` is float64, but int64 is declared; return it `.astype(numpy.int64)`, or declare float64",
        ),
        ("forgets", "the function did not return `y`, which `outputs` declares; it returned `z`"),
        ("lists", "the function returned a list, not a dict of arrays"),
    ] {
        let (_, failures) = scene.of_numbers(name);
        assert_eq!(failures.len(), 8);
        assert!(failures.iter().all(|(_, reason)| reason.contains(said)), "{failures:?}");
    }
    let mut function = scene.function("double");
    function.outputs = [("y".to_owned(), FunctionOutput::numbers(ScalarType::Int64, [3]))].into();
    let chunk = scene.run(function, &x(), numbers(1)).unwrap().chunk;
    let [(0, reason)] = &chunk.failures[..] else { panic!("{:?}", chunk.failures) };
    assert!(reason.contains("`y` has a single number per row, but [3] per row is declared"), "{reason}");
}

#[test]
fn no_rows_need_no_process() {
    let settings = FunctionSettings { python: "no-python-here".into(), environment: Vec::new() };
    let scene = Scene { folder: tempfile::tempdir().unwrap(), settings };
    let chunk = scene.run(scene.function("double"), &x(), numbers(0)).unwrap().chunk;
    assert!(values(&chunk, "y").is_empty());
}

#[test]
fn seeds_depend_on_rows_and_not_on_their_grouping() {
    let Some(scene) = Scene::new() else { return };
    for name in ["seeded", "generators"] {
        let drawn = |rows| {
            let function = Function { seeded: true, rows, ..scene.function(name) };
            values(&scene.run(function, &x(), numbers(8)).unwrap().chunk, "y")
        };
        let once = drawn(None);
        assert_eq!(once, drawn(Some(3)), "{name}");
        let different: std::collections::BTreeSet<i64> = once.iter().copied().collect();
        assert_eq!(different.len(), 8, "{name}");
    }
    let refused = scene.run(Function { seeded: true, ..scene.function("double") }, &x(), numbers(8));
    assert!(refused.unwrap_err().contains("has neither the parameter `seeds` nor `rngs`"));
}

#[test]
fn a_filter_keeps_the_rows_for_which_it_returns_true() {
    let Some(scene) = Scene::new() else { return };
    let filter = |name: &str| Function { outputs: Default::default(), ..scene.function(name) };
    let chunk = scene.run(filter("even"), &x(), numbers(8)).unwrap().chunk;
    assert_eq!((values(&chunk, "x"), chunk.origins), (vec![0, 2, 4, 6], vec![0, 2, 4, 6]));
    let chunk = scene.run(filter("even_numbers"), &x(), numbers(1)).unwrap().chunk;
    assert!(chunk.failures[0].1.contains("not 1 booleans"), "{:?}", chunk.failures);
}

#[test]
fn load_errors_name_the_reason_and_the_remedy() {
    let Some(scene) = Scene::new() else { return };
    let environment = |python: &str, package: &str| FunctionEnvironment {
        python: Some(python.to_owned()),
        packages: [(package.to_owned(), "2".to_owned())].into(),
    };
    let sound = || scene.function("double");
    for (function, said) in [
        (
            Function { function: "nowhere:f".to_owned(), ..sound() },
            "module `nowhere` was not found on this worker",
        ),
        (Function { function: "mine:nothing".to_owned(), ..sound() }, "module `mine` has no `nothing`"),
        (
            Function { environment: Some(environment("2.7", "numpy")), ..sound() },
            "requires Python 2.7, but this worker",
        ),
        (
            Function { environment: Some(environment("3", "feedline-none")), ..sound() },
            "requires feedline-none 2, which is not",
        ),
        (
            Function { environment: Some(environment("3", "pip")), ..sound() },
            "requires pip 2, but this worker has",
        ),
        (Function { code: Some("AAAA".to_owned()), ..sound() }, "cannot load the function `mine:double`: "),
    ] {
        let refused = scene.run(function, &x(), numbers(1)).unwrap_err();
        assert!(refused.contains(said), "{refused}");
    }
    let settings = FunctionSettings { python: "no-python-here".into(), environment: Vec::new() };
    let refused = Scene { settings, ..scene }.of_missing_python();
    assert!(refused.contains("cannot start Python as `no-python-here`"), "{refused}");
}

impl Scene {
    fn of_missing_python(&self) -> String {
        self.run(self.function("double"), &x(), numbers(1)).unwrap_err()
    }
}

#[test]
fn a_cancelled_call_frees_its_process() {
    let Some(scene) = Scene::new() else { return };
    let function = scene.function("sleeps");
    let call = FunctionCall { function, is_filter: false, index: 0, draw_key: 0, seed: 7, inputs: x() };
    let function = RowFunction::new(Arc::new(call), scene.settings.clone(), 1, &Arc::default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let soon = std::time::Duration::from_millis(300);
        assert!(
            tokio::time::timeout(soon, function.apply(numbers(8), OutputBuffers::new(), false))
                .await
                .is_err()
        );
        // The only process is available before the time limit of the cancelled call.
        let begun = std::time::Instant::now();
        let rows = function.apply(numbers(4), OutputBuffers::new(), false).await.unwrap();
        assert_eq!(values(&rows.chunk, "y"), [0, 1, 2, 3]);
        assert!(begun.elapsed().as_secs() < 150, "{:?}", begun.elapsed());
    });
}

#[test]
fn shared_memory_counts_until_its_process_exits() {
    let Some(scene) = Scene::new() else { return };
    let held: Arc<AtomicU64> = Arc::default();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let function = |name| {
        let function = scene.function(name);
        let call = FunctionCall { function, is_filter: false, index: 0, draw_key: 0, seed: 7, inputs: x() };
        RowFunction::new(Arc::new(call), scene.settings.clone(), 1, &held)
    };
    let run = |function: &RowFunction, chunk| {
        runtime.block_on(function.apply(chunk, OutputBuffers::new(), false)).unwrap()
    };
    let lives = function("double");
    run(&lives, numbers(100_000));
    let both_ways = held.load(Ordering::Relaxed);
    assert!((1_600_000..4_000_000).contains(&both_ways), "{both_ways}");
    let dies = run(&function("exits"), numbers(100_000));
    assert!(dies.deaths > 8 && dies.chunk.failed_rows().contains(5), "{}", dies.deaths);
    // Each process received all rows. Exited processes release their memory, and one process may still run.
    let after = held.load(Ordering::Relaxed);
    assert!((both_ways..3 * both_ways).contains(&after), "{after} after {both_ways}");
}
