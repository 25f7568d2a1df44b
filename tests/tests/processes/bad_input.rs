//! Bad input causes one error message that names the location and the fix, or the declared `on_error` result.

use std::fs;
use std::path::PathBuf;

use std::time::Duration;

use feedline_tests::disk::SmallDisk;
use feedline_tests::process::{Processes, Role};
use feedline_tests::running::Running;
use feedline_tests::{Call, Scratch, assert_clean, assert_clean_with_skipped, data, wait_for, wait_for_rows};
use serde_json::Value;

/// Returns the single error message that a failed call prints.
fn sentence(call: &Call, status: i32) -> String {
    assert_eq!(call.status, status, "{call:?}");
    let lines: Vec<&str> = call.stderr.lines().filter(|line| line.starts_with("feedline: ")).collect();
    assert_eq!(lines.len(), 1, "one sentence: {}", call.stderr);
    assert!(!call.stderr.contains("panicked"), "{}", call.stderr);
    lines[0].to_owned()
}

fn assert_says(sentence: &str, parts: &[&str]) {
    for part in parts {
        assert!(sentence.contains(part), "`{part}` is missing in: {sentence}");
    }
}

struct Images {
    scratch: Scratch,
    shards: Vec<PathBuf>,
}

/// A dataset of 60 images in three shards.
fn images() -> Images {
    let scratch = Scratch::new();
    scratch.make_data("images", "data", &["--format", "tfrecord", "--rows", "60", "--shards", "3"]);
    let mut shards: Vec<PathBuf> = fs::read_dir(scratch.path().join("data"))
        .expect("made above")
        .map(|entry| entry.expect("readable").path())
        .collect();
    shards.sort();
    Images { scratch, shards }
}

impl Images {
    fn pipeline(&self, on_error: &str) -> String {
        let text = format!(
            "name: images
source: {{ url: \"{}/*.tfrecord\", format: tfrecord, features: {{ image: image/encoded, label: image/class/label }} }}
on_error: {on_error}
operators:
  - random_resized_crop: {{ column: image, size: [32, 32] }}
  - batch: {{ size: 8 }}
",
            self.scratch.file("data")
        );
        self.scratch.write(&format!("{on_error}.yaml"), &text)
    }

    fn run(&self, on_error: &str) -> Call {
        let file = self.pipeline(on_error);
        self.scratch.call(&["run", &file, "--audit", "--report", "json"])
    }

    /// Runs a pipeline whose `shard` is corrupted from `byte` on, and checks the report and the warning on standard error.
    fn run_with_defect(&self, on_error: &str, shard: &str, byte: usize) -> Value {
        let call = self.run(on_error);
        let report = call.report();
        assert_clean(&report);
        let defects = &report["defects"];
        assert_eq!(defects["count"], 1);
        let first = &defects["first"][0];
        assert!(first["shard"].as_str().is_some_and(|url| url.ends_with(shard)), "{first}");
        assert_eq!(first["byte"], byte);
        let [left_out, bytes] =
            ["left_out_bytes", "shard_bytes"].map(|name| first[name].as_u64().expect("a count"));
        assert_eq!(bytes - left_out, byte as u64);
        let says = format!("the rest of the shard, {left_out} of {bytes} bytes, is skipped");
        assert_says(&sentence(&call, 0), &[shard, &format!("byte {byte}"), &says]);
        report
    }
}

/// Returns the records of a TFRecord file: (start of the data, its length).
fn records(bytes: &[u8]) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let len = u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes")) as usize;
        found.push((at + 12, len));
        at += 12 + len + 4;
    }
    found
}

#[test]
fn a_missing_path_and_an_empty_glob_are_errors() {
    let scratch = Scratch::new();
    for (url, says) in
        [("nowhere/train.tfrecord", "nowhere/train.tfrecord"), ("nowhere/*.tfrecord", "nowhere/*.tfrecord")]
    {
        let text = format!(
            "name: a\nsource: {{ url: \"{url}\", format: tfrecord }}\noperators: [ batch: {{ size: 4 }} ]"
        );
        let file = scratch.write("a.yaml", &text);
        let said = sentence(&scratch.call(&["run", &file]), 1);
        assert_says(&said, &[says]);
    }
    let said = sentence(&scratch.call(&["run", "absent.yaml"]), 2);
    assert_says(&said, &["absent.yaml"]);
}

