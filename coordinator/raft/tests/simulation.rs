//! A seeded simulation of coordinators, workers and consumers in virtual time. Processes crash, hang, shut down and restart;
//! members are added, removed, and replaced after the loss of a disk; disks are slow, hang or fail; clocks run at different
//! rates; the network loses, repeats and reorders messages, and links are cut. It tests the state machine and the client's
//! assembler.
//!
//! `FEEDLINE_SIM_SEED=17` runs one seed, and `FEEDLINE_SIM_SEEDS=2000` runs 2000 seeds.

#[path = "simulation/application.rs"]
mod application;
#[path = "simulation/check.rs"]
mod check;
#[path = "simulation/consumer.rs"]
mod consumer;
#[path = "simulation/coordinators.rs"]
mod coordinators;
#[path = "simulation/dice.rs"]
mod dice;
#[path = "simulation/golden.rs"]
mod golden;
#[path = "simulation/kept.rs"]
mod kept;
#[path = "simulation/members.rs"]
mod members;
#[path = "simulation/messages.rs"]
mod messages;
#[path = "simulation/network.rs"]
mod network;
#[path = "simulation/scenario.rs"]
mod scenario;
#[path = "simulation/worker.rs"]
mod worker;
#[path = "simulation/world.rs"]
mod world;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::check::{check_empty, check_entries, check_no_repetitions};
use crate::scenario::Scenario;
use crate::world::{Outcome, World};

/// An injected fault, which the simulation must detect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// Assigned splits are not written to the log.
    ForgetAssigned,
    /// Granted leases are not written to the log.
    ForgetLeases,
    /// Replies are sent before their entries are committed.
    EarlyAnswer,
    /// Unfinished writes count as durable.
    EarlyWrite,
    /// A deposed leader still replies.
    StaleLeader,
    /// A membership change is answered before it is committed.
    EarlyChange,
    /// Hung writes count as durable.
    HungWrite,
    /// A repeated piece is delivered twice.
    PieceTwice,
    /// Positions are reported before the rows are delivered.
    EarlyAck,
    /// A restarted consumer forgets the position of its application.
    Forgetful,
}

impl Fault {
    /// Returns the fault to inject into the raft nodes.
    pub(crate) fn of_replica(self) -> Option<feedline_raft::InjectedFault> {
        match self {
            Self::ForgetAssigned => Some(feedline_raft::InjectedFault::ForgetAssigned),
            Self::ForgetLeases => Some(feedline_raft::InjectedFault::ForgetLeases),
            Self::EarlyAnswer => Some(feedline_raft::InjectedFault::EarlyAnswer),
            Self::StaleLeader => Some(feedline_raft::InjectedFault::StaleLeader),
            Self::EarlyChange => Some(feedline_raft::InjectedFault::EarlyChange),
            Self::HungWrite => Some(feedline_raft::InjectedFault::HungWrite),
            _ => None,
        }
    }
}

/// Maximum number of workers that a planted split crashes in a run with faults or failovers.
const MAX_PLANTED_CRASHES: u64 = 30;

/// Runs a seed to the end and checks the outcome.
fn run_whole(seed: u64, fault: Fault) -> Result<Outcome, String> {
    let scenario = Scenario::new(seed);
    let outcome = World::new(&scenario, fault)?.run(None)?;
    check_outcome(&scenario, &outcome)?;
    Ok(outcome)
}

fn check_outcome(scenario: &Scenario, outcome: &Outcome) -> Result<(), String> {
    for (of, (job, entries)) in scenario.jobs.iter().zip(&outcome.entries).enumerate() {
        match (outcome.is_empty[of], outcome.is_given_up[of]) {
            (true, _) => check_empty(job)?,
            (_, true) => check_no_repetitions(job, entries)?,
            _ => check_entries(job, entries, outcome.consumer_crashes == 0)?,
        }
    }
    Ok(())
}

/// Runs a seed's first job, stops the job after some of its batches, and resumes it with different workers and consumers.
fn run_in_two(seed: u64, total: usize) -> Result<(), String> {
    let scenario = Scenario::new(seed).of_one_job();
    let stop = 1 + seed as usize % total.max(1);
    let first = World::new(&scenario, Fault::None)?.run(Some(stop))?;
    let Some(position) = first.position else { return Ok(()) };
    let text = serde_json::to_string(&position).map_err(|error| error.to_string())?;
    let position = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let second = World::new(&scenario.resumed(position), Fault::None)?.run(None)?;
    if second.is_empty[0] || first.is_given_up[0] || second.is_given_up[0] {
        return Ok(());
    }
    let entries: Vec<_> = [first.entries, second.entries].into_iter().flatten().flatten().collect();
    check_entries(&scenario.jobs[0], &entries, false)
}

fn count_given_up(outcome: &Outcome) -> u64 {
    outcome.is_given_up.iter().filter(|given_up| **given_up).count() as u64
}

/// Checks that few seeds end because of lost workers, so that the other checks apply to most of them.
#[track_caller]
fn assert_rare(given_up: &AtomicU64, default_seeds: u64) {
    let (given_up, seeds) = (given_up.load(Ordering::Relaxed), seeds(default_seeds));
    let most = ((seeds.end - seeds.start) / 20).max(1);
    assert!(
        given_up <= most,
        "{given_up} of {seeds:?} jobs ended because workers were lost while they prepared"
    );
}

