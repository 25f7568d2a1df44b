//! The totals of the lease table equal a recomputation over all splits after any sequence of events.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use feedline_data::pipeline::Remainder;
use feedline_data::random::mix64;
use feedline_proto::services::PieceHeader;

use super::job_leases::NextGroup;
use super::*;
use crate::engine::piece::FinishedPiece;

const GROUP_ROWS: u32 = 4;

pub(in crate::engine) fn layout(coordinated: bool) -> Layout {
    Layout {
        dataset_rows: 240,
        passes: 1,
        epochs: 2,
        streams: 4,
        batch_rows: 4,
        remainder: Remainder::Emit,
        changes_rows: coordinated,
        split_rows: 10,
        group_rows: 4,
        coordinated,
        runs: Default::default(),
        mix_changes: Vec::new(),
        unbounded: false,
        indivisible: false,
    }
}

fn piece(offsets: &Range<u32>, bytes: usize) -> FinishedPiece {
    let header = PieceHeader { start: offsets.start, end: offsets.end, ..PieceHeader::default() };
    FinishedPiece { header, data: Bytes::from(vec![0; bytes]), features: None, _queued: None }
}

/// Numbers that a seed determines.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = mix64(self.0);
        self.0 % bound
    }
}

/// The first group that may start, found by testing all splits of a job.
fn first_by_scan(leases: &JobLeases, accepts: impl Fn(&SplitState, u32) -> bool) -> Option<NextGroup> {
    let layout = leases.layout.as_ref()?;
    let runs = |round: &SplitRef| {
        let of_round =
            leases.order.iter().filter(|split| (split.epoch, split.ordinal) == (round.epoch, round.ordinal));
        layout.coordinated
            && of_round.filter_map(|split| leases.get(*split)).any(|split| split.lock().running_groups() > 0)
    };
    let is_candidate = |split: &&SplitRef| {
        let state = leases.get(**split).expect("the table contains the lease").lock().clone();
        let len = layout.split_len(**split);
        state.has_next(len)
            && !leases.parked_streams.contains(&split.stream)
            && !runs(split)
            && accepts(&state, len)
    };
    let next = |split: &SplitRef| {
        NextGroup::new(*split, leases.get(*split).map_or(0, |state| state.lock().next_offset()))
    };
    leases.order.iter().filter(is_candidate).map(next).min()
}

fn check(table: &LeaseTable, what: &str) {
    let (mut count, mut streams, mut computed) = (0, 0, BTreeSet::new());
    for (id, leases) in table.jobs() {
        let all: Vec<(SplitRef, SplitState)> = leases
            .order
            .iter()
            .map(|split| (*split, leases.get(*split).expect("the table contains the lease").lock().clone()))
            .collect();
        count += all.len();
        let numbers: BTreeSet<u32> = all.iter().map(|(split, _)| split.stream).collect();
        streams += numbers.len();
        assert_eq!(
            leases.held_bytes(),
            all.iter().map(|(_, state)| state.held_bytes()).sum::<u64>(),
            "{what}"
        );
        assert_eq!(
            leases.running_groups(),
            all.iter().map(|(_, state)| state.running_groups()).sum::<usize>(),
            "{what}"
        );
        assert_eq!(leases.has_waiting_consumer(), all.iter().any(|(_, state)| state.is_awaited()), "{what}");
        for stream in numbers {
            let own = all.iter().filter(|(split, _)| split.stream == stream);
            let bytes: u64 = own.map(|(_, state)| state.held_bytes()).sum();
            assert_eq!(leases.stream_bytes(stream), bytes, "{what}");
            let own = all.iter().filter(|(split, _)| split.stream == stream);
            let running = own.filter(|(_, state)| state.running_groups() > 0).map(|(split, _)| *split);
            assert_eq!(leases.streams[&stream].running, running.collect(), "{what}");
        }
        for (split, _) in &all {
            let later = all.iter().filter(|(other, _)| other.stream == split.stream && other > split);
            let first = later.filter_map(|(_, state)| state.priority()).min();
            assert_eq!(leases.first_later_priority(*split), first, "{what}");
            assert!(leases.has_round(split.epoch, split.ordinal), "{what}");
        }
        assert_eq!(leases.first_startable(), first_by_scan(leases, |_, _| true), "{what}");
        if leases.parked_streams.is_empty() {
            let starving = first_by_scan(leases, |state, _| state.is_starving());
            assert_eq!(leases.first_starving(), starving, "{what}");
        }
        if let Some(layout) = &leases.layout {
            let started = all.iter().filter(|(split, state)| !state.has_next(layout.split_len(*split)));
            assert_eq!(leases.started_splits(), started.count(), "{what}");
            let done = all.iter().filter(|(split, state)| state.is_computed(layout.split_len(*split)));
            computed.extend(done.map(|(split, _)| (id, *split)));
        }
    }
    assert_eq!((table.len(), table.streams()), (count, (streams as u64).max(1)), "{what}");
    assert_eq!(table.computed(), &computed, "{what}");
}

