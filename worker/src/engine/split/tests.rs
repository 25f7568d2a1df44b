//! Pieces of a split: handed out once and in order, computed again for a consumer that has lost them.

use bytes::Bytes;
use feedline_proto::services::PieceHeader;

use super::*;

const LEN: u32 = 10;
const GROUP: u32 = 4;

fn piece(offsets: &Range<u32>) -> FinishedPiece {
    let header = PieceHeader { start: offsets.start, end: offsets.end, ..PieceHeader::default() };
    FinishedPiece { header, data: Bytes::from_static(b"data"), features: None, _queued: None }
}

/// Starts the next group and finishes it.
fn compute(split: &mut SplitState) -> Range<u32> {
    let offsets = split.next_group(LEN, GROUP).expect("a group is left");
    let generation = split.start(&offsets, 1, 0);
    split.finish_group(generation, offsets.start, vec![Arc::new(piece(&offsets))]);
    offsets
}

#[test]
fn groups_end_at_the_same_offsets_whatever_the_start_of_the_lease() {
    let mut split = SplitState::new(3, 1);
    assert_eq!([compute(&mut split), compute(&mut split), compute(&mut split)], [3..4, 4..8, 8..10]);
    assert!(split.is_computed(LEN));
    assert_eq!(split.next_group(LEN, GROUP), None);
}

#[test]
fn a_piece_is_handed_out_once_and_computed_again_after_its_loss() {
    let mut split = SplitState::new(0, 1);
    split.open_fetch(1, 0);
    assert!(split.is_starving());
    compute(&mut split);
    compute(&mut split);
    assert_eq!(split.take_piece(0).map(|piece| piece.header.end), Some(4));
    assert!(split.take_piece(0).is_none());
    split.open_fetch(2, 4);
    assert_eq!(split.fetch, Some(2));
    assert!(split.take_piece(6).is_some(), "the piece that contains row 6 starts at row 4");
    split.open_fetch(3, 0);
    assert_eq!(split.next_group(LEN, GROUP), Some(0..4));
}

#[test]
fn results_of_an_earlier_generation_are_dropped() {
    let mut split = SplitState::new(0, 1);
    compute(&mut split);
    let offsets = split.next_group(LEN, GROUP).expect("a group is left");
    let old = split.start(&offsets, 1, 0);
    split.take_piece(0).expect("it was computed");
    split.open_fetch(1, 0);
    split.finish_group(old, offsets.start, vec![Arc::new(piece(&offsets))]);
    assert!(split.take_piece(4).is_none());
    assert_eq!(split.held_bytes(), 0);
    let offsets = split.next_group(LEN, GROUP).expect("the rows are computed again");
    assert!(split.start(&offsets, 1, 0) > old);
}

#[test]
fn a_failure_comes_after_everything_before_it() {
    let mut split = SplitState::new(0, 1);
    let first = split.next_group(LEN, GROUP).expect("a group is left");
    let generation = split.start(&first, 1, 0);
    let second = split.next_group(LEN, GROUP).expect("a group is left");
    split.start(&second, 1, 0);
    split.fail_group(generation, second.start, "bad row".to_owned());
    assert_eq!(split.failure(0), None, "the first group still runs");
    split.finish_group(generation, first.start, vec![Arc::new(piece(&first))]);
    assert!(split.take_piece(0).is_some());
    assert_eq!(split.failure(4), Some("bad row".to_owned()));
    split.open_fetch(1, 0);
    assert_eq!(split.next_group(LEN, GROUP), Some(0..4), "rows before the failure are computed again");
}

#[test]
fn pieces_that_the_consumer_received_from_another_worker_are_dropped() {
    let mut split = SplitState::new(0, 1);
    compute(&mut split);
    compute(&mut split);
    split.open_fetch(1, 8);
    assert_eq!(split.held_bytes(), 0);
    assert!(split.is_starving());
    assert_eq!(split.next_group(LEN, GROUP), Some(8..10));
    let mut late = SplitState::new(0, 1);
    late.open_fetch(1, 6);
    assert_eq!(
        late.next_group(LEN, GROUP),
        Some(6..8),
        "rows that the consumer has received are not computed"
    );
}

