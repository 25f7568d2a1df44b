//! Buffered bytes stay within the budget, and rows of any size arrive.

use std::sync::atomic::Ordering;

use super::*;

const BUDGET: u64 = 256 << 10;

/// 1 MiB in splits of 64 KiB and batches of 8 KiB.
fn large() -> Layout {
    layout(1 << 17, 1024, 1, 8)
}

fn started(worker: FakeWorker, layout: &Layout, settings: ClientSettings) -> (Arc<FakeWorker>, Consumer) {
    let worker = Arc::new(worker);
    let coordinator = FakeCoordinator::new(layout.clone(), false, &[1]);
    let workers = FakeWorkers::new([(1, Arc::clone(&worker))]);
    let consumer = consumer(&coordinator, &workers, false, settings);
    (worker, consumer)
}

#[tokio::test(start_paused = true)]
async fn buffered_and_outstanding_bytes_stay_within_the_budget() {
    let layout = large();
    let mut worker = FakeWorker::new(&layout, 2048);
    worker.chunk_bytes = 4096;
    let settings = ClientSettings { buffer_bytes: BUDGET, ..ClientSettings::default() };
    let (worker, mut consumer) = started(worker, &layout, settings);
    let mut taken = 0;
    while let Some(batch) = next(&mut consumer).await.unwrap() {
        taken += u64::from(batch.info.rows) * 8;
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        let sent = worker.sent_bytes.load(Ordering::SeqCst);
        let credit = worker.credit_bytes.load(Ordering::SeqCst);
        // A piece counts as delivered when its last row is.
        let piece = 2048 * 8;
        assert!(sent + credit <= taken + BUDGET + piece, "sent {sent}, credit {credit}, taken {taken}");
    }
    assert_eq!(taken, 1 << 20);
}

#[tokio::test(start_paused = true)]
async fn workers_stop_sending_while_the_user_reads_nothing() {
    let layout = large();
    let mut worker = FakeWorker::new(&layout, 2048);
    worker.chunk_bytes = 4096;
    let settings = ClientSettings { buffer_bytes: BUDGET, ..ClientSettings::default() };
    let (worker, mut consumer) = started(worker, &layout, settings);
    tokio::time::sleep(Duration::from_secs(30)).await;
    let sent = worker.sent_bytes.load(Ordering::SeqCst);
    assert!((BUDGET / 2..=BUDGET).contains(&sent), "{sent}");
    assert_eq!(drain_all(&mut consumer).await.len(), 128);
}