/// Applies one random event: a lease is added or removed, a fetch opens, a group starts or finishes, a piece is taken.
fn step(
    table: &mut LeaseTable,
    running: &mut Vec<(JobId, SplitRef, u64, Range<u32>)>,
    dice: &mut Dice,
    number: u64,
) {
    let job = JobId(dice.below(3));
    let plan = layout(job == JobId(2));
    let split =
        SplitRef { epoch: dice.below(2) as u32, ordinal: dice.below(3), stream: dice.below(4) as u32 };
    let len = plan.split_len(split);
    match dice.below(11) {
        0 | 1 if !table.contains(job, split) => {
            let known = (dice.below(4) > 0).then_some(&plan);
            table.insert(job, split, SplitState::new(dice.below(4) as u32, number as u32), known);
        }
        2 => drop(table.remove(job, split)),
        3 => table.set_layout(job, &plan),
        4 => _ = table.update(job, split, |state| state.open_fetch(number, dice.below(10) as u32)),
        5 => {
            // A fetch changes its split, and the engine updates the totals later.
            if let Some(shared) = table.shared(job, split) {
                shared.lock().take_piece(dice.below(10) as u32);
            }
            table.update(job, split, |_| ());
        }
        6 if dice.below(6) == 0 => {
            table.update(job, split, |state| state.fail(dice.below(10) as u32, "bad row".to_owned()));
        }
        7 => {
            if let Some(leases) = table.job_mut(job) {
                leases.park(split.stream);
            }
        }
        8 => {
            if let Some(leases) = table.job_mut(job) {
                leases.set_share(StreamShare { bytes: dice.below(2), group_bytes: 0 });
            }
        }
        9 if !running.is_empty() => {
            let place = dice.below(running.len() as u64) as usize;
            let (job, split, generation, offsets) = running.swap_remove(place);
            let pieces = vec![Arc::new(piece(&offsets, dice.below(50) as usize))];
            table.update(job, split, |state| state.finish_group(generation, offsets.start, pieces));
        }
        // Only loaded jobs start groups.
        _ if table.job(job).is_some_and(|leases| leases.layout.is_some()) => {
            let started = table.update(job, split, |state| {
                let offsets = state.next_group(len, GROUP_ROWS)?;
                Some((state.start(&offsets, dice.below(100), dice.below(1000)), offsets))
            });
            if let Some((generation, offsets)) = started.flatten() {
                running.push((job, split, generation, offsets));
            }
        }
        _ => {}
    }
}

#[test]
fn totals_equal_a_recomputation_after_any_events() {
    for seed in 0..100 {
        let (mut table, mut running, mut dice) = (LeaseTable::default(), Vec::new(), Dice(seed));
        for number in 1..300 {
            step(&mut table, &mut running, &mut dice, number);
            check(&table, &format!("seed {seed}, event {number}"));
        }
        for (job, split) in table.keys() {
            table.remove(job, split).expect("the table contains the lease");
        }
        check(&table, &format!("seed {seed}, at the end"));
        assert!(table.is_empty() && table.jobs().next().is_none());
    }
}

fn split(ordinal: u64, stream: u32) -> SplitRef {
    SplitRef { epoch: 0, ordinal, stream }
}

