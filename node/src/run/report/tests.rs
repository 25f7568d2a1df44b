//! Tests of the text and the JSON of the report.

use expect_test::expect;

use super::*;

fn report() -> RunReport {
    let source = OperatorStats {
        name: "source".to_owned(),
        rows_in: 400,
        rows_out: 400,
        bytes_in: 25_000_000,
        bytes_out: 24_100_000,
        cpu_ns: 20_000_000,
        busy_ns: 1_300_000_000,
        wait_input_ns: 300_000_000,
        wait_output_ns: 10_000_000,
        latency_ns: 1_200_000_000,
        queue_bytes: 0,
        parallelism: Some(4),
    };
    let store =
        StoreStats { requests: 25, bytes: 25_000_000, wait_ns: 1_000_000_000, ..StoreStats::default() };
    let cpu = ProcessCpu { process_ns: 2_000_000_000, transport_ns: 500_000_000 };
    let batch =
        OperatorStats { name: "batch".to_owned(), rows_in: 398, rows_out: 398, ..OperatorStats::default() };
    RunReport {
        job: "demo-0a1b2c3d".to_owned(),
        rows: 398,
        batches: 7,
        epochs: 1,
        seconds: 2.0,
        rows_per_s: 199.0,
        steady_rows_per_s: None,
        bytes: 60_000_000,
        stall_seconds: 1.0,
        step_seconds: 0.75,
        setup_seconds: 0.25,
        first_batch_seconds: Some(0.5),
        consumers: 1,
        digest: Some("0123456789abcdef".to_owned()),
        content_digest: Some("fedcba9876543210".to_owned()),
        audit: Some(AuditReport { expected: 400, once: 398, skipped: 2, ..AuditReport::default() }),
        skipped: SkippedRowsReport {
            count: 2,
            first: vec![SkippedRowReport {
                row: 17,
                shard: "file:///d/a.tfrecord".to_owned(),
                offset: 1234,
                reason: "not a JPEG".to_owned(),
            }],
        },
        defects: UnreadablePartsReport {
            count: 2,
            first: vec![ShardDefect {
                shard: "file:///d/b.tfrecord".to_owned(),
                byte: 2000,
                reason: "the checksum of a record's length is wrong".to_owned(),
                unreadable_bytes: 7000,
                shard_bytes: 9000,
            }],
        },
        columns: ColumnsReport {
            ignored: vec!["meta".to_owned(), "url".to_owned()],
            widened: vec![WidenedColumnReport {
                column: "score".to_owned(),
                from: "int64".to_owned(),
                to: "float64".to_owned(),
            }],
            rounded: vec![RoundedColumn {
                column: "time".to_owned(),
                reason: "nanoseconds are rounded down to microseconds".to_owned(),
            }],
        },
        operators: vec![(&source).into(), (&batch).into()],
        store: (&store).into(),
        worker_cpu: vec![(&cpu).into()],
        peak_rss_bytes: PeakRss { client: 300_000_000, coordinator: 20_000_000, workers: vec![310_000_000] },
    }
}

