//! Python functions on workers: failed rows have the declared result and a clear message, and each row is delivered once
//! even if function processes crash.

use std::path::{Path, PathBuf};
use std::process::Command;

use feedline_tests::process::Role;
use feedline_tests::running::Running;
use feedline_tests::{
    CACHE_HOME, Call, Scratch, assert_clean, assert_clean_with_skipped, data, feedline, root, wait_for,
};
use serde_json::Value;

/// Bad rows are 77 and, of those that are drawn, none.
const MODULE: &str = r#"
import ctypes, os, time
import numpy as np

def length(batch):
    return {"length": [len(text) for text in batch["payload"]]}

def heavy(batch):
    for _ in batch["id"]:
        end = time.process_time() + 0.004
        while time.process_time() < end:
            pass
    return {"length": batch["id"]}

def picky(batch):
    for row in batch["id"]:
        if row == 77:
            raise ValueError(f"row {row} is right out")
    return {"length": batch["id"]}

def segfaults(batch):
    if 77 in batch["id"]:
        ctypes.string_at(0)
    return {"length": batch["id"]}

def sleeps(batch):
    if 77 in batch["id"]:
        time.sleep(3600)
    return {"length": batch["id"]}

def leaks(batch):
    if 77 in batch["id"]:
        hoard = []
        while True:
            hoard.append(os.urandom(1 << 20))
    return {"length": batch["id"]}

def misshapen(batch):
    if 77 in batch["id"]:
        return {"length": np.zeros((len(batch["id"]), 2), np.int64)}
    return {"length": batch["id"]}

def crashes_once(batch):
    marker = os.path.join(os.path.dirname(__file__), f"marker-{batch['id'][0]}")
    # Each crash costs the start of an interpreter.
    if batch['id'][0] % 5 == 0 and not os.path.exists(marker):
        open(marker, "w").close()
        os.abort()
    return {"length": batch["id"]}

def draw(batch, rngs):
    return {"length": [int(rng.integers(1 << 40)) for rng in rngs]}

def draw_tensor(batch, seeds):
    shift = np.arange(8, dtype=np.uint64)[None, :]
    return {"length": (seeds[:, None] >> shift).astype(np.uint8).astype(np.float32)}

def tells_its_process(batch):
    with open(os.path.join(os.path.dirname(__file__), "started"), "a") as started:
        print(os.getpid(), file=started)
    time.sleep(3600)

def abandons(batch):
    # The new parent of the second child must reap it, when the first child has exited.
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        orphan = os.fork()
        if orphan:
            os.write(write, str(orphan).encode())
        os._exit(0)
    os.waitpid(child, 0)
    orphan = os.read(read, 20).decode()
    os.close(read), os.close(write)
    end = time.monotonic() + 20
    while os.path.exists(f"/proc/{orphan}"):
        if time.monotonic() > end:
            raise TimeoutError("nobody reaped the orphan")
        time.sleep(0.01)
    return {"length": batch["id"]}

def wanted(batch):
    return batch["label"] == 3
"#;

/// Runs a program as a subreaper, which is the parent of orphans like the process 1 of a container.
const SUBREAPER: &str =
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(36, 1, 0, 0, 0); os.execv(sys.argv[1], sys.argv[1:])";

/// A table of 400 rows in four shards, a module, and a Python with NumPy.
struct Scene {
    scratch: Scratch,
    python: PathBuf,
}

impl Scene {
    fn new(what: &str) -> Option<Self> {
        let python = data::python(what)?;
        let scratch = Scratch::new();
        scratch.make_data("table", "table", &["--format", "jsonl", "--rows", "400", "--shards", "4"]);
        scratch.write("mine.py", MODULE);
        Some(Self { scratch, python })
    }

    fn map(&self, function: &str, more: &str) -> String {
        let path = self.scratch.path().display();
        format!(
            "map: {{ function: \"mine:{function}\", path: [\"{path}\"], outputs: {{ length: {{ dtype: int64 }} }}{more} }}"
        )
    }