#[test]
fn a_parked_stream_opens_again_when_it_holds_fewer_bytes_or_has_a_larger_share() {
    let mut table = LeaseTable::default();
    for stream in [0, 1] {
        table.insert(JobId(1), split(0, stream), SplitState::new(0, 1), Some(&layout(false)));
    }
    table.update(JobId(1), split(0, 0), |state| {
        let generation = state.start(&(0..4), 10, 0);
        state.finish_group(generation, 0, vec![Arc::new(piece(&(0..4), 10))]);
    });
    let leases = table.job_mut(JobId(1)).expect("the job has leases");
    leases.set_share(StreamShare { bytes: 1, group_bytes: 1 });
    leases.park(0);
    let first_startable = |leases: &JobLeases| leases.first_startable().map(NextGroup::split);
    assert_eq!(first_startable(leases), Some(split(0, 1)));
    leases.park(1);
    assert!(leases.first_startable().is_none() && leases.is_ready());
    table.update(JobId(1), split(0, 0), |state| state.take_piece(0)).expect("the table contains the lease");
    let leases = table.job_mut(JobId(1)).expect("the job has leases");
    assert_eq!(first_startable(leases), Some(split(0, 0)), "the stream holds fewer bytes");
    leases.park(0);
    leases.set_share(StreamShare { bytes: 1, group_bytes: 1 });
    assert_eq!(leases.first_startable(), None, "nothing has changed");
    leases.set_share(StreamShare { bytes: 2, group_bytes: 1 });
    assert_eq!(first_startable(leases), Some(split(0, 1)));
}

#[test]
fn the_streams_of_a_round_of_splits_advance_together() {
    let mut table = LeaseTable::default();
    for (ordinal, stream) in [(0, 0), (0, 1), (1, 0)] {
        table.insert(JobId(1), split(ordinal, stream), SplitState::new(0, 1), Some(&layout(false)));
    }
    let mut order = Vec::new();
    while let Some(first) = table.job(JobId(1)).and_then(JobLeases::first_startable) {
        let split = first.split();
        let offsets = table.update(JobId(1), split, |state| {
            let offsets =
                state.next_group(layout(false).split_len(split), GROUP_ROWS).expect("a group may start");
            state.start(&offsets, 1, 0);
            offsets.start
        });
        order.push((split.ordinal, offsets.expect("the table contains the lease"), split.stream));
    }
    let expected =
        [(0, 0, 0), (0, 0, 1), (0, 4, 0), (0, 4, 1), (0, 8, 0), (0, 8, 1), (1, 0, 0), (1, 4, 0), (1, 8, 0)];
    assert_eq!(order, expected);
}

#[test]
fn a_round_that_runs_for_one_stream_is_not_started_for_another() {
    let mut table = LeaseTable::default();
    for (ordinal, stream) in [(0, 0), (0, 1), (1, 1)] {
        table.insert(JobId(1), split(ordinal, stream), SplitState::new(0, 1), Some(&layout(true)));
    }
    table.update(JobId(1), split(0, 0), |state| state.start(&(0..10), 1, 0));
    let first = table.job(JobId(1)).and_then(JobLeases::first_startable);
    assert_eq!(first.map(NextGroup::split), Some(split(1, 1)));
}

#[test]
fn a_late_split_overtakes_the_groups_of_its_own_stream_only() {
    let mut table = LeaseTable::default();
    for (ordinal, stream) in [(1, 0), (2, 0), (0, 1)] {
        table.insert(JobId(1), split(ordinal, stream), SplitState::new(0, 1), Some(&layout(false)));
    }
    table.update(JobId(1), split(2, 0), |state| state.start(&(0..4), 1, 70));
    table.update(JobId(1), split(0, 1), |state| state.start(&(0..4), 1, 50));
    let leases = table.job(JobId(1)).expect("the job has leases");
    assert_eq!(leases.first_later_priority(split(1, 0)), Some(70));
    assert_eq!(leases.first_later_priority(split(2, 0)), None);
}

#[test]
fn a_plan_grants_new_leases_and_revokes_missing_ones() {
    let key = |job, ordinal, stream| (JobId(job), split(ordinal, stream));
    let previous = [key(1, 0, 0), key(1, 1, 1), key(2, 0, 0), key(4, 0, 0)];
    let lease = |job, ordinal, stream| Lease {
        job: JobId(job),
        split: split(ordinal, stream),
        start_offset: 7,
        lost_workers: 0,
    };
    let plan = [lease(3, 0, 0), lease(2, 0, 0), lease(1, 1, 0), lease(1, 1, 1), lease(3, 0, 0)];
    let changes = LeaseChanges::new(&previous, &plan);
    assert_eq!(changes.granted, [lease(1, 1, 0), lease(3, 0, 0)]);
    assert_eq!(changes.revoked, [key(1, 0, 0), key(4, 0, 0)]);
    assert_eq!(changes.planned, [key(1, 1, 0), key(1, 1, 1), key(2, 0, 0), key(3, 0, 0)]);
    assert_eq!(LeaseChanges::new(&previous, &[]).revoked, previous);
}