fn start(split: &mut SplitState) -> (u64, Range<u32>) {
    let offsets = split.next_group(LEN, GROUP).expect("a group is left");
    (split.start(&offsets, 7, u64::from(10 - offsets.start)), offsets)
}

#[test]
fn running_groups_and_finished_pieces_hold_bytes() {
    let mut split = SplitState::new(0, 1);
    assert_eq!((split.running_groups(), split.held_bytes(), split.priority()), (0, 0, None));
    let (generation, first) = start(&mut split);
    start(&mut split);
    assert_eq!((split.running_groups(), split.held_bytes(), split.priority()), (2, 14, Some(6)));
    assert!(!split.is_computed(LEN));
    split.finish_group(generation, first.start, vec![Arc::new(piece(&first))]);
    assert_eq!((split.running_groups(), split.held_bytes(), split.priority()), (1, 7 + 4, Some(6)));
}

#[test]
fn a_consumer_starves_only_if_no_group_computes_its_rows() {
    let mut split = SplitState::new(0, 1);
    assert!(!split.is_starving() && !split.is_awaited(), "no fetch is open");
    split.open_fetch(1, 0);
    assert!(split.is_starving() && split.is_awaited());
    let (generation, first) = start(&mut split);
    assert!(!split.is_starving() && split.is_awaited(), "its rows are being computed");
    split.finish_group(generation, first.start, vec![Arc::new(piece(&first))]);
    assert!(!split.is_awaited());
    split.take_piece(0).expect("it is finished");
    assert!(!split.is_awaited(), "the consumer has a piece");
    assert!(split.wait_for(4) && !split.wait_for(4), "the consumer waits already");
    assert!(split.is_starving());
    split.close_fetch(0);
    assert!(split.is_starving(), "an earlier fetch was closed");
    split.close_fetch(1);
    assert!(!split.is_starving() && split.fetch.is_none());
}

#[test]
fn pieces_of_another_stream_are_stored_unless_the_split_has_its_own() {
    let pieces = || vec![Arc::new(piece(&(0..4))), Arc::new(piece(&(4..8)))];
    let mut split = SplitState::new(4, 1);
    split.supply(pieces());
    assert!(split.take_piece(0).is_none(), "the consumer has received the first piece already");
    assert_eq!(split.take_piece(4).map(|piece| piece.header.start), Some(4));
    assert_eq!(split.next_group(LEN, GROUP), Some(8..10), "supplied rows are not computed");
    let mut running = SplitState::new(0, 1);
    start(&mut running);
    running.supply(pieces());
    assert!(running.take_piece(0).is_none());
    let mut finished = SplitState::new(0, 1);
    compute(&mut finished);
    finished.supply(pieces());
    assert!(finished.take_piece(4).is_none());
    let mut failed = SplitState::new(0, 1);
    failed.fail(2, "bad row".to_owned());
    failed.supply(pieces());
    assert!(failed.take_piece(0).is_none());
}

#[test]
fn the_first_failure_of_a_split_counts() {
    let mut split = SplitState::new(0, 1);
    for (offset, message) in [(6, "second"), (3, "first"), (3, "again"), (9, "last")] {
        split.fail(offset, message.to_owned());
    }
    assert_eq!(split.failure(3).as_deref(), Some("first"));
    assert!(!split.has_next(LEN) && split.is_computed(LEN) && split.next_group(LEN, GROUP).is_none());
    split.open_fetch(1, 3);
    assert_eq!(
        split.failure(3).as_deref(),
        Some("first"),
        "a fetch at the failed row does not restart the split"
    );
    split.open_fetch(2, 2);
    assert_eq!(split.failure(2), None);
    assert_eq!(split.next_group(LEN, GROUP), Some(2..4), "the rows before the failure are computed again");
}

#[test]
fn a_fetch_of_a_running_group_does_not_restart_the_split() {
    let mut split = SplitState::new(0, 1);
    let (generation, first) = start(&mut split);
    let (_, second) = start(&mut split);
    for offset in [0, 3, 4, 7] {
        split.open_fetch(u64::from(offset), offset);
        assert_eq!(split.running_groups(), 2, "offset {offset}");
    }
    split.finish_group(generation, second.start, vec![Arc::new(piece(&second))]);
    split.open_fetch(9, 2);
    assert_eq!(split.running_groups(), 1, "row 2 is in the running group");
    split.finish_group(generation, first.start, vec![Arc::new(piece(&first))]);
    assert!(split.take_piece(0).is_some() && split.take_piece(4).is_some());
    split.open_fetch(10, 8);
    assert_eq!(split.next_group(LEN, GROUP), Some(8..10));
    split.open_fetch(11, 5);
    assert_eq!(split.next_group(LEN, GROUP), Some(5..8), "row 5 was handed out and must be computed again");
}