    fn write(&self, name: &str, operator: &str, more: &str) -> String {
        let text = format!(
            "name: {name}\nsource: {{ url: \"{}/*\", format: jsonl }}\nseed: 5\nshuffle: {{ window: 256 }}\n{more}\n\
             operators:\n  - {operator}\n  - batch: {{ size: 32 }}\n",
            self.scratch.file("table")
        );
        self.scratch.write(&format!("{name}.yaml"), &text)
    }

    fn call(&self, file: &str, more: &[&str]) -> Call {
        let python = self.python.to_str().expect("the path is text");
        let mut arguments = vec!["run", file, "--report", "json", "--audit", "--python", python];
        arguments.extend(more);
        self.scratch.call(&arguments)
    }

    fn run(&self, file: &str, more: &[&str]) -> Value {
        self.call(file, more).report()
    }
}

/// Returns the error message that a failed call prints.
fn sentence(call: &Call) -> &str {
    assert_eq!(call.status, 1, "{call:?}");
    // A line about slow rows may precede it.
    call.stderr.lines().rfind(|line| line.starts_with("feedline: ")).expect("it says why")
}

#[test]
fn one_bad_row_has_the_declared_result_and_a_clear_message() {
    let Some(scene) = Scene::new("running Python functions") else { return };
    for (function, said) in [
        ("picky", "`mine:picky` failed: ValueError: row 77 is right out (at mine.py line"),
        ("segfaults", "`mine:segfaults` was killed by signal 11 (segmentation fault)"),
        ("sleeps", "`mine:sleeps` took more than 1 s"),
        ("leaks", "`mine:leaks` used more than 300 MiB of memory"),
        ("misshapen", "failed: `length` has [2] per row, but a single number per row is declared"),
    ] {
        // On a busy machine, a leak takes some time to appear.
        let timeout_s = if function == "sleeps" { 1 } else { 30 };
        let bounds = format!(", timeout_s: {timeout_s}, memory: 300MiB, rows: 8");
        for (on_error, rows) in [("skip", 399), ("replace", 400)] {
            let name = format!("{function}-{on_error}");
            let file = scene.write(&name, &scene.map(function, &bounds), &format!("on_error: {on_error}"));
            let report = scene.run(&file, &[]);
            assert_clean_with_skipped(&report, 400 - rows);
            assert_eq!((&report["rows"], &report["skipped"]["count"]), (&rows.into(), &1.into()), "{report}");
            let failed = &report["skipped"]["first"][0];
            assert_eq!(failed["row"], 77, "{failed}");
            assert!(failed["reason"].as_str().is_some_and(|reason| reason.contains(said)), "{failed}");
            assert!(failed["shard"].as_str().is_some_and(|shard| shard.contains("table")), "{failed}");
        }
        let file = scene.write(&format!("{function}-fail"), &scene.map(function, &bounds), "on_error: fail");
        let call = scene.call(&file, &[]);
        let failed = sentence(&call);
        assert!(failed.contains(said) && failed.contains("row 77 at byte"), "{failed}");
    }
}

#[test]
fn crashed_processes_lose_no_row() {
    let Some(scene) = Scene::new("running Python functions that crash") else { return };
    let plain = scene.write("plain", &scene.map("picky", ", version: a"), "on_error: skip");
    let crashing = scene.write("crashing", &scene.map("crashes_once", ""), "");
    let report = scene.run(&crashing, &[]);
    assert_clean(&report);
    assert_eq!(report["rows"], 400, "{report}");
    let cache_is_of_no_use = scene.run(&plain, &["--epochs", "2"]);
    assert_eq!(cache_is_of_no_use["rows"], 798);
}

