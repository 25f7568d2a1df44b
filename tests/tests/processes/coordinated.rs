//! Coordinated batches: in each step, all virtual consumers receive rows of the same bucket, or packed rows, on any workers
//! and from any position.

use std::collections::BTreeMap;

use arrow::array::AsArray;
use arrow::datatypes::Int32Type;
use feedline_client::Batch;
use feedline_tests::embedded::{batches_of, int_lists};
use feedline_tests::{Scratch, assert_clean, assert_clean_with_skipped};
use serde_json::Value;

const STREAMS: u32 = 3;

/// Writes rows with lists of 1 to 40 copies of the row's number.
fn write_lists(scratch: &Scratch, rows: usize) -> usize {
    let mut state = 1_u64;
    let mut all = 0;
    for shard in 0..4 {
        let mut text = String::new();
        for row in (shard..rows).step_by(4) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let length = 1 + (state >> 33) as usize % 40;
            all += length;
            let tokens = vec![row.to_string(); length].join(",");
            text.push_str(&format!("{{\"id\":{row},\"tokens\":[{tokens}]}}\n"));
        }
        scratch.write(&format!("part-{shard}.jsonl"), &text);
    }
    all
}

fn pipeline(scratch: &Scratch, head: &str, operators: &str) -> String {
    format!(
        "name: job\nsource: {{ url: \"{}\", format: jsonl }}\nseed: 3\nshuffle: {{ window: 64 }}\n{head}operators:\n{operators}",
        scratch.file("part-*.jsonl")
    )
}

const CAST: &str = "  - cast: { column: tokens, dtype: int32 }\n";

fn buckets(scratch: &Scratch, pad: &str) -> String {
    let operators = format!(
        "{CAST}  - bucket_by_length: {{ columns: [tokens], boundaries: [10, 20, 40], tokens: 160, pad: {pad}, value: -1, window: 250 }}\n"
    );
    pipeline(scratch, "", &operators)
}

fn packs(scratch: &Scratch) -> String {
    let operators = format!(
        "{CAST}  - select: {{ columns: [tokens] }}\n  - pack: {{ columns: [tokens], length: 64, size: 4, window: 250 }}\n"
    );
    pipeline(scratch, "", &operators)
}

/// Groups batches by step.
fn steps(batches: &[Batch]) -> Vec<Vec<&Batch>> {
    let mut taken: BTreeMap<u32, usize> = BTreeMap::new();
    let mut steps: Vec<Vec<&Batch>> = Vec::new();
    for batch in batches {
        let step = taken.entry(batch.info.stream).or_default();
        if steps.len() == *step {
            steps.push(Vec::new());
        }
        steps[*step].push(batch);
        *step += 1;
    }
    steps
}

#[test]
fn all_consumers_receive_the_same_bucket_in_a_step() {
    let scratch = Scratch::new();
    write_lists(&scratch, 2000);
    let of = |workers| batches_of(scratch.path(), &buckets(&scratch, "longest"), STREAMS, workers);
    let (one, two) = (of(1), of(2));
    let records = |batches: &[Batch]| batches.iter().map(|batch| batch.records.clone()).collect::<Vec<_>>();
    assert!(records(&one) == records(&two), "the same batches on two workers");
    let mut ids = Vec::new();
    let mut full = 0;
    for step in steps(&one) {
        assert_eq!(step.len(), STREAMS as usize, "every stream has every step");
        let lists: Vec<Vec<Vec<i32>>> =
            step.iter().map(|batch| int_lists(&batch.records, "tokens")).collect();
        let lengths: Vec<usize> = lists.iter().flatten().map(Vec::len).collect();
        assert!(lengths.iter().all(|length| *length == lengths[0]), "{lengths:?}");
        let longest = lists.iter().flatten().map(|list| own_length(list)).max();
        assert_eq!(longest, Some(lengths[0]), "no more is filled than the longest needs");
        let rows: Vec<usize> = lists.iter().map(Vec::len).collect();
        full += usize::from(rows.iter().all(|rows| [16, 8, 4].contains(rows)));
        assert!(rows.iter().max().unwrap() - rows.iter().min().unwrap() <= 1, "{rows:?}");
        ids.extend(lists.iter().flatten().map(|list| list[0]));
    }
    ids.sort_unstable();
    assert_eq!(ids, (0..2000).collect::<Vec<_>>(), "every row once");
    assert!(full > steps(&one).len() / 2, "{full} steps are full");
    // A batch reports its rows.
    for batch in &one {
        let rows = batch.records.column_by_name("tokens").unwrap().len();
        assert_eq!(batch.info.row_ids.len(), rows);
    }
}

fn own_length(list: &[i32]) -> usize {
    list.iter().filter(|&&number| number >= 0).count()
}

