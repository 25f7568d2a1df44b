//! `feedline lint` finds errors before a job, with the exit status and the place of each, and `feedline preview` shows rows.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use feedline_tests::store::{KEY, SECRET, Store};
use feedline_tests::{CACHE_HOME, Call, Scratch, feedline};
use serde_json::Value;

/// Runs `feedline lint` with a JSON report, and checks its exit status.
fn lint(scratch: &Scratch, file: &str, flags: &[&str], status: i32) -> Value {
    let call = scratch.call(&[["lint", file, "--format", "json"].as_slice(), flags].concat());
    assert_eq!(call.status, status, "{}\n{}", call.stdout, call.stderr);
    call.last_json()
}

fn checks(report: &Value) -> Vec<&str> {
    let findings = report["findings"].as_array().expect("the report lists findings");
    findings.iter().filter_map(|finding| finding["check"].as_str()).collect()
}

fn message(report: &Value) -> &str {
    report["findings"][0]["message"].as_str().expect("a finding has a message")
}

/// A pipeline with these lines after `name`.
fn pipeline(scratch: &Scratch, name: &str, source: &str, operators: &str) -> String {
    let text = format!("name: {name}\nsource: {{ {source} }}\n{operators}");
    scratch.write(&format!("{name}.yaml"), &text)
}

fn images() -> Scratch {
    let scratch = Scratch::new();
    scratch.make_data("images", "data", &["--format", "tfrecord", "--rows", "60", "--shards", "3"]);
    scratch
}

const IMAGES: &str =
    "url: data/*.tfrecord, format: tfrecord, features: { image: image/encoded, label: image/class/label }";

#[test]
fn a_sound_pipeline_is_clean() {
    let scratch = images();
    let operators =
        "operators:\n  - random_resized_crop: { column: image, size: [32, 32] }\n  - batch: { size: 8 }\n";
    let file = pipeline(&scratch, "sound", IMAGES, operators);
    let report = lint(&scratch, &file, &["--strict"], 0);
    assert_eq!(checks(&report), [""; 0]);
    let dataset = &report["dataset"];
    assert_eq!((&dataset["shards"], &dataset["sampled_rows"]), (&3.into(), &24.into()));
    let rows = dataset["rows"].as_u64().expect("a count");
    assert!((50..=70).contains(&rows), "{rows} of 60 rows");
    assert_eq!(dataset["batch_columns"][0]["type"], "uint8 tensor [32, 32, 3]");
    let call = scratch.call(&["lint", &file]);
    assert!(call.stdout.contains("no errors; 3 shards of "), "{}", call.stdout);
}

#[test]
fn errors_have_a_line_a_name_and_exit_status_2() {
    let scratch = images();
    let unknown =
        "operators:\n  - random_resized_crop: { column: imgae, size: [32, 32] }\n  - batch: { size: 8 }\n";
    let file = pipeline(&scratch, "unknown", IMAGES, unknown);
    let report = lint(&scratch, &file, &[], 2);
    assert_eq!((checks(&report), &report["findings"][0]["line"]), (vec!["operator"], &4.into()));
    assert!(message(&report).contains("did you mean `image`?"), "{report}");
    let call = scratch.call(&["lint", &file]);
    assert!(call.stdout.contains(" 4 |   - random_resized_crop: { column: imgae"), "{}", call.stdout);

    let invalid = pipeline(&scratch, "invalid", IMAGES, "operators:\n  - batch: { siez: 8 }\n");
    let report = lint(&scratch, &invalid, &[], 2);
    assert_eq!((checks(&report), &report["findings"][0]["line"]), (vec!["pipeline-file"], &4.into()));

    let batch = "operators: [ batch: { size: 8 } ]\n";
    let glob = pipeline(&scratch, "glob", "url: data/*.tfrecrod, format: tfrecord", batch);
    let report = lint(&scratch, &glob, &[], 2);
    assert_eq!(checks(&report), ["no-match"]);
    assert!(message(&report).contains("the nearest match is `file://"), "{report}");

    let credentials = pipeline(&scratch, "named", "url: data/, format: tfrecord, credentials: mine", batch);
    assert_eq!(checks(&lint(&scratch, &credentials, &[], 2)), ["credentials"]);

    let format = pipeline(&scratch, "format", "url: data/*.tfrecord, format: parquet", batch);
    let report = lint(&scratch, &format, &[], 2);
    assert_eq!((checks(&report), &report["findings"][0]["count"]), (vec!["unreadable-shard"], &3.into()));

    let feature = pipeline(
        &scratch,
        "feature",
        "url: data/*.tfrecord, format: tfrecord, features: { image: imag }",
        batch,
    );
    let report = lint(&scratch, &feature, &[], 0);
    assert_eq!(checks(&report), ["missing-column"]);
    assert!(message(&report).contains("later rows may have the column"), "{report}");
    assert_eq!(checks(&lint(&scratch, "absent.yaml", &[], 2)), ["pipeline-file"]);
}