#[test]
fn a_truncated_shard_fails_or_is_skipped_as_declared() {
    let images = images();
    let bytes = fs::read(&images.shards[1]).expect("made above");
    fs::write(&images.shards[1], &bytes[..bytes.len() - 1000]).expect("writable");
    let said = sentence(&images.run("fail"), 1);
    assert_says(&said, &["00001-of-00003.tfrecord", "byte", "on_error: skip"]);
    let last = records(&bytes)[19].0 - 12;
    for on_error in ["skip", "replace"] {
        let report = images.run_with_defect(on_error, "00001-of-00003.tfrecord", last);
        assert_eq!(report["rows"], 59);
        let reason = report["defects"]["first"][0]["reason"].as_str().expect("a sentence");
        assert_says(reason, &["the last record is truncated"]);
    }
}

/// After a record with an invalid length, no record can be found. Every policy reports it.
#[test]
fn a_wrong_checksum_of_a_length_fails_or_reports_the_skipped_rest() {
    let images = images();
    let mut bytes = fs::read(&images.shards[2]).expect("made above");
    let second = records(&bytes)[1].0 - 12;
    bytes[second + 8] ^= 1;
    fs::write(&images.shards[2], bytes).expect("writable");
    let said = sentence(&images.run("fail"), 1);
    assert_says(&said, &["00002-of-00003.tfrecord", &format!("byte {second}"), "on_error: skip"]);
    for on_error in ["skip", "replace"] {
        let report = images.run_with_defect(on_error, "00002-of-00003.tfrecord", second);
        assert_eq!((&report["rows"], &report["skipped"]["count"]), (&41.into(), &0.into()));
        let reason = report["defects"]["first"][0]["reason"].as_str().expect("a sentence");
        assert_says(reason, &["a record length checksum does not match"]);
    }
    let text = images.scratch.call(&["run", &images.pipeline("skip")]).stdout;
    assert_says(&text, &["defects  1\n", "00002-of-00003.tfrecord", &format!("at byte {second}: ")]);
}

#[test]
fn a_wrong_checksum_fails_or_is_skipped_as_declared() {
    let images = images();
    let mut bytes = fs::read(&images.shards[0]).expect("made above");
    let (start, len) = records(&bytes)[3];
    bytes[start + len / 2] ^= 0x55;
    fs::write(&images.shards[0], bytes).expect("writable");
    let said = sentence(&images.run("fail"), 1);
    assert_says(&said, &["00000-of-00003.tfrecord", "row 3", "byte", "on_error"]);
    let report = images.run("skip").report();
    assert_clean_with_skipped(&report, 1);
    assert_eq!(report["rows"], 59);
    let first = &report["skipped"]["first"][0];
    assert!(first["shard"].as_str().is_some_and(|shard| shard.contains("00000-of-00003")), "{first}");
    let report = images.run("replace").report();
    assert_clean(&report);
    assert_eq!((&report["rows"], &report["skipped"]["count"]), (&60.into(), &1.into()));
}

#[test]
fn corrupt_images_fail_or_are_skipped_or_replaced_as_declared() {
    let scratch = Scratch::new();
    let photos = data::photographs("corrupt photographs are generated images instead, since it");
    let photos = photos.map(|path| path.to_str().expect("the path is text").to_owned());
    let mut arguments = vec!["--format", "files"];
    match &photos {
        Some(photos) => arguments.extend(["--from", photos]),
        None => arguments.extend(["--rows", "400"]),
    }
    scratch.make_data("images", "photos", &arguments);
    let mut photos: Vec<PathBuf> = fs::read_dir(scratch.path().join("photos"))
        .expect("made above")
        .map(|entry| entry.expect("readable").path())
        .collect();
    photos.sort();
    for place in [2, 117, 230, 344, 399] {
        let bytes = fs::read(&photos[place]).expect("made above");
        fs::write(&photos[place], &bytes[..bytes.len() / 3]).expect("writable");
    }
    let run = |on_error: &str| {
        let text = format!(
            "name: photos\nsource: {{ url: \"{}/*\", format: files, features: {{ image: bytes }} }}\non_error: {on_error}\n\
             operators: [ random_resized_crop: {{ column: image, size: [32, 32] }}, batch: {{ size: 8 }} ]",
            scratch.file("photos")
        );
        let file = scratch.write("photos.yaml", &text);
        scratch.call(&["run", &file, "--audit", "--report", "json", "--workers", "2"])
    };
    let said = sentence(&run("fail"), 1);
    assert_says(&said, &["000002", "on_error"]);
    let report = run("skip").report();
    assert_clean_with_skipped(&report, 5);
    assert_eq!(report["rows"], 395);
    let report = run("replace").report();
    assert_clean(&report);
    assert_eq!((&report["rows"], &report["skipped"]["count"]), (&400.into(), &5.into()));
}