#[test]
fn lists_are_padded_to_the_boundary_or_not_padded() {
    let scratch = Scratch::new();
    write_lists(&scratch, 500);
    for batch in batches_of(scratch.path(), &buckets(&scratch, "boundary"), STREAMS, 1) {
        let lists = int_lists(&batch.records, "tokens");
        assert!(lists.iter().all(|list| [10, 20, 40].contains(&list.len()) && list.len() == lists[0].len()));
    }
    for batch in batches_of(scratch.path(), &buckets(&scratch, "none"), STREAMS, 1) {
        assert!(int_lists(&batch.records, "tokens").iter().all(|list| own_length(list) == list.len()));
    }
}

#[test]
fn packed_rows_contain_every_token_once_with_segment_ids() {
    let scratch = Scratch::new();
    let tokens = write_lists(&scratch, 1500);
    let of = |workers| batches_of(scratch.path(), &packs(&scratch), STREAMS, workers);
    let (one, two) = (of(1), of(2));
    let ints = |batch: &Batch, column: &str| {
        let tensors = batch.records.column_by_name(column).expect("it is made").as_fixed_size_list();
        tensors.values().as_primitive::<Int32Type>().values().to_vec()
    };
    let (mut packed, mut rows, mut filled) = (0, Vec::new(), 0);
    for (left, right) in one.iter().zip(&two) {
        assert_eq!(left.records, right.records);
    }
    for step in steps(&one) {
        assert_eq!(step.len(), STREAMS as usize);
        for batch in step {
            let values = ints(batch, "tokens");
            let (segments, positions) = (ints(batch, "tokens_segment_ids"), ints(batch, "tokens_positions"));
            packed += values.len() / 64;
            for place in 0..values.len() {
                if segments[place] == 0 {
                    assert_eq!((values[place], positions[place]), (0, 0));
                    continue;
                }
                filled += 1;
                if positions[place] == 0 {
                    rows.push(values[place]);
                } else {
                    let before = place - 1;
                    assert_eq!((values[before], segments[before]), (values[place], segments[place]));
                    assert_eq!(positions[before] + 1, positions[place]);
                }
            }
        }
    }
    rows.sort_unstable();
    assert_eq!(rows, (0..1500).collect::<Vec<_>>());
    assert_eq!(filled, tokens);
    assert!(packed * 64 * 9 < tokens * 10, "{packed} rows of 64 for {tokens} tokens");
}

#[test]
fn a_run_stopped_at_any_step_resumes_on_other_consumers_and_workers() {
    let scratch = Scratch::new();
    write_lists(&scratch, 1200);
    for (kind, text) in [("bucket", buckets(&scratch, "longest")), ("pack", packs(&scratch))] {
        let file = scratch.write(&format!("{kind}.yaml"), &text);
        let shape = ["--virtual-consumers", "3", "--epochs", "2"];
        let whole = scratch.run(&file, &shape);
        assert_clean(&whole);
        assert_eq!(whole["audit"]["expected"], 2400);
        let batches = |report: &Value| report["batches"].as_u64().expect("a count");
        for (limit, consumers, workers) in
            [("1", "1", "2"), ("100", "3", "1"), ("333", "2", "2"), ("470", "3", "2")]
        {
            let place = scratch.file(&format!("place-{kind}-{limit}.json"));
            let mut part = shape.to_vec();
            part.extend(["--position", &place]);
            let mut first = part.clone();
            first.extend(["--limit", limit]);
            let first = scratch.run(&file, &first);
            part.extend(["--consumers", consumers, "--workers", workers]);
            let rest = scratch.run(&file, &part);
            assert_eq!(batches(&first) + batches(&rest), batches(&whole), "{kind}, limit {limit}");
            assert_eq!(rest["digest"], whole["digest"], "{kind}, limit {limit}");
            assert_eq!(rest["audit"]["repeated"], 0, "{rest}");
        }
    }
}

#[test]
fn filtered_and_too_long_rows_are_removed_from_their_round() {
    let scratch = Scratch::new();
    write_lists(&scratch, 1000);
    let operators = format!(
        "{CAST}  - filter: {{ where: \"id % 5 <> 0\" }}\n  - bucket_by_length: {{ columns: [tokens], boundaries: [8, 32], batch_sizes: [12, 5], window: 200 }}\n"
    );
    let file = scratch.write("job.yaml", &pipeline(&scratch, "on_error: skip\n", &operators));
    let report = scratch.run(&file, &["--virtual-consumers", "3", "--workers", "2", "--consumers", "3"]);
    let skipped = report["skipped"]["count"].as_u64().expect("a count");
    assert_clean_with_skipped(&report, skipped);
    assert_eq!(report["audit"]["expected"], 1000);
    let rows = report["rows"].as_u64().expect("a count");
    assert_eq!(rows + skipped, 800);
    assert!(skipped > 100, "a fifth is longer than 32: {skipped}");
    let file = scratch.write("strict.yaml", &pipeline(&scratch, "", &operators));
    let call = scratch.call(&["run", &file]);
    assert_eq!(call.status, 1);
    let said = "elements, but the limit is 32, the last bucket boundary; add a `truncate` operator, or append one more number to `batch_sizes`";
    assert!(call.stderr.contains(said), "{}", call.stderr);
}