#[test]
fn a_failed_group_of_an_earlier_generation_is_ignored() {
    let mut split = SplitState::new(0, 1);
    let (old, offsets) = start(&mut split);
    split.finish_group(old, offsets.start, vec![Arc::new(piece(&offsets))]);
    split.take_piece(0).expect("it is finished");
    split.open_fetch(1, 0);
    split.fail_group(old, 0, "bad row".to_owned());
    assert_eq!(split.failure(0), None);
    let (generation, offsets) = start(&mut split);
    assert_ne!(generation, old);
    split.fail_group(generation, offsets.start, "bad row".to_owned());
    assert_eq!((split.failure(0).as_deref(), split.running_groups()), (Some("bad row"), 0));
}

#[test]
fn a_revoked_split_has_no_pieces_and_ends_its_fetch() {
    let mut split = SplitState::new(0, 1);
    split.open_fetch(1, 0);
    let (generation, first) = start(&mut split);
    split.finish_group(generation, first.start, vec![Arc::new(piece(&first))]);
    start(&mut split);
    split.revoke();
    assert!(split.cancel.is_cancelled());
    assert_eq!((split.held_bytes(), split.running_groups()), (0, 0));
    assert!(!split.is_awaited() && !split.is_starving());
    let reference = SplitRef { epoch: 0, ordinal: 0, stream: 0 };
    assert!(matches!(split.next_piece(1, reference, 0), (PieceLookup::Unknown, false)));
}

/// Hands out the pieces of the group that the consumer waits for, and waits for the next one.
fn fetch_group(split: &mut SplitState) -> Range<u32> {
    let offsets = compute(split);
    assert_eq!(split.next_group(LEN, GROUP), None, "the consumer has not received the group");
    assert!(split.take_piece(offsets.start).is_some());
    assert_eq!(split.next_group(LEN, GROUP), None, "the consumer does not wait");
    split.wait_for(offsets.end);
    offsets
}

#[test]
fn a_suspect_runs_group_by_group_when_its_consumer_waits() {
    let mut split = SplitState::new(0, 1);
    split.set_lost_workers(1);
    assert!(split.has_next(LEN), "one loss is not evidence");
    split.set_lost_workers(2);
    assert!(!split.has_next(LEN) && !split.is_computed(LEN));
    split.open_fetch(1, 4);
    assert_eq!(split.next_group(LEN, GROUP), Some(4..8), "the consumer has the rows before");
    assert!(!split.is_given_up(&(4..8)));
    assert_eq!([fetch_group(&mut split), fetch_group(&mut split)], [4..8, 8..10]);
    assert!(split.is_computed(LEN));
}

#[test]
fn only_the_group_at_which_the_consumer_continues_is_given_up() {
    let mut split = SplitState::new(0, 1);
    split.set_lost_workers(3);
    assert!(!split.has_next(LEN), "the consumer does not wait");
    split.open_fetch(1, 4);
    let first = fetch_group(&mut split);
    assert!(first == (4..8) && split.is_given_up(&first));
    // The consumer has not received the group and fetches it again.
    split.open_fetch(2, 4);
    let again = fetch_group(&mut split);
    assert!(split.is_given_up(&again));
    let last = fetch_group(&mut split);
    assert!(last == (8..10) && !split.is_given_up(&last));
    split.open_fetch(3, 2);
    let [before, same] = [fetch_group(&mut split), fetch_group(&mut split)];
    assert!(before == (2..4) && !split.is_given_up(&before) && split.is_given_up(&same));
    let mut within = SplitState::new(0, 1);
    within.set_lost_workers(4);
    within.open_fetch(1, 3);
    assert_eq!([fetch_group(&mut within), fetch_group(&mut within)], [3..4, 4..8]);
    within.open_fetch(2, 0);
    assert_eq!(within.next_group(LEN, GROUP), Some(0..3), "row 3 was given up");
}