#[test]
fn rows_that_fail_and_shards_that_differ_are_found() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path().join("data")).expect("the scratch directory is writable");
    let jsonl = |name: &str, text: &str| scratch.write(&format!("data/{name}.jsonl"), text);
    jsonl("a", "{\"n\": 1, \"text\": \"x\"}\n{\"n\": 2, \"text\": \"y\"}\n");
    jsonl("b", "{\"n\": 3, \"text\": \"x\"}\nnot json\n");
    let source = "url: data/*.jsonl, format: jsonl";
    let batch = "operators:\n  - batch: { size: 2 }\n";
    let file = pipeline(&scratch, "rows", source, batch);
    let report = lint(&scratch, &file, &[], 2);
    assert_eq!(checks(&report), ["failing-rows"]);
    assert!(message(&report).starts_with("row 1 of `file://"), "{report}");
    let skip = pipeline(&scratch, "skip", source, &format!("on_error: skip\n{batch}"));
    assert_eq!(lint(&scratch, &skip, &[], 0)["warnings"], 1);
    assert_eq!(lint(&scratch, &skip, &["--strict"], 1)["warnings"], 1);

    jsonl("b", "{\"n\": \"three\", \"text\": \"x\"}\n");
    assert_eq!(checks(&lint(&scratch, &file, &[], 2)), ["schema-difference"]);

    jsonl("b", "");
    assert_eq!(checks(&lint(&scratch, &file, &["--strict"], 1)), ["empty-shard"]);
    fs::remove_file(scratch.path().join("data/b.jsonl")).expect("written above");
    let report = lint(&scratch, &file, &["--consumers", "3"], 2);
    assert_eq!(checks(&report), ["few-rows"]);
    let none = pipeline(
        &scratch,
        "none",
        source,
        "operators:\n  - filter: { where: n > 5 }\n  - batch: { size: 2 }\n",
    );
    assert_eq!(checks(&lint(&scratch, &none, &["--strict"], 1)), ["filtered-rows"]);
}

#[test]
fn access_errors_name_the_identity_and_the_missing_right() {
    let scratch = Scratch::new();
    fs::create_dir_all(scratch.path().join("store/bucket")).expect("the scratch directory is writable");
    scratch.make_data("table", "store/bucket/table", &["--format", "jsonl", "--rows", "40"]);
    let store = Store::serve(&scratch.path().join("store"));
    let file = pipeline(
        &scratch,
        "table",
        "url: 's3://bucket/table/*', format: jsonl",
        "operators: [ batch: { size: 4 } ]\n",
    );
    let call = |key: &str, secret: &str| {
        let mut command = Command::new(feedline());
        command.args(["lint", &file, "--format", "json"]).env(CACHE_HOME, scratch.cache());
        command.envs(store.environment()).env("AWS_ACCESS_KEY_ID", key).env("AWS_SECRET_ACCESS_KEY", secret);
        Call::from(command.output().expect("the binary starts"))
    };
    let wrong = call(KEY, "not-the-secret");
    assert_eq!(wrong.status, 2, "{}", wrong.stdout);
    let report = wrong.last_json();
    assert_eq!(checks(&report), ["access-denied"]);
    let shown = format!("access denied for access key {}...{}", &KEY[..4], &KEY[KEY.len() - 4..]);
    assert!(message(&report).contains(&shown), "{report}");
    assert!(!wrong.stdout.contains(KEY) && !wrong.stdout.contains("not-the-secret"), "{}", wrong.stdout);
}

/// A user without rights.
const NOBODY: u32 = 65_534;

