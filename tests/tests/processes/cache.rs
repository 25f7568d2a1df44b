//! Caches: later passes find rows in memory, on disk or in the store, up to the size of the cache.

use feedline_tests::process::{Processes, Role};
use feedline_tests::{Scratch, assert_clean};
use serde_json::Value;

/// Writes a pipeline that decodes, caches and crops images. `tier` is a tier in a pipeline file, or `none`.
fn job(scratch: &Scratch, tier: &str) -> String {
    let images = scratch.file("images");
    let cache = if tier == "none" { String::new() } else { format!("cache: {{ tier: {tier} }},") };
    let text = format!(
        "name: job\nsource: {{ url: \"{images}/*\", format: tfrecord, features: {{ image: image/encoded }} }}\n\
         shuffle: {{ window: 50 }}\noperators: [ decode_image: {{ column: image }}, {cache} \
         random_resized_crop: {{ column: image, size: [32, 32] }}, batch: {{ size: 8 }} ]"
    );
    scratch.write(&format!("{tier}.yaml"), &text)
}

fn data(rows: &str) -> Scratch {
    let scratch = Scratch::new();
    scratch.make_data("images", "images", &["--format", "tfrecord", "--rows", rows, "--shards", "3"]);
    scratch
}

/// Returns the input and output rows of an operator.
fn rows(report: &Value, name: &str) -> (u64, u64) {
    let operators = report["operators"].as_array().expect("a list");
    let found = operators.iter().find(|operator| operator["name"] == name).expect("the operator is listed");
    (found["rows_in"].as_u64().expect("a count"), found["rows_out"].as_u64().expect("a count"))
}

#[test]
fn later_epochs_read_from_a_cache_in_memory() {
    let scratch = data("60");
    let report = scratch.run(&job(&scratch, "memory"), &["--epochs", "3"]);
    assert_clean(&report);
    // The first batches of an epoch may be computed before the last rows of the previous epoch are cached.
    let (looked_up, found) = rows(&report, "cache");
    assert_eq!(looked_up, 180);
    assert!(found >= 100, "{found} of 120 rows were found");
    assert_eq!(rows(&report, "decode_image").0, 180 - found);
    assert_eq!(rows(&report, "random_resized_crop"), (180, 180));
}

#[test]
fn a_cache_on_disk_or_in_the_store_serves_the_next_process() {
    let scratch = data("60");
    let plain = scratch.run(&job(&scratch, "none"), &[]);
    for (tier, flag) in [("disk", "--cache-dir"), ("store", "--cache-store")] {
        for (run, found) in [("first", 0), ("second", 60), ("third", 60)] {
            let report = scratch.run(&job(&scratch, tier), &[flag, &scratch.file(&format!("kept-{tier}"))]);
            assert_clean(&report);
            assert_eq!(report["digest"], plain["digest"], "{tier}, {run}");
            assert_eq!(rows(&report, "cache"), (60, found), "{tier}, {run}");
            assert_eq!(rows(&report, "decode_image").0, 60 - found, "{tier}, {run}");
        }
    }
}

#[test]
fn the_plan_caches_rows_without_a_cache_in_the_pipeline() {
    let scratch = data("60");
    let images = scratch.file("images");
    let text = format!(
        "name: job\nsource: {{ url: \"{images}/*\", format: tfrecord, features: {{ image: image/encoded }} }}\n\
         operators: [ burn: {{ cpu_us: 2000 }}, random_resized_crop: {{ column: image, size: [32, 32] }}, \
         batch: {{ size: 8 }} ]"
    );
    let file = scratch.write("plain.yaml", &text);
    let kept = scratch.run(&file, &["--epochs", "40", "--cores", "1"]);
    assert_clean(&kept);
    let (looked_up, found) = rows(&kept, "cache");
    // The planner caches small images only after it has measured their costs.
    assert!(looked_up > 300 && 2 * found > looked_up, "{found} of {looked_up} rows were found");
    assert_eq!(rows(&kept, "burn").0, 2400 - found);
    let plain = scratch.run(&file, &["--epochs", "40", "--auto-cache", "off"]);
    assert_eq!(plain["digest"], kept["digest"]);
    assert!(
        plain["operators"].as_array().expect("a list").iter().all(|operator| operator["name"] != "cache")
    );
}

#[test]
fn changed_data_is_not_read_from_a_cache() {
    let scratch = data("60");
    let file = job(&scratch, "disk");
    scratch.run(&file, &[]);
    std::fs::remove_dir_all(scratch.file("images")).expect("the data can go");
    scratch.make_data(
        "images",
        "images",
        &["--format", "tfrecord", "--rows", "60", "--shards", "3", "--seed", "9"],
    );
    scratch.call(&["index", &file, "--rebuild"]);
    let plain = scratch.run(&job(&scratch, "none"), &[]);
    let report = scratch.run(&file, &[]);
    assert_eq!(report["digest"], plain["digest"]);
    assert_eq!(rows(&report, "cache"), (60, 0));
}

