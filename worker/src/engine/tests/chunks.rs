//! Chunks with removed rows and with cached rows.

use super::*;

/// Checks that the padded tokens of each row belong to the row's id. Returns the ids.
fn check_padded(batch: &RecordBatch) -> Vec<i64> {
    let ids = batch.column_by_name("id").expect("the column is delivered").as_primitive::<Int64Type>();
    let tokens = batch.column_by_name("tokens").expect("the column is delivered").as_fixed_size_list();
    for (row, id) in ids.values().iter().enumerate() {
        let row_tokens = tokens.value(row);
        let mut expected = vec![*id as i32; (*id % 7 + 1) as usize];
        expected.resize(8, -1);
        assert_eq!(row_tokens.as_primitive::<Int32Type>().values()[..], expected, "row {id}");
    }
    ids.values().to_vec()
}

#[tokio::test]
async fn tensors_belong_to_their_rows_wherever_rows_are_removed() {
    const PAD: &str = "cast: { column: tokens, dtype: int32 }, pad: { column: tokens, length: 8, value: -1 }";
    const FILTER: &str = "filter: { where: \"id % 3 = 0\" }";
    let data = lines(200).replace("{\"id\": 51,", "{\"id\": x,");
    let pipelines = [
        (format!("{PAD}, batch: {{ size: 40 }}"), 199),
        (format!("{FILTER}, {PAD}, batch: {{ size: 40 }}"), 66),
        (format!("{PAD}, {FILTER}, batch: {{ size: 40 }}"), 66),
    ];
    for (operators, rows) in pipelines {
        let rest = format!("on_error: skip\noperators: [ {operators} ]\n");
        let test = TestEngine::new(&data, &rest, 1, 3, 64 * MIB).await;
        // Chunks of few rows, so that a batch consists of many.
        test.lease(test.splits(0));
        test.load().await;
        let job = test.engine.job(JOB).expect("the job is loaded");
        (0..100).for_each(|_| job.pace.record_chunk(1, Duration::from_millis(1)));
        let mut ids = Vec::new();
        for split in test.splits(0) {
            ids.extend(test.fetch(split, 0).await.batches.iter().flat_map(check_padded));
        }
        assert_eq!(ids.len(), rows, "{operators}");
        assert!(ids.is_sorted() && !ids.contains(&51), "{operators}");
    }
}

#[tokio::test]
async fn cached_rows_and_computed_rows_share_a_chunk() {
    let rest = "shuffle: { window: 64 }\noperators: [ cast: { column: tokens, dtype: int32 }, cache: { tier: memory }, pad: { column: tokens, length: 8, value: -1 }, batch: { size: 16 } ]\n";
    let test = TestEngine::new(&lines(64), rest, 2, 2, 64 * MIB).await;
    // The second epoch assigns different splits to its streams, and only part of the first epoch is computed.
    let first = test.splits(0);
    test.lease(first[..2].iter().copied());
    test.load().await;
    let mut cached = 0;
    for split in &first[..2] {
        cached += test.fetch(*split, 0).await.batches.iter().flat_map(check_padded).count();
    }
    assert!(cached > 0 && cached < 64);
    test.lease(test.splits(1));
    let mut ids = Vec::new();
    for split in test.splits(1) {
        ids.extend(test.fetch(split, 0).await.batches.iter().flat_map(check_padded));
    }
    ids.sort_unstable();
    assert_eq!(ids, (0..64).collect::<Vec<i64>>());
    let cache = test.stats("cache").await;
    assert_eq!((cache.rows_in, cache.rows_out), (64 + cached as u64, cached as u64));
}
