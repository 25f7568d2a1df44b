//! Groups and decoders within the resources of a worker.

use arrow::array::{ArrayRef, Int64Array};
use arrow::ipc::CompressionType;
use arrow::ipc::writer::{FileWriter, IpcWriteOptions};

use super::*;

#[tokio::test]
async fn groups_stay_within_the_memory_budget() {
    let rest = "operators: [ batch: { size: 64 } ]\n";
    let test = TestEngine::new(&lines(4096), rest, 4, 2, MIB / 2).await;
    test.lease(test.splits(0));
    test.load().await;
    // Without consumers the engine computes ahead until the budget is used.
    while test.engine.lock().groups > 0 {
        tokio::task::yield_now().await;
    }
    let used = test.engine.used_bytes();
    assert!(used <= MIB / 2, "{used}");
    assert_eq!(test.engine.memory_usage().iter().map(|account| account.used_bytes).sum::<u64>(), used);
    assert!(test.computed().await.len() < test.splits(0).len());
    assert!(test.engine.is_memory_full() && test.engine.report().await.is_memory_full);
    let held: u64 = test.engine.lock().leases.jobs().map(|(_, leases)| leases.held_bytes()).sum();
    assert!(held > 0);
    for split in test.splits(0) {
        assert_eq!(test.fetch(split, 0).await.row_ids().len(), test.layout.split_len(split) as usize);
    }
    assert!(!test.engine.has_reported_full.load(Ordering::Relaxed), "memory is free again");
}

#[tokio::test]
async fn reads_decode_on_the_cores_of_the_worker() {
    let test = TestEngine::new(&lines(16), PLAIN, 1, 3, 64 * MIB).await;
    let stores = Stores::new(Vec::new());
    test.engine.count_decoders(stores.decoders());
    assert_eq!(stores.decoders().free_cores(), Some(3), "not those of the machine");
}

#[tokio::test]
async fn streams_compute_ahead_although_their_share_is_smaller_than_a_group() {
    let test = TestEngine::new(&lines(4096), "operators: [ batch: { size: 64 } ]\n", 64, 2, MIB / 2).await;
    test.lease(test.splits(0));
    test.load().await;
    let group = test.engine.job(JOB).expect("the job is loaded").group_bytes(64);
    assert!(MIB / 2 / 64 < group && group < MIB / 4);
    while test.engine.lock().groups > 0 {
        tokio::task::yield_now().await;
    }
    let used = test.engine.used_bytes();
    assert!(used > MIB / 2 - 2 * group && used <= MIB / 2, "{used}, {group} per group");
    for split in test.splits(0) {
        assert_eq!(test.fetch(split, 0).await.row_ids().len(), test.layout.split_len(split) as usize);
    }
}

#[tokio::test]
async fn a_group_that_is_larger_than_the_memory_fails() {
    let rest = "operators: [ batch: { size: 512 } ]\n";
    let test = TestEngine::new(&lines(1024), rest, 1, 1, 16 << 10).await;
    let split = test.splits(0)[0];
    test.lease([split]);
    test.load().await;
    let failure = test.fetch(split, 0).await.failure.expect("the group does not fit");
    assert!(failure.contains("set a smaller batch.size"), "{failure}");
    assert!(test.engine.lock().leases.job(JOB).is_some());
}

/// An Arrow file with two compressed record batches. The sizes are estimated from the first one, which does not become smaller.
fn compressed_batches(rows_of_second: usize) -> Vec<u8> {
    let batch = |numbers: Vec<i64>| {
        RecordBatch::try_from_iter([("n", Arc::new(Int64Array::from(numbers)) as ArrayRef)])
            .expect("one column")
    };
    let noise = (1..100_i64).map(|number| number.wrapping_mul(0x9E37_79B9_7F4A_7C15_u64 as i64)).collect();
    let batches = [batch(noise), batch(vec![7; rows_of_second])];
    let options = IpcWriteOptions::default().try_with_compression(Some(CompressionType::ZSTD));
    let options = options.expect("the crate supports zstd");
    let mut bytes = Vec::new();
    let mut writer = FileWriter::try_new_with_options(&mut bytes, &batches[0].schema(), options)
        .expect("a supported type");
    batches.iter().for_each(|batch| writer.write(batch).expect("the batch is written"));
    writer.finish().expect("the footer is written");
    drop(writer);
    bytes
}

#[tokio::test]
async fn a_compressed_batch_that_is_larger_than_the_memory_is_not_decompressed() {
    let rest = "operators: [ batch: { size: 64 } ]\n";
    for (rows, fits) in [(100_000, true), (3_000_000, false)] {
        let test = TestEngine::over((&compressed_batches(rows), "arrow"), rest, 1, 1, 16 * MIB).await;
        let split = *test.splits(0).last().expect("the file has rows");
        test.lease([split]);
        test.load().await;
        let failure = test.fetch(split, 0).await.failure;
        assert_eq!(failure.is_none(), fits, "{failure:?}");
        if let Some(failure) = failure {
            assert!(failure.contains("needs 23 MiB, but this worker has only 16 MiB"), "{failure}");
        }
    }
}

#[tokio::test]
async fn groups_shrink_to_the_memory_and_buffers_grow_with_their_rows() {
    let test = TestEngine::new(&lines(4000), PLAIN, 1, 2, 64 * MIB).await;
    test.load().await;
    let job = test.engine.job(JOB).expect("the job is loaded");
    assert_eq!(job.group_rows(u64::MAX), 8, "one batch before the first measurement");
    job.pace.record_chunk(1000, Duration::from_nanos(1));
    let most = test.layout.group_rows;
    assert!(most >= 64);
    let bytes = job.group_bytes(most);
    assert_eq!((job.group_rows(bytes), job.group_rows(bytes - 1)), (most, most / 2 / 8 * 8));
    assert_eq!(job.group_rows(0), 8, "a group has at least one batch");
    assert!(job.group_bytes(8) > job.slab_bytes(8) as u64, "encoded rows count as well");
    let before = job.slab_bytes(8);
    job.record_tail(0, 1 << 30);
    job.record_tail(8, 8);
    assert_eq!((job.slab_bytes(8), before % 4096), (before, 0));
    job.record_tail(8, 8 << 20);
    assert_eq!(job.slab_bytes(8), (8 * (5 << 18) + 4096_usize).next_multiple_of(4096));
    assert_eq!([0, 1].map(|pass| job.compiled.passes_after(pass)), [None, Some(0.0)]);
}
