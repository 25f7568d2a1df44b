//! Tests of merged reads.

use futures::FutureExt;

use super::*;

const MAX_GAP: u64 = 10;
const MAX_BYTES: u64 = 100;

fn object(version: &str) -> ObjectVersion {
    ObjectVersion {
        job: JobId(1),
        client: 0,
        part: 0,
        url: "s3://b/x".to_owned(),
        version: version.to_owned(),
    }
}

fn bytes(range: &Range<u64>) -> Bytes {
    range.clone().map(|byte| byte as u8).collect::<Vec<u8>>().into()
}

fn join<'a>(reads: &'a MergedReads, range: Range<u64>) -> ReadTurn<'a> {
    reads.join(&object("1"), &range, MAX_GAP, MAX_BYTES)
}

fn owner(turn: ReadTurn<'_>) -> OwnedRead<'_> {
    match turn {
        ReadTurn::Owner(owned) => owned,
        ReadTurn::Follower(_) => panic!("expected a new read"),
    }
}

fn follower(turn: ReadTurn<'_>) -> oneshot::Receiver<ReadResult> {
    match turn {
        ReadTurn::Owner(_) => panic!("expected to share a read"),
        ReadTurn::Follower(receiver) => receiver,
    }
}

#[test]
fn waiting_reads_of_near_ranges_share_a_request() {
    let reads = MergedReads::default();
    let first = owner(join(&reads, 50..60));
    let after = follower(join(&reads, 65..70));
    let before = follower(join(&reads, 40..45));
    let inside = follower(join(&reads, 42..66));
    let far = owner(join(&reads, 81..90));
    let too_large = owner(join(&reads, 0..142));
    assert!(matches!(reads.join(&object("2"), &(50..60), MAX_GAP, MAX_BYTES), ReadTurn::Owner(_)));
    let range = first.read().send();
    assert_eq!(range, 40..70);
    // The first read was sent, so that the range joins the next one.
    let joined = follower(join(&reads, 70..75));
    let shared = follower(join(&reads, 50..70));
    assert_eq!(first.finish(&(50..60), Ok(bytes(&range))), Ok(bytes(&(50..60))));
    for (receiver, range) in [(after, 65..70), (before, 40..45), (inside, 42..66), (shared, 50..70)] {
        assert_eq!(receiver.now_or_never(), Some(Ok(Ok(bytes(&range)))));
    }
    assert_eq!(far.read().range(), 70..90);
    drop((far, too_large));
    assert!(joined.now_or_never().expect("it ended").is_err());
    assert!(reads.lock().is_empty());
}

#[test]
fn errors_and_cancellation_reach_all_callers() {
    let reads = MergedReads::default();
    let error = || SourceError::NotFound { url: "s3://b/x".to_owned() };
    let first = owner(join(&reads, 0..10));
    let second = follower(join(&reads, 10..20));
    assert_eq!(first.finish(&(0..10), Err(error())), Err(error()));
    assert_eq!(second.now_or_never(), Some(Ok(Err(error()))));
    let cancelled = owner(join(&reads, 0..10));
    let second = follower(join(&reads, 10..20));
    drop(cancelled);
    assert!(second.now_or_never().expect("it ended").is_err(), "the caller tries again");
    drop(owner(join(&reads, 10..20)));
}

#[test]
fn a_small_part_of_a_request_does_not_keep_its_buffer() {
    let reads = MergedReads::default();
    let first = owner(join(&reads, 0..80));
    let (large, small) = (follower(join(&reads, 10..70)), follower(join(&reads, 70..80)));
    let whole = bytes(&(0..80));
    let memory = whole.as_ptr_range();
    let is_shared = |part: &Bytes| memory.contains(&part.as_ptr());
    assert!(is_shared(&first.finish(&(0..80), Ok(whole.clone())).expect("the read succeeded")));
    let part = |receiver: oneshot::Receiver<ReadResult>| {
        receiver.now_or_never().expect("it ended").expect("it was sent").expect("the read succeeded")
    };
    let (large, small) = (part(large), part(small));
    assert!(is_shared(&large) && !is_shared(&small));
    assert_eq!(small, bytes(&(70..80)));
}
