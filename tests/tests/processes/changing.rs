//! Datasets that change: shards are uploaded again, overwritten, added and removed between jobs and during a job.

use std::fs::{self, File};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use feedline_tests::http::free_ports;
use feedline_tests::process::Role;
use feedline_tests::{Call, Scratch, assert_clean, cache_home, feedline, wait_for, wait_for_rows};
use serde_json::Value;

const SHARDS: usize = 4;
const ROWS: usize = 50;

/// A dataset of JSON lines and a pipeline that reads it.
struct Data {
    scratch: Scratch,
    file: String,
}

impl Data {
    /// Creates shards whose rows have this number of bytes.
    fn new(row_bytes: usize, operators: &str) -> Self {
        let scratch = Scratch::new();
        fs::create_dir(scratch.path().join("data")).expect("the scratch directory is writable");
        let text = format!(
            "name: job\nseed: 3\nsource: {{ url: \"{}/*\", format: jsonl }}\nshuffle: {{ window: 64 }}\n\
             operators: [ {operators}batch: {{ size: 10 }} ]",
            scratch.file("data")
        );
        let file = scratch.write("job.yaml", &text);
        let data = Self { scratch, file };
        (0..SHARDS).for_each(|shard| data.write(shard, 'a', row_bytes));
        data
    }

    fn path(&self, shard: usize) -> String {
        self.scratch.file(&format!("data/{shard}.jsonl"))
    }

    /// Writes a shard. All versions of a shard have the same size and number of rows.
    fn write(&self, shard: usize, version: char, row_bytes: usize) {
        let row = |row: usize| {
            let padding = String::from(version).repeat(row_bytes);
            format!("{{\"id\": \"{shard:03}-{row:03}\", \"text\": \"{padding}\"}}\n")
        };
        fs::write(self.path(shard), (0..ROWS).map(row).collect::<String>())
            .expect("the directory is writable");
    }

    /// Sets another modification time, as an upload of the same bytes does.
    fn touch(&self, shard: usize) {
        let file = File::options().write(true).open(self.path(shard)).expect("the shard exists");
        file.set_modified(SystemTime::now() + Duration::from_secs(5)).expect("the shard is writable");
    }

    fn call(&self, arguments: &[&str]) -> Call {
        self.scratch.call(&[&["run", &self.file, "--report", "json"][..], arguments].concat())
    }

    fn run(&self, arguments: &[&str]) -> Value {
        let report = self.scratch.run(&self.file, arguments);
        assert_clean(&report);
        report
    }

    fn coordinator(&self) -> Role {
        let folder = self.scratch.file("coordinator");
        // Rows in an automatic cache are not read again.
        Role::start(
            &["coordinator", "--listen", "127.0.0.1:0", "--data-dir", &folder, "--auto-cache", "off"],
            &[],
        )
    }

    /// The digest of a run that has no stored index and no cached rows.
    fn fresh_digest(&self) -> Value {
        let index = tempfile_folder(&self.scratch);
        self.run(&["--index-dir", &index])["digest"].clone()
    }
}

/// Returns a new directory.
fn tempfile_folder(scratch: &Scratch) -> String {
    let taken = |number: &usize| scratch.path().join(format!("index-{number}")).exists();
    let number = (0..).find(|number| !taken(number)).expect("few directories are used");
    scratch.file(&format!("index-{number}"))
}

#[test]
fn later_jobs_index_only_the_shards_that_changed() {
    let data = Data::new(20, "");
    let first = data.run(&[])["digest"].clone();
    data.touch(1);
    let call = data.call(&[]);
    assert_eq!(call.report()["digest"], first, "the same bytes were uploaded again");
    let said = "1 of 4 shards changed since they were indexed; indexed them again";
    assert!(call.stderr.contains(said), "{}", call.stderr);
    let again = data.call(&[]);
    assert!(again.status == 0 && !again.stderr.contains("shards changed"), "{}", again.stderr);

    data.write(1, 'b', 20);
    data.write(SHARDS, 'a', 20);
    fs::remove_file(data.path(0)).expect("it exists");
    let index = data.scratch.call(&["index", &data.file]);
    assert_eq!(index.status, 0, "{}", index.stderr);
    let said =
        "3 of 4 shards changed since they were indexed (1 rewritten, 1 added, 1 removed); indexed them again";
    assert!(index.stdout.contains(said), "{}", index.stdout);
    let changed = data.run(&[])["digest"].clone();
    assert_ne!(changed, first);
    assert_eq!(changed, data.fresh_digest());
}

