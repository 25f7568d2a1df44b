//! Tests of the consumer: batches do not depend on the sizes of pieces, and each input row is counted once.

use proptest::prelude::*;

use super::*;
use crate::layout::StreamPosition;

fn layout(rows: u64, batch: u32, split_batches: u64, remainder: Remainder, changes_rows: bool) -> Layout {
    Layout {
        dataset_rows: rows,
        passes: 1,
        epochs: 2,
        streams: 1,
        batch_rows: batch,
        remainder,
        changes_rows,
        split_rows: split_batches * u64::from(batch),
        group_rows: batch,
        coordinated: false,
        runs: Default::default(),
        mix_changes: Vec::new(),
        unbounded: false,
        indivisible: false,
    }
}

fn first_splits(layout: &Layout, from: StreamPosition) -> Vec<(SplitRef, u32)> {
    let mut splits = Vec::new();
    let mut next = layout.locate(0, from);
    while let Some((split, offset)) = next {
        splits.push((split, offset));
        next = layout.next_split(split).map(|split| (split, 0));
    }
    splits
}

/// The payload of a piece: the global number of each row.
type Rows = std::rc::Rc<Vec<u64>>;

fn number(layout: &Layout, split: SplitRef, offset: u32) -> u64 {
    u64::from(split.epoch) * layout.epoch_rows() + layout.split_range(split).start + u64::from(offset)
}

/// Divides a split's rows into pieces of `cut` input rows. Keeps the rows for which `keep` is true.
fn pieces(
    layout: &Layout,
    split: SplitRef,
    from: u32,
    cut: u32,
    keep: &dyn Fn(u64) -> bool,
) -> Vec<Piece<Rows>> {
    let len = layout.split_len(split);
    let mut out = Vec::new();
    let mut start = from;
    while start < len {
        let to = (start + cut).min(len);
        let kept: Vec<u32> = (start..to).filter(|&offset| keep(number(layout, split, offset))).collect();
        let payload = Rows::new(kept.iter().map(|&offset| number(layout, split, offset)).collect());
        let kept = layout.changes_rows.then_some(kept);
        out.push(Piece { split, start, end: to, kept_offsets: kept, payload });
        start = to;
    }
    out
}

struct Delivered {
    batches: Vec<Vec<u64>>,
    dropped: u64,
    inputs: Vec<u64>,
}

/// Delivers batches, starting at `start`, and stops after `stop` batches. `order` selects the split whose next piece
/// arrives. Returns the position after the batches.
fn deliver(
    layout: &Layout,
    start: StreamPosition,
    cut: u32,
    keep: &dyn Fn(u64) -> bool,
    mut order: u64,
    stop: usize,
) -> (Delivered, StreamPosition) {
    let mut assembler: Assembler<Rows> = Assembler::new(layout.clone());
    let splits = first_splits(layout, start);
    let mut queues: Vec<VecDeque<Piece<Rows>>> = Vec::new();
    for (place, (split, from)) in splits.iter().enumerate() {
        let last = splits.get(place + 1).is_none_or(|(next, _)| next.epoch != split.epoch);
        assembler.expect_split(*split, *from, last && layout.remainder != Remainder::Carry);
        queues.push(pieces(layout, *split, *from, cut, keep).into());
    }
    assembler.end_stream();
    let mut out = Delivered { batches: Vec::new(), dropped: 0, inputs: Vec::new() };
    loop {
        while let Some(next) = assembler.next_run() {
            let rows: Vec<u64> = next
                .parts
                .iter()
                .flat_map(|part| part.payload[part.rows.start as usize..part.rows.end as usize].to_vec())
                .collect();
            assert_eq!(rows.len() as u32, next.rows);
            for part in &next.parts {
                out.inputs.extend(part.input_range.clone().map(|offset| number(layout, part.split, offset)));
            }
            match next.kind {
                RunKind::Batch => out.batches.push(rows),
                RunKind::Dropped => out.dropped += rows.len() as u64,
                RunKind::Removed => assert!(rows.is_empty()),
            }
            if out.batches.len() == stop {
                let end = StreamPosition { epoch: layout.epochs, row: 0 };
                let position = assembler
                    .undelivered_splits()
                    .next()
                    .map(|(split, offset)| layout.position_in(split, offset));
                return (out, position.unwrap_or(end));
            }
        }
        let waiting: Vec<usize> = (0..queues.len()).filter(|&place| !queues[place].is_empty()).collect();
        if waiting.is_empty() {
            break;
        }
        order = crate::random::mix64(order);
        let place = waiting[(order % waiting.len() as u64) as usize];
        let piece = queues[place].pop_front().expect("not empty");
        assert!(assembler.push(piece.clone()));
        assert!(!assembler.push(piece), "a piece that comes twice is ignored");
    }
    assert!(assembler.is_finished());
    (out, StreamPosition { epoch: layout.epochs, row: 0 })
}