#[test]
fn the_text_is_a_short_table() {
    expect![[r#"
        job      demo-0a1b2c3d
        rows     398 in 7 batches, 1 epoch
        time     2.00 s, first batch after 0.50 s (setup 0.25 s)
        rate     199 rows/s, 30.0 MB/s
        stall    1.00 s, 50 % of the time
        digest   0123456789abcdef in order, fedcba9876543210 of the content
        audit    400 rows expected, 398 once, 2 skipped, 0 missing, 0 repeated
        ignored  2 columns: meta, url
        widened  score from int64 to float64
        rounded  time: nanoseconds are rounded down to microseconds
        memory   peak 300.0 MB; coordinator 20.0 MB; workers 310.0 MB
        skipped  2 rows
          row 17: file:///d/a.tfrecord at 1234: not a JPEG
        defects  2
          file:///d/b.tfrecord at byte 2000: the checksum of a record's length is wrong; the rest of the shard, 7000 of 9000 bytes, is skipped

        operator  rows in  rows out  bytes out  cpu s  rows/cpu s  wait s
        source        400       400    24.1 MB   0.02       20000    1.50
        batch         398       398        0 B   0.00           -    0.00
    "#]]
    .assert_eq(&report().to_text());
}

#[test]
fn the_json_has_the_documented_keys() {
    let json = serde_json::to_string(&report()).unwrap() + "\n";
    expect![[r#"
        {"job":"demo-0a1b2c3d","rows":398,"batches":7,"epochs":1,"seconds":2.0,"rows_per_s":199.0,"steady_rows_per_s":null,"bytes":60000000,"stall_seconds":1.0,"step_seconds":0.75,"setup_seconds":0.25,"first_batch_seconds":0.5,"consumers":1,"digest":"0123456789abcdef","content_digest":"fedcba9876543210","audit":{"expected":400,"once":398,"skipped":2,"missing":0,"repeated":0,"unexpected":0},"skipped":{"count":2,"first":[{"row":17,"shard":"file:///d/a.tfrecord","offset":1234,"reason":"not a JPEG"}]},"defects":{"count":2,"first":[{"shard":"file:///d/b.tfrecord","byte":2000,"reason":"the checksum of a record's length is wrong","left_out_bytes":7000,"shard_bytes":9000}]},"columns":{"ignored":["meta","url"],"widened":[{"column":"score","from":"int64","to":"float64"}],"rounded":[{"column":"time","reason":"nanoseconds are rounded down to microseconds"}]},"operators":[{"name":"source","rows_in":400,"rows_out":400,"bytes_out":24100000,"cpu_seconds":0.02,"rows_per_cpu_second":20000.0,"wait_seconds":1.5,"bytes_in":25000000,"busy_seconds":1.3,"wait_input_seconds":0.3,"wait_output_seconds":0.01,"latency_seconds":1.2,"parallelism":4},{"name":"batch","rows_in":398,"rows_out":398,"bytes_out":0,"cpu_seconds":0.0,"rows_per_cpu_second":null,"wait_seconds":0.0,"bytes_in":0,"busy_seconds":0.0,"wait_input_seconds":0.0,"wait_output_seconds":0.0,"latency_seconds":0.0,"parallelism":null}],"store":{"requests":25,"bytes":25000000,"wait_seconds":1.0,"distinct_shards":0,"distinct_shard_bytes":0},"worker_cpu":[{"process_seconds":2.0,"transport_seconds":0.5}],"peak_rss_bytes":{"client":300000000,"coordinator":20000000,"workers":[310000000]}}
    "#]]
    .assert_eq(&json);
}

#[test]
fn an_empty_report_contains_no_division_by_zero() {
    let empty = RunReport { job: "done".to_owned(), ..RunReport::default() };
    expect![[r#"
        job      done
        rows     0 in 0 batches, 0 epochs
        time     0.00 s, first batch none (setup 0.00 s)
        rate     0 rows/s, 0 B/s
        stall    0.00 s, 0 % of the time
        memory   peak 0 B
    "#]]
    .assert_eq(&empty.to_text());
    assert!(!serde_json::to_string(&empty).unwrap().contains("NaN"));
}

#[test]
fn the_warning_names_the_first_defect_and_counts_the_others() {
    assert_eq!(UnreadablePartsReport::default().warning(), None);
    let defects = report().defects;
    expect!["warning: file:///d/b.tfrecord at byte 2000: the checksum of a record's length is wrong; the rest of the shard, 7000 of 9000 bytes, is skipped; and 1 other defect: see the report"].assert_eq(&defects.warning().unwrap());
    let alone = UnreadablePartsReport { count: 1, ..defects };
    assert!(alone.warning().unwrap().ends_with("is skipped"));
}
