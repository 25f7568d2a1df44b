//! Jobs with random faults, by seed: the batches are equal to those without faults. `fastrand` determines the pauses between
//! retries.

use feedline_data::random::mix64;

use super::*;

/// A seeded random number generator.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 = mix64(self.0 + 1);
        self.0 % limit
    }
}

fn worker(layout: &Layout, random: &mut Random) -> Arc<FakeWorker> {
    let piece_rows = if layout.indivisible { layout.batch_rows } else { 1 + random.below(9) as u32 };
    let mut worker = FakeWorker::new(layout, piece_rows);
    worker.chunk_bytes = 1 + random.below(60) as usize;
    worker.pause = Duration::from_millis(random.below(2) * random.below(300));
    for _ in 0..random.below(12) {
        worker = worker.with_act(match random.below(5) {
            0 => Act::FailAfter(random.below(4) as u32),
            1 => Act::EndAfter(random.below(4) as u32),
            2 => Act::NotFound,
            3 => Act::Silent,
            _ => Act::Serve,
        });
    }
    Arc::new(worker)
}

pub(super) fn job(random: &mut Random, streams: u64) -> Layout {
    let rows = streams + random.below(200);
    let batch = 1 + random.below(8) as u32;
    let epochs = 1 + random.below(2) as u32;
    Layout { epochs, ..layout(rows, batch, streams as u32, 1 + random.below(4)) }
}

pub(super) fn settings(random: &mut Random) -> ClientSettings {
    ClientSettings {
        splits_ahead: 1 + random.below(5) as u32,
        buffer_bytes: 1 + random.below(1 << 18),
        ..ClientSettings::default()
    }
}

pub(super) fn workers(layout: &Layout, random: &mut Random) -> Arc<FakeWorkers> {
    FakeWorkers::new([(1, worker(layout, random)), (2, worker(layout, random))])
}

#[tokio::test(start_paused = true)]
async fn deterministic_batches_do_not_depend_on_faults() {
    for seed in 0..150 {
        fastrand::seed(seed);
        let mut random = Random(seed);
        let streams = 1 + random.below(4);
        let layout = job(&mut random, streams);
        let holders: &[u64] = if random.below(2) == 0 { &[1] } else { &[1, 2] };
        let coordinator = FakeCoordinator::new(layout.clone(), false, holders);
        let workers = workers(&layout, &mut random);
        let mut consumer = consumer(&coordinator, &workers, false, settings(&mut random));
        let mut taken = Vec::new();
        while let Some(batch) = consumer.next().await.unwrap() {
            taken.push((batch.info.stream, ids(&batch)));
            let mut state = consumer.view.shared.lock();
            state.check_indexes();
            if random.below(8) == 0 {
                state.check_fetch_commands(Instant::now());
                state.check_indexes();
            }
        }
        assert_eq!(taken, expected(&layout), "seed {seed}");
        consumer.close().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn relaxed_rows_are_delivered_once_despite_faults() {
    for seed in 0..150 {
        fastrand::seed(seed);
        let mut random = Random(1000 + seed);
        let layout = job(&mut random, 1);
        let holders: &[u64] = if random.below(2) == 0 { &[1] } else { &[1, 2] };
        let coordinator = FakeCoordinator::new(layout.clone(), true, holders);
        let workers = workers(&layout, &mut random);
        let mut consumer = consumer(&coordinator, &workers, true, settings(&mut random));
        let batches = drain_all(&mut consumer).await;
        consumer.view.shared.lock().check_indexes();
        let mut taken = all_ids(&batches);
        taken.sort_unstable();
        let rows = layout.epoch_rows() * u64::from(layout.epochs);
        assert_eq!(taken, (0..rows).collect::<Vec<_>>(), "seed {seed}");
        let full = batches.iter().filter(|batch| batch.info.rows == layout.batch_rows).count() as u64;
        assert_eq!(
            full,
            rows / u64::from(layout.batch_rows),
            "seed {seed}: only the last batch may be smaller"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn batches_of_hundreds_of_streams_are_in_order() {
    let layout = layout(6_000, 2, 600, 2);
    let coordinator = FakeCoordinator::new(layout.clone(), false, &[1]);
    let workers = FakeWorkers::new([(1, Arc::new(FakeWorker::new(&layout, 3)))]);
    let mut consumer = consumer(&coordinator, &workers, false, ClientSettings::default());
    let batches = drain_all(&mut consumer).await;
    let taken: Vec<_> = batches.iter().map(|batch| (batch.info.stream, ids(batch))).collect();
    assert_eq!(taken, expected(&layout));
    consumer.view.shared.lock().check_indexes();
}