#[test]
fn files_without_read_permission_are_found() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path().join("data")).expect("the scratch directory is writable");
    scratch.write("data/a.txt", "a\n");
    scratch.write("data/b.txt", "b\n");
    let file =
        pipeline(&scratch, "text", "url: data/*.txt, format: text", "operators: [ batch: { size: 4 } ]\n");
    let modes =
        [("", 0o755), ("data", 0o755), ("text.yaml", 0o644), ("data/a.txt", 0o644), ("data/b.txt", 0o000)];
    for (name, mode) in modes {
        let permissions = fs::Permissions::from_mode(mode);
        fs::set_permissions(scratch.path().join(name), permissions).expect("the file belongs to this user");
    }
    // Other users may not enter the directory of the binary.
    let program = scratch.path().join("feedline");
    fs::copy(feedline(), &program).expect("the scratch directory is writable");
    let mut command = Command::new(program);
    command.args(["lint", &file, "--format", "json"]);
    command.current_dir(scratch.path()).env(CACHE_HOME, scratch.cache());
    let mut user = rustix::process::geteuid().as_raw();
    // Root may read all files.
    if fs::read(scratch.path().join("data/b.txt")).is_ok() {
        command.uid(NOBODY).gid(NOBODY);
        user = NOBODY;
    }
    let call = Call::from(command.output().expect("the user may run the binary"));
    assert_eq!(call.status, 2, "{}\n{}", call.stdout, call.stderr);
    let report = call.last_json();
    assert_eq!((checks(&report), &report["findings"][0]["count"]), (vec!["access-denied"], &1.into()));
    let part = format!("data/b.txt`: access denied for user {user}: the right to read the file");
    assert!(message(&report).contains(&part), "{report}");
}

#[test]
fn a_truncated_archive_is_an_error_unless_rows_that_fail_are_skipped() {
    let scratch = Scratch::new();
    scratch.make_data("images", "data", &["--format", "webdataset", "--rows", "60", "--shards", "3"]);
    let archive = scratch.path().join("data/images-00002-of-00003.tar");
    let mut bytes = fs::read(&archive).expect("the archive was generated");
    // The end is in the middle of a header or a member.
    bytes.truncate(bytes.len() / 2 / 512 * 512 + 100);
    fs::write(&archive, bytes).expect("the scratch directory is writable");
    let source = "url: data/*.tar, format: webdataset";
    let batch = "operators: [ batch: { size: 4 } ]\n";
    let file = pipeline(&scratch, "archive", source, batch);
    let report = lint(&scratch, &file, &[], 2);
    assert_eq!(
        (checks(&report), &report["findings"][0]["severity"]),
        (vec!["defective-shard"], &"error".into())
    );
    assert!(message(&report).contains("images-00002-of-00003.tar` at byte "), "{report}");
    let skip = pipeline(&scratch, "skip", source, &format!("on_error: skip\n{batch}"));
    let report = lint(&scratch, &skip, &[], 0);
    assert_eq!(
        (checks(&report), &report["findings"][0]["severity"]),
        (vec!["defective-shard"], &"warning".into())
    );
    assert_eq!(checks(&lint(&scratch, &skip, &["--strict"], 1)), ["defective-shard"]);
}

#[test]
fn urls_outside_of_the_allowed_prefixes_are_found() {
    let scratch = images();
    let data = scratch.file("data");
    let source = IMAGES.replace("data/", &format!("{data}/"));
    let file = pipeline(&scratch, "allowed", &source, "operators: [ batch: { size: 4 } ]\n");
    assert_eq!(checks(&lint(&scratch, &file, &["--allow-url", &data], 0)), [""; 0]);
    let report = lint(&scratch, &file, &["--allow-url", "s3://bucket"], 2);
    assert_eq!((checks(&report), &report["findings"][0]["line"]), (vec!["url"], &2.into()));
    assert!(message(&report).contains("is outside the allowed URLs (`s3://bucket`)"), "{report}");
}

