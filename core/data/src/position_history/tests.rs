//! What is found of a step is what a list of all batches tells, and nothing else ever.

use proptest::prelude::*;

use super::*;

fn row(epoch: u32, row: u64) -> StreamPosition {
    StreamPosition { epoch, row }
}

fn step(epochs: Option<u32>, rounds: u64, rest: u32) -> StepId {
    StepId { epochs, rounds, rest }
}

/// Takes runs as a consumer does: always of the stream that is furthest behind.
struct Consumer {
    began: Vec<(u32, StreamPosition)>,
    at: Vec<StreamPosition>,
    /// Epoch of each batch, and where all streams stood behind it.
    batches: Vec<(u32, Vec<StreamPosition>)>,
    epochs: u32,
    marks: PositionHistory,
}

const EPOCH_ROWS: u64 = 40;

impl Consumer {
    fn new(began: Vec<StreamPosition>, epochs: u32) -> Self {
        let began: Vec<(u32, StreamPosition)> = (3..).step_by(2).zip(began).collect();
        let at = began.iter().map(|(_, position)| *position).collect();
        Self { marks: PositionHistory::begin(began.clone()), began, at, batches: Vec::new(), epochs }
    }

    /// Takes the next run: `rows` of it, which are a batch or were all removed. Whether there was one.
    fn take(&mut self, rows: u64, is_batch: bool) -> bool {
        let open = (0..self.at.len()).filter(|lane| self.at[*lane].epoch < self.epochs);
        let Some(lane) = open.min_by_key(|lane| self.at[*lane]) else {
            self.marks.end();
            return false;
        };
        let epoch = self.at[lane].epoch;
        let end = self.at[lane].row + rows;
        self.at[lane] = if end >= EPOCH_ROWS { row(epoch + 1, 0) } else { row(epoch, end) };
        if is_batch {
            self.batches.push((epoch, self.at.clone()));
        }
        let batch_of = is_batch.then_some(epoch);
        self.marks.push(DeliveredRun { lane: lane as u32, position: self.at[lane], batch_of });
        true
    }

