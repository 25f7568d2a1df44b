//! A split's pieces: handed out once, in order, computed again for a consumer that lost them.

use bytes::Bytes;
use feedline_proto::services::PieceHeader;

use super::*;

const LEN: u32 = 10;
const GROUP: u32 = 4;

fn piece(offsets: &Range<u32>) -> FinishedPiece {
    let header = PieceHeader { from: offsets.start, to: offsets.end, ..PieceHeader::default() };
    FinishedPiece { header, data: Bytes::from_static(b"data"), _waiting: None }
}

/// Starts the next group and finishes it.
fn compute(split: &mut SplitState) -> Range<u32> {
    let offsets = split.next_group(LEN, GROUP).expect("a group is left");
    let generation = split.start(&offsets, 1, 0);
    split.finish(generation, &offsets, Ok(piece(&offsets)));
    offsets
}

#[test]
fn groups_end_at_the_same_places_wherever_the_split_begins() {
    let mut split = SplitState::new(3, 1);
    assert_eq!([compute(&mut split), compute(&mut split), compute(&mut split)], [3..4, 4..8, 8..10]);
    assert!(split.is_computed(LEN));
    assert_eq!(split.next_group(LEN, GROUP), None);
}

#[test]
fn a_piece_is_handed_out_once_and_computed_again_when_it_was_lost() {
    let mut split = SplitState::new(0, 1);
    split.open_fetch(1, 0);
    assert!(split.is_starving());
    compute(&mut split);
    compute(&mut split);
    assert_eq!(split.take_piece(0).map(|piece| piece.header.to), Some(4));
    assert!(split.take_piece(0).is_none());
    split.open_fetch(2, 4);
    assert_eq!(split.fetch, Some(2));
    assert!(split.take_piece(6).is_some(), "the piece that holds row 6 begins at 4");
    split.open_fetch(3, 0);
    assert_eq!(split.next_group(LEN, GROUP), Some(0..4));
}

#[test]
fn results_of_before_a_restart_are_of_no_use() {
    let mut split = SplitState::new(0, 1);
    compute(&mut split);
    let offsets = split.next_group(LEN, GROUP).expect("a group is left");
    let old = split.start(&offsets, 1, 0);
    split.take_piece(0).expect("it was computed");
    split.open_fetch(1, 0);
    split.finish(old, &offsets, Ok(piece(&offsets)));
    assert!(split.take_piece(4).is_none());
    assert_eq!(split.held_bytes(), 0);
}

#[test]
fn a_failure_comes_after_everything_before_it() {
    let mut split = SplitState::new(0, 1);
    let first = split.next_group(LEN, GROUP).expect("a group is left");
    let generation = split.start(&first, 1, 0);
    let second = split.next_group(LEN, GROUP).expect("a group is left");
    split.start(&second, 1, 0);
    split.finish(generation, &second, Err("bad row".to_owned()));
    assert_eq!(split.failure(0), None, "the first group still runs");
    split.finish(generation, &first, Ok(piece(&first)));
    assert!(split.take_piece(0).is_some());
    assert_eq!(split.failure(4), Some("bad row".to_owned()));
    split.open_fetch(1, 0);
    assert_eq!(split.next_group(LEN, GROUP), Some(0..4), "rows before the failure are computed again");
}

#[test]
fn pieces_that_the_consumer_has_from_elsewhere_are_dropped() {
    let mut split = SplitState::new(0, 1);
    compute(&mut split);
    compute(&mut split);
    split.open_fetch(1, 8);
    assert_eq!(split.held_bytes(), 0);
    assert!(split.is_starving());
    assert_eq!(split.next_group(LEN, GROUP), Some(8..10));
    let mut late = SplitState::new(0, 1);
    late.open_fetch(1, 6);
    assert_eq!(late.next_group(LEN, GROUP), Some(6..8), "rows before are not computed for nothing");
}