#[test]
fn a_store_that_refuses_connections_is_found() {
    let scratch = Scratch::new();
    let file = pipeline(
        &scratch,
        "refused",
        "url: 's3://bucket/table/*', format: jsonl",
        "operators: [ batch: { size: 4 } ]\n",
    );
    let mut command = Command::new(feedline());
    command.args(["lint", &file, "--format", "json"]).env(CACHE_HOME, scratch.cache());
    command.env("AWS_ENDPOINT", "http://127.0.0.1:1").env("AWS_ALLOW_HTTP", "true");
    command.env("AWS_REGION", "us-east-1");
    command.env("AWS_ACCESS_KEY_ID", KEY).env("AWS_SECRET_ACCESS_KEY", SECRET);
    let call = Call::from(command.output().expect("the binary starts"));
    assert_eq!(call.status, 2, "{}\n{}", call.stdout, call.stderr);
    let report = call.last_json();
    assert_eq!((checks(&report), &report["findings"][0]["line"]), (vec!["store"], &2.into()));
    assert!(message(&report).contains("check the store and the network"), "{report}");
}

#[test]
fn a_corrupt_shard_outside_of_the_sample_is_found_with_all() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path().join("data")).expect("the scratch directory is writable");
    for shard in 10..110 {
        // All shards have 11 bytes. The sample of 32 contains shards at equal distances, and not the shard 60.
        let text =
            if shard == 60 { "not JSON!!\n".to_owned() } else { format!("{{\"n\": {}}}\n", 100 + shard) };
        scratch.write(&format!("data/{shard:03}.jsonl"), &text);
    }
    let source = "url: data/*.jsonl, format: jsonl";
    let file = pipeline(&scratch, "many", source, "operators: [ batch: { size: 4 } ]\n");
    let sampled = lint(&scratch, &file, &[], 0);
    assert_eq!(checks(&sampled), ["small-shards"]);
    assert!(sampled["dataset"]["sampled_shards"].as_u64().is_some_and(|count| count < 100), "{sampled}");
    let all = lint(&scratch, &file, &["--all"], 2);
    assert_eq!(
        (checks(&all), &all["dataset"]["sampled_shards"]),
        (vec!["unreadable-shard", "small-shards"], &100.into())
    );
    assert!(message(&all).contains("/data/060.jsonl`"), "{all}");
}

#[test]
fn preview_shows_rows_before_and_after_the_operators() {
    let scratch = images();
    let operators = "operators:\n  - random_resized_crop: { column: image, size: [32, 32] }\n  - normalize: { column: image, mean: [0.5], std: [0.5], layout: chw }\n  - batch: { size: 8 }\n";
    let file = pipeline(&scratch, "photos", IMAGES, operators);
    let call = scratch.call(&["preview", &file, "--rows", "25"]);
    assert_eq!(call.status, 0, "{}", call.stderr);
    assert!(call.stdout.starts_with("photos: 25 rows after the operators\n"), "{}", call.stdout);
    assert!(call.stdout.contains("float32 [3, 32, 32], values from "), "{}", call.stdout);
    assert!(call.stdout.contains("batch of 8 rows\n  image  float32 tensor [3, 32, 32]"), "{}", call.stdout);
    let raw = scratch.call(&["preview", &file, "--rows", "1", "--raw"]);
    assert!(raw.stdout.contains("image  JPEG, "), "{}", raw.stdout);
    let page = scratch.call(&["preview", &file, "--rows", "4", "--out", "page.html"]);
    assert_eq!(page.stdout, "wrote 4 rows to page.html\n", "{}", page.stderr);
    let html = fs::read_to_string(scratch.path().join("page.html")).expect("the page was written");
    assert_eq!(html.matches("src=\"data:image/png;base64,").count(), 4);
    assert!(
        !html.contains("<script") && !html.contains("http://") && !html.contains("https://"),
        "the page needs no other files"
    );
}

#[test]
fn invalid_flags_are_rejected() {
    let scratch = images();
    let file = pipeline(&scratch, "p", IMAGES, "operators: [ batch: { size: 4 } ]\n");
    for (arguments, part) in [
        (vec!["lint", &file, "--consumers", "0"], "--consumers"),
        (vec!["preview", &file, "--rows", "0"], "--rows"),
        (vec!["preview", &file, "--out", "/nowhere/page.html"], "cannot write /nowhere/page.html"),
        (vec!["preview", "absent.yaml"], "cannot read absent.yaml"),
    ] {
        let call = scratch.call(&arguments);
        assert!(call.status != 0 && call.stderr.contains(part), "{}", call.stderr);
    }
}