fn remainders() -> impl Strategy<Value = Remainder> {
    prop_oneof![Just(Remainder::Emit), Just(Remainder::Drop), Just(Remainder::Carry)]
}

proptest! {
    #[test]
    fn batches_depend_neither_on_pieces_nor_on_arrival(
        rows in 1u64..300, batch in 1u32..20, split_batches in 1u64..4, remainder in remainders(),
        cuts in (1u32..40, 1u32..40), orders in (any::<u64>(), any::<u64>()), filter in 1u64..4,
    ) {
        let layout = layout(rows, batch, split_batches, remainder, true);
        let keep = move |row: u64| crate::random::mix64(row).is_multiple_of(filter);
        let start = StreamPosition::default();
        let (one, _) = deliver(&layout, start, cuts.0, &keep, orders.0, usize::MAX);
        let (two, _) = deliver(&layout, start, cuts.1, &keep, orders.1, usize::MAX);
        prop_assert_eq!(&one.batches, &two.batches);
        prop_assert_eq!(&one.inputs, &(0..2 * rows).collect::<Vec<_>>());
        let kept = (0..2 * rows).filter(|&row| keep(row)).count() as u64;
        let delivered: u64 = one.batches.iter().map(|batch| batch.len() as u64).sum();
        prop_assert_eq!(delivered + one.dropped, kept);
        if remainder != Remainder::Drop {
            prop_assert_eq!(one.dropped, 0);
        }
        if remainder == Remainder::Carry && !one.batches.is_empty() {
            let full = &one.batches[..one.batches.len() - 1];
            prop_assert!(full.iter().all(|rows| rows.len() as u32 == batch));
        }
    }

    #[test]
    fn a_resumed_stream_equals_an_uninterrupted_stream(
        rows in 1u64..300, batch in 1u32..20, split_batches in 1u64..4, remainder in remainders(),
        cuts in (1u32..40, 1u32..40), order: u64, filter in 1u64..4, stop: prop::sample::Index,
    ) {
        let layout = layout(rows, batch, split_batches, remainder, true);
        let keep = move |row: u64| crate::random::mix64(row).is_multiple_of(filter);
        let start = StreamPosition::default();
        let (whole, _) = deliver(&layout, start, cuts.0, &keep, order, usize::MAX);
        prop_assume!(!whole.batches.is_empty());
        let stop = stop.index(whole.batches.len()) + 1;
        let (first, position) = deliver(&layout, start, cuts.1, &keep, order, stop);
        let (second, _) = deliver(&layout, position, cuts.0, &keep, order, usize::MAX);
        let joined: Vec<_> = first.batches.into_iter().chain(second.batches).collect();
        prop_assert_eq!(joined, whole.batches);
        let inputs: Vec<_> = first.inputs.into_iter().chain(second.inputs).collect();
        prop_assert_eq!(inputs, whole.inputs);
    }

    #[test]
    fn streams_have_the_steps_of_the_layout_if_operators_keep_all_rows(
        rows in 1u64..300, batch in 1u32..20, split_batches in 1u64..4, drop: bool, cut in 1u32..40,
    ) {
        let remainder = if drop { Remainder::Drop } else { Remainder::Emit };
        let layout = layout(rows, batch, split_batches, remainder, false);
        prop_assume!(layout.stream_rows(0) > 0);
        let (out, _) = deliver(&layout, StreamPosition::default(), cut, &|_| true, 1, usize::MAX);
        prop_assert_eq!(out.batches.len() as u64, 2 * layout.steps().expect("rows are not changed"));
        prop_assert_eq!(out.dropped, 0);
    }
}