    /// Where it stands at a step, by a look at all it has had and will have.
    fn stands(&self, step: StepId) -> Vec<(u32, StreamPosition)> {
        let wanted = step.batches(self.began.len());
        let first = self.began.iter().map(|(_, position)| position.epoch).min().expect("it has streams");
        let part = match step.epochs {
            None => wanted.min(self.batches.len() as u64) as usize,
            Some(epochs) => {
                let before = self.batches.iter().filter(|(epoch, _)| *epoch < first + epochs).count();
                let of_it = self.batches.iter().filter(|(epoch, _)| *epoch == first + epochs).count();
                before + of_it.min(wanted as usize)
            }
        };
        match part {
            0 => self.began.clone(),
            _ => {
                let streams = self.began.iter().map(|(stream, _)| *stream);
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
    fn what_is_found_is_where_the_consumer_stands_at_that_step(
        began in prop::collection::vec((0..2_u32, 0..EPOCH_ROWS), 1..4),
        runs in prop::collection::vec((1..9_u64, 0..5_u32), 1..600),
        seen in 0..600_usize,
        steps in prop::collection::vec(steps(), 1..20),
    ) {
        let began = began.into_iter().map(|(epoch, at)| row(epoch, at)).collect();
        let mut consumer = Consumer::new(began, 4);
        let mut early = None;
        // Whatever runs are drawn, all that is left comes in the end.
        for (taken, (rows, kind)) in runs.iter().copied().cycle().take(4_000).enumerate() {
            if taken == seen {
                early = Some((consumer.marks.clone(), consumer.batches.len()));
            }
            if !consumer.take(rows, kind > 0) {
                break;
            }
        }
        consumer.take(1, true);
        let (early, had) = early.unwrap_or_else(|| (consumer.marks.clone(), consumer.batches.len()));
        for step in steps {
            let stands = consumer.stands(step);
            match early.find(step) {
                StepLookup::At(found) => prop_assert_eq!(&found, &stands, "{:?} after {}", step, had),
                StepLookup::Gone => prop_assert!(had > KEPT_BATCHES / 8, "{:?} after {}", step, had),
                StepLookup::Ahead => {
                    prop_assert!(!early.is_over());
                    prop_assert!(step.epochs.is_some() || (had as u64) < step.batches(consumer.began.len()));
                }
            }
            match consumer.marks.find(step) {
                StepLookup::At(found) => prop_assert_eq!(&found, &stands, "{:?} at the end", step),
                StepLookup::Gone => prop_assert!(consumer.batches.len() > KEPT_BATCHES / 8),
                StepLookup::Ahead => prop_assert!(false, "{:?} at the end", step),
            }
        }
    }

    /// Whatever is behind the consumer and not long ago is known.
    #[test]
    fn the_last_batches_are_known(rows in 1..3_u64, removed in 2..9_u32, taken in 1..300_u32, back in 0..120_u64) {
        let mut consumer = Consumer::new(vec![row(0, 0), row(0, 0)], 30);
        (0..taken).for_each(|turn| { consumer.take(rows, turn % removed != 0); });
        let had = consumer.batches.len() as u64;
        let wanted = had.saturating_sub(back);
        let step = step(None, wanted / 2, (wanted % 2) as u32);
        prop_assert_eq!(consumer.marks.find(step), StepLookup::At(consumer.stands(step)));
    }
}

#[test]
fn the_end_of_an_epoch_is_known_once_no_row_of_it_is_left() {
    let mut consumer = Consumer::new(vec![row(0, 0)], 3);
    (0..3).for_each(|_| assert!(consumer.take(10, true)));
    let end = step(Some(1), 0, 0);
    assert_eq!(consumer.marks.find(end), StepLookup::Ahead);
    assert_eq!(consumer.marks.find(step(Some(0), 9, 0)), StepLookup::Ahead, "there may be a fourth batch");
    consumer.take(10, true);
    assert_eq!(consumer.marks.find(end), StepLookup::At(vec![(3, row(1, 0))]));
    assert_eq!(consumer.marks.find(step(Some(0), 9, 0)), StepLookup::At(vec![(3, row(1, 0))]));
    assert_eq!(consumer.marks.find(step(None, 9, 0)), StepLookup::Ahead);
}

#[test]
fn a_consumer_has_come_to_the_end_of_an_epoch_once_it_has_had_its_last_batch() {
    let mut consumer = Consumer::new(vec![row(0, 0)], 3);
    (0..5).for_each(|_| assert!(consumer.take(10, true)));
    let mut marks = consumer.marks;
    marks.foresee(2);
    assert_eq!(marks.find(step(Some(0), 4, 0)), StepLookup::At(vec![(3, row(1, 0))]), "a step is foreseen");
    assert_eq!(marks.find(step(Some(1), 0, 0)), StepLookup::Ahead, "an end is not");
    assert_eq!(marks.find(step(Some(1), 1, 0)), StepLookup::At(vec![(3, row(1, 10))]));
    let mut marks = marks.clone();
    marks.foreseen = 1;
    assert_eq!(marks.find(step(Some(1), 0, 0)), StepLookup::At(vec![(3, row(1, 0))]));
}

#[test]
fn a_consumer_keeps_so_much_and_no_more() {
    let mut consumer = Consumer::new(vec![row(0, 0)], 1000);
    (0..3_000).for_each(|turn| assert!(consumer.take(7, turn % 3 == 0)));
    assert!(consumer.marks.marks().count() <= KEPT_BATCHES);
    assert_eq!(consumer.marks.find(step(None, 5, 0)), StepLookup::Gone);
    let mut removed = PositionHistory::begin(vec![(0, row(0, 0)), (1, row(0, 0))]);
    (0..10_000).for_each(|turn| {
        removed.push(DeliveredRun { lane: turn % 2, position: row(turn, 0), batch_of: None })
    });
    assert_eq!(removed.marks().count(), 2, "of removed rows the last place of each stream");
    assert_eq!(removed.find(step(None, 0, 0)), StepLookup::At(vec![(0, row(0, 0)), (1, row(0, 0))]));
}

#[test]
fn what_does_not_go_together_is_not_read() {
    let began = vec![(0, row(0, 0))];
    let base = HistoryBase { positions: vec![row(0, 0)], ..HistoryBase::default() };
    let mark = DeliveredRun { lane: 0, position: row(0, 1), batch_of: Some(0) };
    let read = |base: &HistoryBase, mark: DeliveredRun| {
        PositionHistory::of_parts(began.clone(), base.clone(), vec![mark], 0, false)
    };
    assert!(read(&base, mark).is_ok());
    assert!(read(&base, DeliveredRun { lane: 1, ..mark }).unwrap_err().contains("beyond 1"));
    assert!(read(&HistoryBase::default(), mark).unwrap_err().contains("where 0 stood"));
    let many = PositionHistory::of_parts(began.clone(), base.clone(), vec![mark; KEPT_BATCHES + 2], 0, false);
    assert!(many.unwrap_err().contains("too many"));
}