#[test]
fn seeded_rows_do_not_depend_on_workers_or_groups() {
    let Some(scene) = Scene::new("drawing in Python functions") else { return };
    let tensor = scene.map("draw_tensor", ", seeded: true").replace("int64", "float32, shape: [8]");
    for (name, operator) in [("draw", scene.map("draw", ", seeded: true")), ("tensor", tensor)] {
        let file = scene.write(name, &operator, "");
        let small = scene.write(&format!("{name}-small"), &operator.replace("seeded", "rows: 5, seeded"), "");
        let one = scene.run(&file, &["--epochs", "2"]);
        assert_clean(&one);
        for (file, workers) in [(&file, "3"), (&small, "1")] {
            let other = scene.run(file, &["--epochs", "2", "--workers", workers]);
            assert_eq!(other["digest"], one["digest"], "{name}, {workers} workers");
        }
        let first = scene.run(&file, &[]);
        assert_ne!(first["content_digest"], one["content_digest"], "each pass draws anew");
    }
}

#[test]
fn a_function_filters_as_an_expression_does() {
    let Some(scene) = Scene::new("filtering by Python functions") else { return };
    let path = scene.scratch.path().display();
    let function =
        format!("filter_function: {{ function: \"mine:wanted\", path: [\"{path}\"], columns: [label] }}");
    let function = scene.run(&scene.write("function", &function, ""), &[]);
    let expression = scene.run(&scene.write("expression", "filter: { where: label = 3 }", ""), &[]);
    assert_clean(&function);
    assert_eq!(function["digest"], expression["digest"]);
    assert!(function["rows"].as_u64().is_some_and(|rows| rows > 0 && rows < 400), "{function}");
}

#[test]
fn the_report_contains_the_cost_of_a_function() {
    let Some(scene) = Scene::new("tracing Python functions") else { return };
    let file = scene.write("heavy", &scene.map("heavy", ""), "");
    let report = scene.run(&file, &[]);
    let operators = report["operators"].as_array().expect("the report lists operators");
    let map = operators.iter().find(|operator| operator["name"] == "map").expect("it is one of them");
    assert_eq!((&map["rows_in"], &map["rows_out"]), (&400.into(), &400.into()), "{map}");
    let cpu = map["cpu_seconds"].as_f64().expect("a number");
    assert!((1.5..4.0).contains(&cpu), "400 rows of 4 ms: {map}");
    let python = scene.python.to_str().expect("the path is text");
    let call = scene.scratch.call(&["explain", &file, "--format", "json", "--python", python]);
    let explained = call.last_json();
    assert_eq!(explained["bottleneck"]["operator"], "map", "{explained}");
}

#[test]
fn a_worker_without_functions_rejects_a_job_with_functions() {
    let Some(scene) = Scene::new("refusing Python functions") else { return };
    let file = scene.write("refused", &scene.map("length", ""), "");
    let call = scene.scratch.call(&["run", &file, "--report", "json", "--functions", "off"]);
    let failed = sentence(&call);
    for part in ["operator 1 (map)", "does not run Python functions", "`mine:length`", "--functions on"] {
        assert!(failed.contains(part), "{failed}");
    }
    let missing = scene.write("missing", &scene.map("length", "").replace("mine:", "nowhere:"), "");
    let call = scene.call(&missing, &[]);
    assert!(sentence(&call).contains("module `nowhere` was not found on this worker"), "{}", call.stderr);
    let python = scene.python.to_str().expect("the path is text");
    let up = ["up", "--listen", "127.0.0.1:0", "--functions"];
    for (functions, status) in [(&["on", "--python", python][..], 0), (&["off"], 1)] {
        let role = Role::start(&[&up[..], functions].concat(), &[]);
        let call = scene.scratch.call(&["run", &file, "--coordinator", &role.url(), "--report", "json"]);
        assert_eq!(call.status, status, "{call:?}");
    }
}