#[tokio::test(start_paused = true)]
async fn a_piece_larger_than_the_budget_arrives() {
    let layout = layout(1 << 17, 1 << 15, 1, 2);
    let mut worker = FakeWorker::new(&layout, 1 << 15);
    worker.chunk_bytes = 1 << 20;
    let settings = ClientSettings { buffer_bytes: 1, splits_ahead: 2, ..ClientSettings::default() };
    let (_, mut consumer) = started(worker, &layout, settings);
    assert_eq!(drain_all(&mut consumer).await.len(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_batch_of_many_pieces_larger_than_the_budget_arrives() {
    let layout = layout(1 << 17, 1 << 15, 1, 2);
    let mut worker = FakeWorker::new(&layout, 1000);
    worker.chunk_bytes = 3000;
    let settings = ClientSettings { buffer_bytes: 70 << 10, ..ClientSettings::default() };
    let (_, mut consumer) = started(worker, &layout, settings);
    let batches = drain_all(&mut consumer).await;
    assert_eq!(batches.len(), 4);
    assert_eq!(all_ids(&batches), (0..1 << 17).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_batch_of_too_many_splits_fails_the_job() {
    // Operators keep one row of eight splits.
    let layout = Layout { changes_rows: true, ..layout(4096, 8, 1, 1) };
    for relaxed in [false, true] {
        for (most, batches, needed) in
            [(128, 8, None), (16, 0, Some("about 64 splits")), (4, 0, Some("about 32 splits"))]
        {
            let mut worker = FakeWorker::new(&layout, 8);
            worker.keep = Some(|row| row % 64 == 0);
            let coordinator = FakeCoordinator::new(layout.clone(), relaxed, &[1]);
            coordinator.script(|script| script.most_splits = most);
            let workers = FakeWorkers::new([(1, Arc::new(worker))]);
            let mut consumer = consumer(&coordinator, &workers, relaxed, ClientSettings::default());
            let (taken, end) = drain(&mut consumer).await;
            assert_eq!(taken.len(), batches, "{most} splits, relaxed: {relaxed}");
            let Some(needed) = needed else {
                assert_eq!(end, Ok(()));
                continue;
            };
            let Err(ClientError::JobFailed(message)) = end else { panic!("{end:?}") };
            // A relaxed consumer releases splits without rows, so its estimate is lower.
            let needed = if relaxed { "about" } else { needed };
            let start = format!("a batch of 8 rows needs {needed} ");
            assert!(message.starts_with(&start), "{message}");
            assert!(
                message.contains(&format!("can hold at most {most} splits: use a smaller batch")),
                "{message}"
            );
            assert_eq!(coordinator.script(|script| script.state.clone()), JobState::Failed(message));
        }
    }
}

/// A consumer with the largest number of splits and too few rows for a batch waits while other consumers continue.
#[tokio::test(start_paused = true)]
async fn an_underfull_relaxed_consumer_waits_for_the_other_consumers() {
    let layout = Layout { changes_rows: true, ..layout(4096, 8, 1, 1) };
    let mut worker = FakeWorker::new(&layout, 8);
    worker.keep = Some(|row| row % 64 == 0);
    let coordinator = FakeCoordinator::new(layout.clone(), true, &[1]);
    coordinator.script(|script| {
        script.most_splits = 16;
        script.consumers = 2;
    });
    let workers = FakeWorkers::new([(1, Arc::new(worker))]);
    let mut consumer = consumer(&coordinator, &workers, true, ClientSettings::default());
    let early = tokio::time::timeout(Duration::from_secs(60), consumer.next()).await;
    assert!(early.is_err(), "the consumer waits");
    let state = coordinator.script(|script| (script.state.clone(), script.held.len()));
    assert_eq!(state, (JobState::Running, 16));
    // The other consumer receives the remaining splits.
    coordinator.script(|script| script.next = None);
    let mut rows = all_ids(&drain_all(&mut consumer).await);
    rows.sort_unstable();
    assert_eq!(rows, [0, 64, 128]);
}

#[tokio::test(start_paused = true)]
async fn splits_without_remaining_rows_fail_the_job() {
    let layout = Layout { changes_rows: true, ..layout(4096, 8, 1, 1) };
    let mut worker = FakeWorker::new(&layout, 8);
    worker.keep = Some(|_| false);
    let coordinator = FakeCoordinator::new(layout.clone(), false, &[1]);
    coordinator.script(|script| script.most_splits = 16);
    let workers = FakeWorkers::new([(1, Arc::new(worker))]);
    let (_, end) = drain(&mut consumer(&coordinator, &workers, false, ClientSettings::default())).await;
    let message = end.expect_err("no batch can be full").to_string();
    assert!(message.starts_with("a batch of 8 rows needs more than 16 splits of 8 rows"), "{message}");
}

/// One piece of each stream exceeds the budget, so pieces arrive in the order of the batches.
#[tokio::test(start_paused = true)]
async fn many_virtual_consumers_share_one_budget() {
    const STREAMS: u32 = 64;
    const BATCH: u64 = 1024 * 8;
    let layout = layout(1 << 18, 1024, STREAMS, 2);
    for (budget, pieces_ahead) in [(BATCH, 0), (8 * BATCH, 5), (1 << 20, 95)] {
        let mut worker = FakeWorker::new(&layout, 1024);
        worker.chunk_bytes = 8192;
        let settings = ClientSettings { buffer_bytes: budget, ..ClientSettings::default() };
        let (worker, mut consumer) = started(worker, &layout, settings);
        let (mut taken, mut most) = (0, 0);
        while let Some(batch) = next(&mut consumer).await.unwrap() {
            taken += u64::from(batch.info.rows) * 8;
            tokio::time::sleep(Duration::from_millis(50)).await;
            let sent = worker.sent_bytes.load(Ordering::SeqCst);
            let allowed = sent + worker.credit_bytes.load(Ordering::SeqCst);
            assert!(
                allowed <= taken + budget + 2 * BATCH,
                "budget {budget}: {allowed} allowed, {taken} taken"
            );
            most = most.max(sent - taken);
        }
        assert_eq!(taken, 1 << 21);
        assert!(most >= pieces_ahead * BATCH, "budget {budget}: at most {most} bytes were fetched ahead");
    }
}

/// The budget is for the next batches, not for later batches of streams that have just delivered one.
#[tokio::test(start_paused = true)]
async fn credit_follows_the_order_of_batches() {
    const STREAMS: u32 = 64;
    const BATCH: u64 = 1024 * 8;
    let layout = layout(1 << 18, 1024, STREAMS, 4);
    let mut worker = FakeWorker::new(&layout, 1024);
    worker.chunk_bytes = 8192;
    let settings = ClientSettings { buffer_bytes: 16 * BATCH, ..ClientSettings::default() };
    let (_, mut consumer) = started(worker, &layout, settings);
    for _ in 0..STREAMS / 2 {
        next(&mut consumer).await.unwrap().unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut arrived = 0;
    while consumer.try_next().unwrap().is_some() {
        arrived += 1;
    }
    // The budget is twelve pieces. Three of them are later batches of the first stream, which fetched its whole split before the
    // size of pieces was known.
    assert_eq!(arrived, 9);
}

/// With the default of four splits ahead, twelve of sixteen workers would wait for their turn.
#[tokio::test(start_paused = true)]
async fn a_consumer_fetches_from_all_workers_concurrently() {
    const WORKERS: u64 = 16;
    let layout = layout(1 << 14, 64, 1, 1);
    let numbers: Vec<u64> = (1..=WORKERS).collect();
    let coordinator = FakeCoordinator::new(layout.clone(), false, &numbers);
    coordinator.script(|script| script.is_spread = true);
    let workers: Vec<Arc<FakeWorker>> = numbers
        .iter()
        .map(|_| {
            let mut worker = FakeWorker::new(&layout, 64);
            worker.pause = Duration::from_millis(1600);
            Arc::new(worker)
        })
        .collect();
    let directory = FakeWorkers::new(numbers.iter().copied().zip(workers.iter().cloned()));
    let mut consumer = consumer(&coordinator, &directory, false, ClientSettings::default());
    for _ in 0..64 {
        next(&mut consumer).await.unwrap().unwrap();
    }
    let started = Instant::now();
    for _ in 0..64 {
        next(&mut consumer).await.unwrap().unwrap();
    }
    // Sixteen workers deliver ten batches per second.
    let took = started.elapsed();
    assert!(took < Duration::from_millis(7_500), "{took:?}");
}