proptest! {
    #[test]
    fn indivisible_batches_are_whole_and_in_order_and_arrive_once(
        rows in 1u64..300, batch in 1u32..20, split_batches in 1u64..4, changes_rows: bool, drop: bool,
        orders in (any::<u64>(), any::<u64>()), filter in 1u64..4, stop: prop::sample::Index,
    ) {
        let remainder = if drop { Remainder::Drop } else { Remainder::Emit };
        let layout = layout(rows, batch, split_batches, remainder, changes_rows);
        let layout = Layout { indivisible: true, ..layout };
        prop_assume!(layout.stream_rows(0) > 0);
        let keep = move |row: u64| !changes_rows || crate::random::mix64(row).is_multiple_of(filter);
        let start = StreamPosition::default();
        let (one, _) = deliver(&layout, start, batch, &keep, orders.0, usize::MAX);
        let (two, _) = deliver(&layout, start, batch, &keep, orders.1, usize::MAX);
        prop_assert_eq!(&one.batches, &two.batches);
        prop_assert_eq!(one.dropped, 0);
        let expected: Vec<Vec<u64>> = (0..2)
            .flat_map(|epoch| (0..layout.stream_rows(0)).step_by(batch as usize).map(move |row| (epoch, row)))
            .map(|(epoch, row)| {
                let end = (row + u64::from(batch)).min(layout.stream_rows(0));
                (row..end).map(|row| epoch * rows + row).filter(|row| keep(*row)).collect()
            })
            .collect();
        prop_assert_eq!(Some(expected.len() as u64), layout.steps().map(|steps| 2 * steps));
        prop_assert_eq!(&one.batches, &expected);
        let stop = stop.index(expected.len()) + 1;
        let (first, position) = deliver(&layout, start, batch, &keep, orders.1, stop);
        prop_assert!(position.row.is_multiple_of(u64::from(batch)));
        let (second, _) = deliver(&layout, position, batch, &keep, orders.0, usize::MAX);
        prop_assert_eq!(first.batches.into_iter().chain(second.batches).collect::<Vec<_>>(), expected);
        prop_assert_eq!(first.inputs.into_iter().chain(second.inputs).collect::<Vec<_>>(), one.inputs);
    }

    #[test]
    fn pieces_that_divide_indivisible_batches_are_ignored(
        batch in 1u32..10, split_batches in 1u64..4, start in 0u32..30, len in 1u32..30,
    ) {
        let layout = Layout { indivisible: true, ..layout(25, batch, split_batches, Remainder::Emit, false) };
        let split = SplitRef { epoch: 0, ordinal: 0, stream: 0 };
        let mut assembler = Assembler::new(layout.clone());
        assembler.expect_split(split, 0, false);
        let piece = Piece { split, start, end: start + len, kept_offsets: None, payload: () };
        let is_first = start == 0 && len == batch.min(layout.split_len(split));
        prop_assert_eq!(assembler.push(piece), is_first);
        prop_assert_eq!(assembler.has_run(), is_first);
        prop_assert_eq!(assembler.next_run().map(|run| run.rows), is_first.then_some(len));
    }
}