#[test]
fn a_shard_of_zero_bytes_has_no_rows() {
    let images = images();
    fs::write(&images.shards[2], b"").expect("writable");
    let report = images.run("fail").report();
    assert_clean(&report);
    assert_eq!(report["rows"], 40);
}

#[test]
fn a_shard_that_lost_a_record_after_indexing_is_indexed_again() {
    let images = images();
    images.run("fail").report();
    let bytes = fs::read(&images.shards[1]).expect("made above");
    let (start, len) = records(&bytes)[0];
    fs::write(&images.shards[1], &bytes[start + len + 4..]).expect("writable");
    let call = images.run("fail");
    assert_eq!(call.report()["rows"], 59);
    assert!(call.stderr.contains("1 of 3 shards changed since they were indexed"), "{}", call.stderr);
}

#[test]
fn errors_in_the_pipeline_file_name_the_line() {
    let scratch = Scratch::new();
    scratch.make_data("table", "data", &["--format", "jsonl", "--rows", "20"]);
    let source = format!("name: a\nsource: {{ url: \"{}/*\", format: jsonl }}\n", scratch.file("data"));
    let cases: &[(&str, i32, &[&str])] = &[
        (
            "operators:\n  - random_crop: { column: image }\n  - batch: { size: 4 }",
            2,
            &["a.yaml:4", "random_crop", "random_resized_crop"],
        ),
        ("operators:\n  - batch: { siez: 4 }", 2, &["a.yaml:4", "siez", "size"]),
        ("operators:\n  - batch: { size: 0 }", 2, &["batch", "size", "1"]),
        ("operators:\n  - select: { columns: [lable] }\n  - batch: { size: 4 }", 1, &["lable", "label"]),
        ("operators:\n  - filter: { where: \"lable > 1\" }\n  - batch: { size: 4 }", 1, &["lable", "label"]),
        (
            "operators:\n  - normalize: { column: label, mean: [0.5], std: [0.5] }\n  - batch: { size: 4 }",
            1,
            &["normalize", "label", "int64"],
        ),
    ];
    for (operators, status, parts) in cases {
        let file = scratch.write("a.yaml", &format!("{source}{operators}"));
        let said = sentence(&scratch.call(&["run", &file]), *status);
        assert_says(&said, parts);
    }
}

#[test]
fn more_consumers_than_rows_are_rejected() {
    let scratch = Scratch::new();
    scratch.make_data("table", "data", &["--format", "jsonl", "--rows", "5"]);
    let text = format!(
        "name: a\nsource: {{ url: \"{}/*\", format: jsonl }}\noperators: [ batch: {{ size: 1 }} ]",
        scratch.file("data")
    );
    let file = scratch.write("a.yaml", &text);
    let said = sentence(&scratch.call(&["run", &file, "--consumers", "6"]), 1);
    assert_says(&said, &["6", "5 rows", "fewer consumers"]);
}

#[test]
fn a_port_in_use_and_an_unwritable_directory_are_errors() {
    let scratch = Scratch::new();
    let data = scratch.file("coordinator");
    let running = Role::start(&["coordinator", "--listen", "127.0.0.1:0", "--data-dir", &data], &[]);
    let other = scratch.file("other");
    let said =
        sentence(&scratch.call(&["coordinator", "--listen", &running.address, "--data-dir", &other]), 1);
    assert_says(&said, &[&running.address, "in use", "--listen"]);
    let said = sentence(&scratch.call(&["coordinator", "--listen", "127.0.0.1:0", "--data-dir", &data]), 1);
    assert_says(&said, &[&data]);
    let file = scratch.write("file", "not a directory");
    let said = sentence(
        &scratch.call(&["coordinator", "--listen", "127.0.0.1:0", "--data-dir", &format!("{file}/data")]),
        1,
    );
    assert_says(&said, &[&file]);
}