/// Returns the output of the interpreter.
fn printed(python: &Path, arguments: &[&str]) -> String {
    let output = Command::new(python).args(arguments).output().expect("Python starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn a_pickled_function_runs_in_its_own_version_of_python() {
    let Some(scene) = Scene::new("pickling Python functions") else { return };
    let pickle = "import base64, cloudpickle, sys
add = 4
def function(batch):
    return {'length': batch['id'] + add}
print(base64.b64encode(cloudpickle.dumps(function)).decode(), '%d.%d' % sys.version_info[:2])";
    let line = printed(&scene.python, &["-c", pickle]);
    let (code, python) = line.split_once(' ').expect("it prints two words");
    let pickled = |python: &str| {
        format!(
            "map: {{ function: added, code: {code}, columns: [id], outputs: {{ length: {{ dtype: int64 }} }}, \
             environment: {{ python: \"{python}\", packages: {{ numpy: \"2\" }} }} }}"
        )
    };
    let report = scene.run(&scene.write("pickled", &pickled(python), ""), &["--workers", "2"]);
    assert_clean(&report);
    assert_eq!(report["rows"], 400);
    let call = scene.call(&scene.write("other", &pickled("2.7"), ""), &[]);
    assert!(
        sentence(&call).contains("the function requires Python 2.7, but this worker runs"),
        "{}",
        call.stderr
    );
}

#[test]
fn function_processes_exit_with_a_killed_worker() {
    let Some(scene) = Scene::new("killing a worker with Python functions") else { return };
    let file = scene.write("killed", &scene.map("tells_its_process", ""), "");
    let python = scene.python.to_str().expect("the path is text");
    let running = Running::start(&["run", &file, "--python", python]);
    let started = scene.scratch.file("started");
    let processes: Vec<u32> = wait_for("the process of a function", || {
        let text = std::fs::read_to_string(&started).ok().filter(|text| text.ends_with('\n'))?;
        text.lines().map(|line| line.parse().ok()).collect()
    });
    running.kill();
    // A zombie process has no memory.
    let runs = |process: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{process}/status"));
        status.is_ok_and(|status| status.contains("VmRSS"))
    };
    wait_for("its end", || (!processes.iter().any(runs)).then_some(()));
}

#[test]
fn the_python_runner_passes_its_tests() {
    let Some(python) = data::python("the tests of what runs Python functions") else { return };
    let folder = root().join("worker/functions/python");
    let folder = folder.to_str().expect("the path is text");
    let said = printed(&python, &["-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", folder]);
    assert!(said.contains(" passed"), "{said}");
}

#[test]
fn the_example_with_functions_runs() {
    let Some(scene) = Scene::new("the example of Python functions") else { return };
    scene.scratch.make_data("text", "data/pairs", &["--format", "jsonl", "--rows", "300"]);
    std::fs::create_dir(scene.scratch.path().join("examples")).expect("the scratch directory is writable");
    for name in ["examples/functions.py", "examples/functions.yaml"] {
        std::fs::copy(root().join(name), scene.scratch.path().join(name)).expect("the example exists");
    }
    let report = scene.run("examples/functions.yaml", &[]);
    assert_clean(&report);
    assert!(report["rows"].as_u64().is_some_and(|rows| rows > 0), "{report}");
}

/// A process that reaps orphans still reads the exit status of its function processes.
#[test]
fn orphans_of_functions_are_reaped() {
    let Some(scene) = Scene::new("reaping orphans of Python functions") else { return };
    let call_as_subreaper = |file: &str| {
        let python = scene.python.to_str().expect("the path is text");
        let mut command = Command::new("timeout");
        command.args(["--signal=KILL", "120", python, "-c", SUBREAPER]).arg(feedline());
        command.args(["run", file, "--report", "json", "--audit", "--python", python]);
        command.env(CACHE_HOME, scene.scratch.cache());
        Call::from(command.output().expect("Python starts"))
    };
    let call = call_as_subreaper(&scene.write("abandons", &scene.map("abandons", ""), ""));
    assert_clean(&call.report());
    let call = call_as_subreaper(&scene.write("segfaults", &scene.map("segfaults", ""), ""));
    assert!(sentence(&call).contains("was killed by signal 11 (segmentation fault)"), "{}", call.stderr);
}