#[test]
fn a_piece_from_another_worker_is_trimmed_to_the_missing_rows() {
    let layout = layout(8, 4, 2, Remainder::Emit, false);
    let split = SplitRef { epoch: 0, ordinal: 0, stream: 0 };
    let mut assembler = Assembler::new(layout);
    assembler.expect_split(split, 0, true);
    let piece = |from, to| Piece { split, start: from, end: to, kept_offsets: None, payload: () };
    assert!(assembler.push(piece(0, 3)));
    assert!(!assembler.push(piece(5, 8)), "a gap");
    assert!(assembler.push(piece(0, 8)), "overlaps: the first three rows are cut off");
    let batch = assembler.next_run().expect("eight rows are there");
    assert_eq!(batch.parts.iter().map(|part| part.rows.clone()).collect::<Vec<_>>(), [0..3, 3..4]);
}

#[test]
fn a_stream_without_rows_in_the_last_step_delivers_an_empty_batch() {
    let divisible = Layout { streams: 2, ..layout(9, 4, 1, Remainder::Emit, false) };
    check_empty_last_step(&divisible);
    check_empty_last_step(&Layout { indivisible: true, ..divisible.clone() });
    check_empty_last_step(&Layout { indivisible: true, changes_rows: true, ..divisible });
}

/// Checks the second of two streams, which have 9 rows in batches of 4.
fn check_empty_last_step(layout: &Layout) {
    assert_eq!((layout.stream_rows(0), layout.stream_rows(1), layout.steps()), (5, 4, Some(2)));
    let mut assembler = Assembler::new(layout.clone());
    for epoch in 0..2 {
        let split = SplitRef { epoch, ordinal: 0, stream: 1 };
        assembler.expect_split(split, 0, true);
        let kept_offsets = layout.changes_rows.then(|| vec![0, 1, 2, 3]);
        assembler.push(Piece { split, start: 0, end: 4, kept_offsets, payload: () });
    }
    assembler.end_stream();
    let batch = |assembler: &mut Assembler<()>| {
        assembler.next_run().map(|batch| (batch.kind, batch.epoch, batch.rows))
    };
    assert_eq!(batch(&mut assembler), Some((RunKind::Batch, 0, 4)));
    assert_eq!(assembler.pending_empty_step_epoch(), Some(0));
    assert_eq!(batch(&mut assembler), Some((RunKind::Batch, 0, 0)));
    assert_eq!(batch(&mut assembler), Some((RunKind::Batch, 1, 4)));
    assert!(!assembler.is_finished());
    assert_eq!(batch(&mut assembler), Some((RunKind::Batch, 1, 0)));
    assert!(assembler.is_finished());
}

#[test]
fn a_relaxed_stream_does_not_keep_splits_without_rows() {
    let layout = layout(16, 4, 1, Remainder::Emit, true);
    let mut assembler: Assembler<Rows> = Assembler::relaxed(layout.clone());
    let keep = |row: u64| row == 6 || row >= 12;
    for (split, from) in first_splits(&layout, StreamPosition::default()).into_iter().take(4) {
        assembler.expect_split(split, from, false);
        for piece in pieces(&layout, split, from, 2, &keep) {
            assembler.push(piece);
        }
    }
    let run = |assembler: &mut Assembler<Rows>| {
        assert_eq!(assembler.has_run(), assembler.clone().next_run().is_some());
        let run = assembler.next_run()?;
        let inputs = run.parts.iter().map(|part| part.input_range.len()).sum::<usize>();
        Some((run.kind, run.rows, inputs))
    };
    assert_eq!(run(&mut assembler), Some((RunKind::Removed, 0, 4)), "the first split has no rows");
    assert_eq!(run(&mut assembler), Some((RunKind::Batch, 4, 11)), "the second has one, the third none");
    assert_eq!(run(&mut assembler), None, "the last row of the last split waits for a batch");
    assert_eq!(assembler.undelivered_splits().count(), 1);
}
