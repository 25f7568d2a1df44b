//! Jobs that deliver no row to any consumer end after their first epoch, with an error that names the operator.

use feedline_tests::{Call, Scratch, assert_clean};

const EPOCHS: [&str; 2] = ["--epochs", "1000000"];

fn sentence(call: &Call) -> &str {
    assert_eq!(call.status, 1, "{call:?}");
    call.stderr.lines().rfind(|line| line.starts_with("feedline: ")).expect("it says why")
}

fn table(scratch: &Scratch, name: &str, more: &str, operators: &str) -> String {
    let text = format!(
        "name: {name}\nsource: {{ url: \"{}/*\", format: jsonl }}\n{more}\noperators: [ {operators} ]\n",
        scratch.file("table")
    );
    scratch.write(&format!("{name}.yaml"), &text)
}

#[test]
fn a_filter_that_leaves_no_row_ends_the_job_after_one_epoch() {
    let scratch = Scratch::new();
    scratch.make_data("table", "table", &["--format", "jsonl", "--rows", "400", "--shards", "4"]);
    let operators = "{ filter: { where: id >= 0 } }, { filter: { where: id < 0 } }, { batch: { size: 8 } }";
    let plain = table(&scratch, "plain", "", operators);
    let relaxed = table(&scratch, "relaxed", "order: relaxed", operators);
    for (file, more) in [
        (&plain, &[][..]),
        (&plain, &["--consumers", "2"][..]),
        (&plain, &["--consumers", "2", "--virtual-consumers", "4", "--elastic"][..]),
        (&relaxed, &["--consumers", "2"][..]),
    ] {
        for epochs in [&EPOCHS[..], &[]] {
            let call = scratch.call(&[&["run", file][..], epochs, more].concat());
            let reason = sentence(&call);
            assert!(reason.contains("epoch 0 delivered no row to any consumer: "), "{reason}");
            assert!(reason.contains("`filter#2`"), "{reason}");
        }
    }
    let kept = table(&scratch, "kept", "", "{ filter: { where: id = 77 } }, { batch: { size: 8 } }");
    let report = scratch.run(&kept, &["--consumers", "4", "--epochs", "3"]);
    assert_clean(&report);
    assert_eq!(report["rows"], 3, "one consumer has a row, the others have none");
}

#[test]
fn an_epoch_of_skipped_rows_names_the_first_reason() {
    let scratch = Scratch::new();
    let line = format!("{{\"tokens\":[{}]}}\n", vec!["1"; 40].join(","));
    std::fs::create_dir(scratch.path().join("table")).expect("the scratch directory is writable");
    scratch.write("table/lists.jsonl", &line.repeat(50));
    let bucket = "{ bucket_by_length: { columns: [tokens], boundaries: [10], tokens: 20, window: 20 } }";
    let skipping = table(&scratch, "skipping", "on_error: skip", bucket);
    let call = scratch.call(&[&["run", &skipping][..], &EPOCHS].concat());
    let reason = sentence(&call);
    assert!(reason.contains("epoch 0 delivered no row to any consumer: "), "{reason}");
    assert!(reason.contains("the first skipped row is row ") && reason.contains("lists.jsonl"), "{reason}");
}

#[test]
fn a_dataset_smaller_than_a_batch_that_is_dropped_is_an_error() {
    let scratch = Scratch::new();
    scratch.make_data("table", "table", &["--format", "jsonl", "--rows", "5"]);
    let dropping = table(&scratch, "dropping", "", "{ batch: { size: 8, remainder: drop } }");
    let call = scratch.call(&["run", &dropping]);
    assert_eq!(call.status, 1, "{call:?}");
    assert!(call.stderr.contains("remainder"), "{}", call.stderr);
}