#[test]
fn an_unusable_directory_is_named_with_the_flag_that_sets_it() {
    let scratch = Scratch::new();
    let file = scratch.write("file", "not a directory");
    let (missing, data) = (format!("{file}/folder"), scratch.file("data"));
    let listen = ["--listen", "127.0.0.1:0"];
    for (flags, flag) in [
        (&["coordinator", "--data-dir", &missing][..], "--data-dir"),
        (&["coordinator", "--data-dir", &data, "--index-dir", &missing], "--index-dir"),
        (&["up", "--index-dir", &missing], "--index-dir"),
        (&["up", "--cache-dir", &missing], "--cache-dir"),
        (&["worker", "--coordinator", "http://127.0.0.1:1", "--cache-dir", &missing], "--cache-dir"),
    ] {
        let said = sentence(&scratch.call(&[flags, &listen].concat()), 1);
        assert_says(&said, &[&missing, "ot a directory", flag]);
    }
}

#[test]
fn invalid_scaling_is_rejected_with_the_fix() {
    let scratch = Scratch::new();
    let coordinator = ["coordinator", "--listen", "127.0.0.1:0", "--data-dir", &scratch.file("data")];
    let call = |flags: &[&str]| scratch.call(&[&coordinator[..], flags].concat());
    let said = sentence(&call(&["--scale-pool", "a=deployment/w:1..2"]), 2);
    assert_says(
        &said,
        &["--scale-pool has no effect without --scaler", "--scaler kubernetes or --scaler keda"],
    );
    let twice = ["--scale-pool", "a=deployment/w:1..2", "--scale-pool", "a=deployment/v:1..2"];
    let said = sentence(&call(&[&["--scaler", "kubernetes"][..], &twice].concat()), 2);
    assert_says(&said, &["--scale-pool contains the pool a twice"]);
    let zero = call(&["--scaler", "kubernetes", "--scale-pool", "a=deployment/w:0..2"]);
    assert_eq!(zero.status, 2, "{zero:?}");
    assert_says(&zero.stderr, &["--scale-pool", "0..2", "MIN of at least 1"]);
    let keda = ["--scaler", "keda", "--scale-pool", "a=deployment/w:1..2", "--scaler-listen", "0.0.0.0:0"];
    let said = sentence(&call(&keda), 2);
    assert_says(&said, &["cannot listen on 0.0.0.0", "--tls-cert", "--insecure"]);
}

#[test]
fn an_unreachable_coordinator_is_an_error() {
    let scratch = Scratch::new();
    let said = sentence(&scratch.call(&["job", "list", "--coordinator", "http://127.0.0.1:1"]), 1);
    assert_says(&said, &["http://127.0.0.1:1"]);
}

#[test]
fn an_unwritable_position_file_is_rejected_before_any_work() {
    let scratch = Scratch::new();
    scratch.make_data("table", "data", &["--format", "jsonl", "--rows", "20"]);
    let text = format!(
        "name: a\nsource: {{ url: \"{}/*\", format: jsonl }}\noperators: [ batch: {{ size: 4 }} ]",
        scratch.file("data")
    );
    let file = scratch.write("a.yaml", &text);
    let place = scratch.file("missing/place.json");
    let call = scratch.call(&["run", &file, "--position", &place]);
    assert_says(&sentence(&call, 2), &[&place, "no such file or directory", "--position"]);
    assert_eq!(call.stdout, "", "nothing was run");
}