#[test]
fn cached_rows_of_an_overwritten_shard_are_never_served() {
    for tier in ["memory", "disk", "store"] {
        let data = Data::new(20, &format!("burn: {{ cpu_us: 1 }}, cache: {{ tier: {tier} }}, "));
        let (rows, store) = (data.scratch.file("rows"), data.scratch.file("store"));
        let coordinator = data.coordinator();
        let url = coordinator.url();
        let flags =
            ["--coordinator", &url, "--listen", "127.0.0.1:0", "--cache-dir", &rows, "--cache-store", &store];
        let start = || Role::start(&[&["worker"][..], &flags[..]].concat(), &[]);
        let worker = start();
        let run = || data.run(&["--coordinator", &url])["digest"].clone();
        let first = run();
        assert_eq!(run(), first);
        data.write(2, 'b', 20);
        let changed = data.fresh_digest_without_cache();
        assert_ne!(changed, first);
        assert_eq!(run(), changed, "{tier}: the worker has cached rows and the index of the earlier content");
        assert_eq!(worker.terminate(), 0);
        let _worker = start();
        assert_eq!(run(), changed, "{tier}: a new worker has the same directories");
        data.write(2, 'a', 20);
        assert_eq!(run(), first, "{tier}: the first content is back");
    }
}

impl Data {
    /// The digest of a run without caches.
    fn fresh_digest_without_cache(&self) -> Value {
        let text = fs::read_to_string(&self.file).expect("the pipeline was written");
        let plain: Vec<&str> = text.split("cache: {").collect();
        let plain = match plain.as_slice() {
            [before, after] => format!("{before}{}", after.split_once("}, ").expect("a cache operator").1),
            _ => text.clone(),
        };
        let file = self.scratch.write("plain.yaml", &plain);
        let index = tempfile_folder(&self.scratch);
        self.scratch.run(&file, &["--index-dir", &index])["digest"].clone()
    }
}

#[test]
fn a_resume_continues_after_an_upload_of_the_same_bytes_and_names_other_changes() {
    let data = Data::new(20, "");
    let whole = data.run(&[])["digest"].clone();
    let position = data.scratch.file("position.json");
    data.call(&["--limit", "60", "--position", &position]).report();
    let saved = fs::read(&position).expect("the position was written");
    let resume = |flags: &[&str]| {
        fs::write(&position, &saved).expect("the scratch directory is writable");
        data.call(&[&["--position", &position][..], flags].concat())
    };
    (0..SHARDS).for_each(|shard| data.touch(shard));
    assert_eq!(resume(&[]).report()["digest"], whole, "the same bytes");

    data.write(1, 'b', 20);
    data.write(7, 'a', 20);
    fs::remove_file(data.path(3)).expect("it exists");
    for flags in [&[][..], &["--accept-reuploaded"]] {
        let call = resume(flags);
        assert_ne!(call.status, 0);
        for part in
            ["rewritten", "1.jsonl", "added", "7.jsonl", "removed", "3.jsonl", "start without the position"]
        {
            assert!(call.stderr.contains(part), "{part}: {}", call.stderr);
        }
    }
    // Another job indexes the changed dataset. The shards are still named.
    data.run(&[]);
    let call = resume(&[]);
    assert!(call.status != 0 && call.stderr.contains("1.jsonl"), "{}", call.stderr);
    // A coordinator without the earlier index cannot name them.
    let index = tempfile_folder(&data.scratch);
    let call = resume(&["--index-dir", &index]);
    assert!(call.status != 0 && call.stderr.contains("not available to name the shards"), "{}", call.stderr);

    data.write(1, 'a', 20);
    data.write(3, 'a', 20);
    fs::remove_file(data.path(7)).expect("it exists");
    assert_eq!(resume(&[]).report()["digest"], whole, "the original shards are back");
}

#[test]
fn a_resume_with_shards_that_are_read_in_part_must_be_accepted() {
    let scratch = Scratch::new();
    let shard = ["--format", "parquet", "--rows", "40000", "--shards", "2"];
    scratch.make_data("table", "table", &shard);
    let text = format!(
        "name: job\nsource: {{ url: \"{}/*\", format: parquet }}\noperators: [ batch: {{ size: 500 }} ]",
        scratch.file("table")
    );
    let file = scratch.write("job.yaml", &text);
    let run = |flags: &[&str]| scratch.call(&[&["run", &file, "--report", "json"][..], flags].concat());
    let whole = run(&[]).report()["digest"].clone();
    let position = scratch.file("position.json");
    run(&["--limit", "2000", "--position", &position]).report();
    let mut shards: Vec<_> = fs::read_dir(scratch.file("table"))
        .expect("made above")
        .map(|entry| entry.expect("readable").path())
        .collect();
    shards.sort();
    let written = File::options().write(true).open(&shards[1]).expect("it exists");
    written.set_modified(SystemTime::now() + Duration::from_secs(5)).expect("writable");
    let refused = run(&["--position", &position]);
    let name = shards[1].file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
    assert_ne!(refused.status, 0);
    assert!(
        refused.stderr.contains("--accept-reuploaded") && refused.stderr.contains(&name),
        "{}",
        refused.stderr
    );
    let accepted = run(&["--position", &position, "--accept-reuploaded"]);
    assert_eq!(accepted.report()["digest"], whole);
}