#[test]
fn a_cache_that_is_too_small_contains_a_part() {
    let scratch = data("60");
    let plain = scratch.run(&job(&scratch, "none"), &["--epochs", "3"]);
    for (tier, limit) in [("memory", ["--memory", "8MiB"]), ("disk", ["--cache-disk", "4MiB"])] {
        let mut arguments = vec!["--epochs", "3", "--cache-dir"];
        let cache = scratch.file("small-cache");
        arguments.push(&cache);
        arguments.extend(limit);
        let report = scratch.run(&job(&scratch, tier), &arguments);
        assert_clean(&report);
        assert_eq!(report["digest"], plain["digest"], "{tier}");
        let (_, found) = rows(&report, "cache");
        assert!(found > 0 && found < 100, "{tier}: {found} of 120");
    }
    let folder = std::process::Command::new("du").args(["-sb", &scratch.file("small-cache")]).output();
    let bytes = String::from_utf8(folder.expect("du runs").stdout).expect("du prints text");
    let bytes: u64 = bytes.split_whitespace().next().and_then(|bytes| bytes.parse().ok()).expect("a number");
    assert!(bytes < (4 << 20) + (64 << 10), "{bytes} bytes on disk");
}

#[test]
fn failed_rows_fail_again_and_the_others_are_cached() {
    let scratch = Scratch::new();
    scratch.make_data("images", "images", &["--format", "files", "--rows", "40"]);
    let damaged = scratch.file("images/000007.jpg");
    let names = || {
        std::fs::read_dir(scratch.file("images"))
            .expect("a directory")
            .flatten()
            .map(|entry| entry.file_name())
    };
    assert!(std::path::Path::new(&damaged).exists(), "{:?}", names().collect::<Vec<_>>());
    std::fs::write(&damaged, b"no image").expect("it can be corrupted");
    let text = |cache: &str| {
        format!(
            "name: job\nsource: {{ url: \"{}/*\", format: files }}\non_error: skip\noperators: [ decode_image: \
             {{ column: bytes }}, {cache} resize: {{ column: bytes, size: [16, 16] }}, batch: {{ size: 8 }} ]",
            scratch.file("images")
        )
    };
    let plain = scratch.run(&scratch.write("plain.yaml", &text("")), &["--epochs", "2"]);
    let file = scratch.write("cached.yaml", &text("cache: { tier: memory },"));
    let report = scratch.run(&file, &["--epochs", "2"]);
    assert_eq!(report["digest"], plain["digest"]);
    assert_eq!(report["skipped"], plain["skipped"]);
    assert_eq!(report["skipped"]["count"], 2);
}

#[test]
fn the_error_for_a_worker_without_the_cache_tier_names_the_fix() {
    let scratch = data("6");
    let processes = Processes::start(scratch.path().join("processes"), 0);
    let url = processes.url();
    let worker = ["worker", "--coordinator", &url, "--listen", "127.0.0.1:0", "--cores", "1"];
    let _worker = Role::start(&worker, &[]);
    for (tier, fix) in
        [("disk", "start the worker with --cache-dir"), ("store", "start the worker with --cache-store URL")]
    {
        let call = scratch.call(&["run", &job(&scratch, tier), "--coordinator", &url, "--job", tier]);
        assert_ne!(call.status, 0);
        assert!(call.stderr.contains(fix), "{}", call.stderr);
    }
}

#[test]
fn index_with_recode_fills_the_cache() {
    let scratch = data("60");
    let file = job(&scratch, "disk");
    let cache = scratch.file("cache");
    let fill = || scratch.call(&["index", &file, "--recode", "--cache-dir", &cache]);
    for added in ["added 60 rows", "added 0 rows"] {
        let call = fill();
        assert_eq!(call.status, 0, "{}", call.stderr);
        assert!(call.stdout.contains(&format!("filled the cache: {added}")), "{}", call.stdout);
    }
    let report = scratch.run(&file, &["--cache-dir", &cache]);
    assert_clean(&report);
    assert_eq!(rows(&report, "cache"), (60, 60));
    assert_eq!(report["digest"], scratch.run(&job(&scratch, "none"), &[])["digest"]);
}

#[test]
fn the_error_for_a_cache_that_cannot_be_filled_names_the_fix() {
    let scratch = data("6");
    for (tier, fix) in [("none", "add `- recode_jpeg: { column: ... }`"), ("memory", "set `tier: disk`")] {
        let call = scratch.call(&["index", &job(&scratch, tier), "--recode"]);
        assert_ne!(call.status, 0);
        assert!(call.stderr.contains(fix), "{}", call.stderr);
    }
}