#[test]
fn a_run_reports_that_no_worker_is_connected_and_waits() {
    let scratch = Scratch::new();
    scratch.make_data("table", "data", &["--format", "jsonl", "--rows", "20"]);
    let text = format!(
        "name: a\nsource: {{ url: \"{}/*\", format: jsonl }}\noperators: [ batch: {{ size: 4 }} ]",
        scratch.file("data")
    );
    let file = scratch.write("a.yaml", &text);
    let mut processes = Processes::start(scratch.path().to_owned(), 0);
    let url = processes.url();
    let run = Running::start(&["run", &file, "--coordinator", &url, "--audit", "--report", "json"]);
    assert!(run.says_within("no worker is connected", Duration::from_secs(120)));
    assert!(!run.has_ended());
    processes.add_worker();
    let call = run.wait();
    let report = call.report();
    assert_clean(&report);
    assert_eq!(report["rows"], 20);
    assert_says(&sentence(&call, 0), &["feedline worker --coordinator URL"]);
}

/// With a full disk, the coordinator acknowledges only what is written, and the job continues after space is freed.
#[test]
fn a_full_disk_loses_no_decision() {
    let scratch = Scratch::new();
    scratch.make_data("table", "table", &["--format", "jsonl", "--rows", "2000"]);
    let mount = scratch.path().join("small");
    let Some(disk) = SmallDisk::mount(&mount, 96) else { return };
    full_disk(&scratch, &mount, &disk);
}

#[test]
fn a_batch_larger_than_the_memory_is_rejected() {
    let scratch = Scratch::new();
    scratch.make_data("images", "images", &["--format", "tfrecord", "--rows", "40"]);
    let text = format!(
        "name: large\nsource: {{ url: \"{}/*\", format: tfrecord, features: {{ image: image/encoded }} }}\noperators: [ resize: {{ column: image, size: [512, 512] }}, batch: {{ size: 40 }} ]",
        scratch.file("images")
    );
    let call = scratch.call(&["run", &scratch.write("large.yaml", &text), "--memory", "16MiB"]);
    assert_says(&sentence(&call, 1), &["batches of 40", "16 MiB", "batch.size", "--memory"]);
}

fn full_disk(scratch: &Scratch, mount: &std::path::Path, disk: &SmallDisk) {
    let job = |name: &str, first: &str| {
        let text = format!(
            "name: {name}\nsource: {{ url: \"{}/*\", format: jsonl }}\noperators: [ {first}, batch: {{ size: 10 }} ]",
            scratch.file("table")
        );
        scratch.write(&format!("{name}.yaml"), &text)
    };
    let running = job("running", "burn: { cpu_us: 1000 }");
    // The record needs more space than the last page of any file has.
    let waiting = job("waiting", &format!("filter: {{ where: \"label >= 0{}\" }}", " ".repeat(8192)));
    let files = [&running, &waiting];
    let whole = files.map(|file| scratch.run(file, &[]));
    let mut processes = Processes::start(mount.to_owned(), 1);
    let url = processes.url();
    let start = |file| Running::start(&["run", file, "--coordinator", &url, "--audit", "--report", "json"]);
    let first = start(&running);
    wait_for_rows(&url, 10);
    disk.fill();
    let runs = [first, start(&waiting)];
    let said = wait_for("word of the full disk", || {
        let call = scratch.call(&["job", "list", "--coordinator", &url]);
        (call.status != 0).then(|| sentence(&call, 1))
    });
    let data = processes.coordinator_data(0);
    let data = data.to_str().expect("temporary paths are text");
    assert_says(
        &said,
        &[data, "No space left on device", "free some disk space", "no acknowledged data is lost"],
    );
    assert!(!runs.iter().any(Running::has_ended), "runs wait for the coordinator");
    disk.free();
    processes.restart_coordinator(0);
    for (run, whole) in runs.into_iter().zip(whole) {
        let report = run.wait().report();
        assert_clean(&report);
        assert_eq!((&report["rows"], &report["digest"]), (&2000.into(), &whole["digest"]));
    }
}

#[test]
fn a_timeout_without_a_unit_is_rejected() {
    for flag in ["--store-retry-timeout", "--upgrade-timeout"] {
        let call = feedline_tests::call(&["worker", "--coordinator", "http://127.0.0.1:1", flag, "soon"]);
        assert_eq!(call.status, 2, "{}", call.stderr);
        assert!(call.stderr.contains("'soon'") && call.stderr.contains(flag), "{}", call.stderr);
    }
}