#[test]
fn a_resume_with_another_pipeline_must_be_accepted() {
    let data = Data::new(100, "");
    let text = fs::read_to_string(&data.file).expect("the pipeline was written");
    let position = data.scratch.file("position.json");
    let first = data.call(&["--position", &position, "--limit", "100"]).report();
    let changed = |name: &str, from: &str, to: &str| data.scratch.write(name, &text.replace(from, to));
    let larger = changed("larger.yaml", "batch: { size: 10 }", "batch: { size: 20 }");
    let renamed = changed("select.yaml", "operators: [ ", "operators: [ select: { columns: [id] }, ");
    let resume = |file: &str, flags: &[&str]| {
        let saved = data.scratch.file("copy.json");
        fs::copy(&position, &saved).expect("the position was saved");
        data.scratch.call(&[&["run", file, "--report", "json", "--position", &saved][..], flags].concat())
    };
    let refused = resume(&renamed, &[]);
    assert_ne!(refused.status, 0);
    for part in ["a different pipeline (the operator `select` was added)", "--accept-changed-pipeline"] {
        assert!(refused.stderr.contains(part), "{part}: {}", refused.stderr);
    }
    let refused = resume(&larger, &["--accept-changed-pipeline"]);
    assert!(refused.stderr.contains("`batch` must not change"), "{}", refused.stderr);
    let rest = resume(&renamed, &["--accept-changed-pipeline"]).report();
    let rows = |report: &Value| report["rows"].as_u64().expect("a number");
    assert_eq!(rows(&first) + rows(&rest), rows(&data.call(&[]).report()));
}

/// Rows of 5 KB are read one by one, so every epoch reads them again.
#[test]
fn a_change_during_a_job_fails_the_job_and_names_the_shard() {
    let data = Data::new(5_000, "");
    let coordinator = data.coordinator();
    let url = coordinator.url();
    let _worker = Role::start(&["worker", "--coordinator", &url, "--listen", "127.0.0.1:0"], &[]);
    let arguments = ["run", &data.file, "--coordinator", &url, "--epochs", "5000", "--buffer", "1MiB"];
    let cache = cache_home();
    let mut command = Command::new(feedline());
    command.args(arguments).env("XDG_CACHE_HOME", cache.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("the binary starts");
    wait_for_rows(&url, 200);
    data.write(2, 'b', 5_000);
    let output = child.wait_with_output().expect("it was started here");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("2.jsonl") && said.contains("changed after indexing"), "{said}");
    // A new job indexes the changed shard.
    let report = data.run(&["--coordinator", &url]);
    assert_eq!(report["digest"], data.fresh_digest());
}

/// A running job keeps its index although a later job has indexed the changed dataset, and although its workers are new.
#[test]
fn a_running_job_keeps_its_index_when_a_later_job_indexes_again() {
    let data = Data::new(20, "");
    let coordinator = data.coordinator();
    let url = coordinator.url();
    let worker = || Role::start(&["worker", "--coordinator", &url, "--listen", "127.0.0.1:0"], &[]);
    let first = worker();
    let whole = data.fresh_digest();
    let cache = cache_home();
    let arguments = [
        "run",
        &data.file,
        "--coordinator",
        &url,
        "--step-ms",
        "300",
        "--buffer",
        "1KiB",
        "--report",
        "json",
    ];
    let mut command = Command::new(feedline());
    command.args(arguments).env("XDG_CACHE_HOME", cache.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("the binary starts");
    wait_for_rows(&url, 10);
    data.write(SHARDS, 'a', 20);
    assert_ne!(data.run(&["--coordinator", &url])["digest"], whole, "the later job has another shard");
    drop(first);
    let _second = worker();
    let call: Call = child.wait_with_output().expect("it was started here").into();
    assert_eq!(call.report()["digest"], whole);
}

/// The coordinators have different indexes of the source, because each was down when another index was saved.
#[test]
fn coordinators_with_different_stale_indexes_prepare_the_present_dataset() {
    let data = Data::new(20, "");
    let addresses = free_ports(3);
    let urls: Vec<String> = addresses.iter().map(|address| format!("http://{address}")).collect();
    let all = urls.join(",");
    let start = |place: usize| {
        let folder = data.scratch.file(&format!("coordinator-{place}"));
        Role::start(
            &["coordinator", "--listen", &addresses[place], "--data-dir", &folder, "--peers", &all],
            &[],
        )
    };
    let mut roles: Vec<Option<Role>> = (0..3).map(|place| Some(start(place))).collect();
    let _worker = Role::start(&["worker", "--coordinator", &all, "--listen", "127.0.0.1:0"], &[]);
    data.run(&["--coordinator", &all]);
    for (down, role) in roles.iter_mut().enumerate() {
        *role = None;
        data.write(down, 'b', 20);
        let digest = data.run(&["--coordinator", &all])["digest"].clone();
        assert_eq!(digest, data.fresh_digest(), "without coordinator {down}");
        *role = Some(start(down));
        wait_for("the coordinator is back", || {
            let call = data.scratch.call(&["members", "list", "--expect-voters", "3", "--coordinator", &all]);
            (call.status == 0).then_some(())
        });
    }
    data.touch(0);
    assert_eq!(data.run(&["--coordinator", &all])["digest"], data.fresh_digest());
}