/// Returns the number in an environment variable.
#[expect(clippy::disallowed_methods, reason = "how a failed seed is run again")]
fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

fn seeds(default: u64) -> Range<u64> {
    match setting("FEEDLINE_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..setting("FEEDLINE_SIM_SEEDS").unwrap_or(default),
    }
}

/// Runs a function for each seed on all cores. A panic counts as a failure.
fn failures(seeds: Range<u64>, run: impl Fn(u64) -> Result<(), String> + Sync) -> Vec<(u64, String)> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicU64::new(seeds.start);
    let work = || {
        let mut failures = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return failures;
            }
            let result = catch_unwind(AssertUnwindSafe(|| run(seed)));
            if let Err(message) = result.unwrap_or_else(|_| Err("it panicked".to_owned())) {
                failures.push((seed, message));
            }
        }
    };
    let mut failures: Vec<(u64, String)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("panics are caught")).collect()
    });
    failures.sort_unstable();
    failures
}

fn assert_none(failures: &[(u64, String)]) {
    let Some((seed, message)) = failures.first() else { return };
    let brief = |(seed, message): &(u64, String)| {
        let start: String = message.chars().take(100).collect();
        format!("\n{seed}: {start}")
    };
    let all: String = failures.iter().map(brief).collect();
    panic!("FEEDLINE_SIM_SEED={seed}: {message}\n{} seeds failed:{all}", failures.len());
}

#[test]
fn every_row_comes_once_in_order_whatever_fails() {
    let given_up = AtomicU64::new(0);
    let run = |seed| {
        let outcome = run_whole(seed, Fault::None)?;
        given_up.fetch_add(count_given_up(&outcome), Ordering::Relaxed);
        Ok(())
    };
    assert_none(&failures(seeds(1_000), run));
    assert_rare(&given_up, 1_000);
}

/// A worker fails the run if it receives a lease before it has loaded the graph of the job.
#[test]
fn sampled_batches_come_once_in_order_from_workers_that_have_loaded_the_graph() {
    let given_up = AtomicU64::new(0);
    let run = |seed| {
        let scenario = Scenario::new(seed).sampling();
        let outcome = World::new(&scenario, Fault::None)?.run(None)?;
        given_up.fetch_add(count_given_up(&outcome), Ordering::Relaxed);
        check_outcome(&scenario, &outcome)
    };
    assert_none(&failures(seeds(200), run));
    assert_rare(&given_up, 200);
}

#[test]
fn two_parts_with_other_workers_and_consumers_equal_the_whole() {
    let run = |seed| {
        let whole = run_whole(seed, Fault::None)?;
        run_in_two(seed, whole.entries.first().map_or(0, Vec::len))
    };
    assert_none(&failures(seeds(120), run));
}

/// A split that crashes each worker is given up after a few losses, and the job then completes. Failovers forget losses
/// that are not confirmed, so that runs with such faults may lose more workers.
#[test]
fn a_split_that_crashes_its_workers_is_given_up() {
    let run = |seed| {
        let scenario = Scenario::new(seed).of_one_job().with_planted_split();
        let outcome = World::new(&scenario, Fault::None)?.run(None)?;
        check_outcome(&scenario, &outcome)?;
        let is_calm = scenario.faults.until == 0 && outcome.failovers == 0;
        // A loss that the coordinator could not attribute to the split excuses another one.
        let limit = if is_calm { 6 } else { MAX_PLANTED_CRASHES };
        match outcome.planted_crashes {
            crashes if crashes > limit => Err(format!("the split has crashed {crashes} workers")),
            _ => Ok(()),
        }
    };
    assert_none(&failures(seeds(200), run));
}

#[test]
fn a_seed_gives_the_same_trace_twice() {
    for seed in seeds(12) {
        let trace = |outcome: Outcome| (outcome.trace, outcome.events, outcome.took_ms);
        let one = run_whole(seed, Fault::None).map(trace);
        let two = run_whole(seed, Fault::None).map(trace);
        assert_eq!(one, two, "FEEDLINE_SIM_SEED={seed}");
    }
}

/// The checks find each injected fault.
#[test]
fn injected_faults_are_found() {
    let faults = [
        Fault::ForgetAssigned,
        Fault::ForgetLeases,
        Fault::EarlyAnswer,
        Fault::EarlyWrite,
        Fault::StaleLeader,
        Fault::EarlyChange,
        Fault::HungWrite,
        Fault::PieceTwice,
        Fault::EarlyAck,
        Fault::Forgetful,
    ];
    for fault in faults {
        let found = AtomicBool::new(false);
        let run = |seed| {
            // One seed that finds the fault is enough.
            if !found.load(Ordering::Relaxed) && !passes(seed, fault) {
                found.store(true, Ordering::Relaxed);
            }
            Ok(())
        };
        failures(0..1_000, run);
        assert!(found.into_inner(), "1,000 seeds do not find {fault:?}");
    }
}

/// Whether the run of a seed passes all checks.
fn passes(seed: u64, fault: Fault) -> bool {
    catch_unwind(AssertUnwindSafe(|| run_whole(seed, fault).is_ok())).unwrap_or(false)
}
