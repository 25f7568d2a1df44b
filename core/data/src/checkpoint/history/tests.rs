//! Tests of position histories: a lookup agrees with a list of all batches.

use proptest::prelude::*;

use super::*;

fn row(epoch: u32, row: u64) -> StreamPosition {
    StreamPosition { epoch, row }
}

fn step(epochs: Option<u32>, rounds: u64, rest: u32) -> StepId {
    StepId { epochs, batches_per_stream: rounds, extra_batches: rest }
}

/// Delivers runs like a consumer: it always delivers from the stream that is furthest behind.
struct Consumer {
    start: Vec<(u32, StreamPosition)>,
    at: Vec<StreamPosition>,
    /// The epoch of each batch, and the positions of all streams after it.
    batches: Vec<(u32, Vec<StreamPosition>)>,
    epochs: u32,
    history: PositionHistory,
}

const EPOCH_ROWS: u64 = 40;

impl Consumer {
    fn new(start: Vec<StreamPosition>, epochs: u32) -> Self {
        let start: Vec<(u32, StreamPosition)> = (3..).step_by(2).zip(start).collect();
        let at = start.iter().map(|(_, position)| *position).collect();
        Self { history: PositionHistory::new(start.clone()), start, at, batches: Vec::new(), epochs }
    }

    /// Delivers the next run of `rows` rows, which form a batch or were all removed. Returns `false` if no run remained.
    fn take(&mut self, rows: u64, is_batch: bool) -> bool {
        let open = (0..self.at.len()).filter(|lane| self.at[*lane].epoch < self.epochs);
        let Some(lane) = open.min_by_key(|lane| self.at[*lane]) else {
            self.history.complete();
            return false;
        };
        let epoch = self.at[lane].epoch;
        let end = self.at[lane].row + rows;
        self.at[lane] = if end >= EPOCH_ROWS { row(epoch + 1, 0) } else { row(epoch, end) };
        if is_batch {
            self.batches.push((epoch, self.at.clone()));
        }
        let batch_epoch = is_batch.then_some(epoch);
        self.history.push(DeliveredRun { stream_index: lane as u32, position: self.at[lane], batch_epoch });
        true
    }

    /// The position at a step, from the list of all batches.
    fn position_at(&self, step: StepId) -> Vec<(u32, StreamPosition)> {
        let wanted = step.batches(self.start.len());
        let first = self.start.iter().map(|(_, position)| position.epoch).min().expect("it has streams");
        let part = match step.epochs {
            None => wanted.min(self.batches.len() as u64) as usize,
            Some(epochs) => {
                let before = self.batches.iter().filter(|(epoch, _)| *epoch < first + epochs).count();
                let of_it = self.batches.iter().filter(|(epoch, _)| *epoch == first + epochs).count();
                before + of_it.min(wanted as usize)
            }
        };
        match part {
            0 => self.start.clone(),
            _ => {
                let streams = self.start.iter().map(|(stream, _)| *stream);
                streams.zip(self.batches[part - 1].1.iter().copied()).collect()
            }
        }
    }
}

fn steps() -> impl Strategy<Value = StepId> {
    (prop::option::of(0..4_u32), 0..220_u64, 0..3_u32)
        .prop_map(|(epochs, rounds, rest)| step(epochs, rounds, rest))
}

proptest! {
    #[test]
    fn a_lookup_returns_the_position_at_the_step(
        start in prop::collection::vec((0..2_u32, 0..EPOCH_ROWS), 1..4),
        runs in prop::collection::vec((1..9_u64, 0..5_u32), 1..600),
        early_after in 0..600_usize,
        steps in prop::collection::vec(steps(), 1..20),
    ) {
        let start = start.into_iter().map(|(epoch, at)| row(epoch, at)).collect();
        let mut consumer = Consumer::new(start, 4);
        let mut early = None;
        // Repeats the generated runs until all rows are delivered.
        for (taken, (rows, kind)) in runs.iter().copied().cycle().take(4_000).enumerate() {
            if taken == early_after {
                early = Some((consumer.history.clone(), consumer.batches.len()));
            }
            if !consumer.take(rows, kind > 0) {
                break;
            }
        }
        consumer.take(1, true);
        let (early, had) = early.unwrap_or_else(|| (consumer.history.clone(), consumer.batches.len()));
        for step in steps {
            let expected = consumer.position_at(step);
            match early.find(step) {
                StepLookup::Found(found) => prop_assert_eq!(&found, &expected, "{:?} after {}", step, had),
                StepLookup::Evicted => prop_assert!(had > HISTORY_BATCHES / 8, "{:?} after {}", step, had),
                StepLookup::NotReached => {
                    prop_assert!(!early.is_complete());
                    prop_assert!(step.epochs.is_some() || (had as u64) < step.batches(consumer.start.len()));
                }
            }
            match consumer.history.find(step) {
                StepLookup::Found(found) => prop_assert_eq!(&found, &expected, "{:?} at the end", step),
                StepLookup::Evicted => prop_assert!(consumer.batches.len() > HISTORY_BATCHES / 8),
                StepLookup::NotReached => prop_assert!(false, "{:?} at the end", step),
            }
        }
    }

    #[test]
    fn recent_steps_are_found(rows in 1..3_u64, removed in 2..9_u32, taken in 1..300_u32, back in 0..120_u64) {
        let mut consumer = Consumer::new(vec![row(0, 0), row(0, 0)], 30);
        (0..taken).for_each(|turn| { consumer.take(rows, turn % removed != 0); });
        let had = consumer.batches.len() as u64;
        let wanted = had.saturating_sub(back);
        let step = step(None, wanted / 2, (wanted % 2) as u32);
        prop_assert_eq!(consumer.history.find(step), StepLookup::Found(consumer.position_at(step)));
    }
}

#[test]
fn the_end_of_an_epoch_is_found_after_its_last_row() {
    let mut consumer = Consumer::new(vec![row(0, 0)], 3);
    (0..3).for_each(|_| assert!(consumer.take(10, true)));
    let end = step(Some(1), 0, 0);
    assert_eq!(consumer.history.find(end), StepLookup::NotReached);
    assert_eq!(
        consumer.history.find(step(Some(0), 9, 0)),
        StepLookup::NotReached,
        "a fourth batch may follow"
    );
    consumer.take(10, true);
    assert_eq!(consumer.history.find(end), StepLookup::Found(vec![(3, row(1, 0))]));
    assert_eq!(consumer.history.find(step(Some(0), 9, 0)), StepLookup::Found(vec![(3, row(1, 0))]));
    assert_eq!(consumer.history.find(step(None, 9, 0)), StepLookup::NotReached);
}

#[test]
fn a_prefetched_batch_does_not_end_an_epoch() {
    let mut consumer = Consumer::new(vec![row(0, 0)], 3);
    (0..5).for_each(|_| assert!(consumer.take(10, true)));
    let mut history = consumer.history;
    history.add_prefetched(2);
    assert_eq!(
        history.find(step(Some(0), 4, 0)),
        StepLookup::Found(vec![(3, row(1, 0))]),
        "a prefetched batch completes a step"
    );
    assert_eq!(history.find(step(Some(1), 0, 0)), StepLookup::NotReached, "but not an epoch");
    assert_eq!(history.find(step(Some(1), 1, 0)), StepLookup::Found(vec![(3, row(1, 10))]));
    history.prefetched = 1;
    assert_eq!(history.find(step(Some(1), 0, 0)), StepLookup::Found(vec![(3, row(1, 0))]));
}

#[test]
fn a_history_is_bounded() {
    let mut consumer = Consumer::new(vec![row(0, 0)], 1000);
    (0..3_000).for_each(|turn| assert!(consumer.take(7, turn % 3 == 0)));
    assert!(consumer.history.runs().count() <= HISTORY_BATCHES);
    assert_eq!(consumer.history.find(step(None, 5, 0)), StepLookup::Evicted);
    let mut removed = PositionHistory::new(vec![(0, row(0, 0)), (1, row(0, 0))]);
    (0..10_000).for_each(|turn| {
        removed.push(DeliveredRun { stream_index: turn % 2, position: row(turn, 0), batch_epoch: None })
    });
    assert_eq!(removed.runs().count(), 2, "the last position of each stream");
    assert_eq!(removed.find(step(None, 0, 0)), StepLookup::Found(vec![(0, row(0, 0)), (1, row(0, 0))]));
}

#[test]
fn inconsistent_parts_are_rejected() {
    let start = vec![(0, row(0, 0))];
    let base = HistoryBase { positions: vec![row(0, 0)], ..HistoryBase::default() };
    let run = DeliveredRun { stream_index: 0, position: row(0, 1), batch_epoch: Some(0) };
    let read = |base: &HistoryBase, run: DeliveredRun| {
        PositionHistory::from_parts(start.clone(), base.clone(), vec![run], 0, false)
    };
    assert!(read(&base, run).is_ok());
    assert!(read(&base, DeliveredRun { stream_index: 1, ..run }).unwrap_err().contains("stream index 1"));
    assert!(read(&HistoryBase::default(), run).unwrap_err().contains("got 0"));
    let many = PositionHistory::from_parts(start, base, vec![run; HISTORY_BATCHES + 2], 0, false);
    assert!(many.unwrap_err().contains("got 258 runs"));
}
