//! Tests of the CPU pool's queue.

use feedline_data::random::mix64;

use super::*;

/// Serves one after the other, each job's work taking its own time; the time that each job got.
fn serve(queue: &mut WorkQueue<u64>, rounds: usize, seconds: impl Fn(u64) -> f64) -> BTreeMap<u64, f64> {
    let mut got = BTreeMap::new();
    for _ in 0..rounds {
        let NextWork::Work(served, job) = queue.pop(0.0) else { panic!("there is work") };
        let took = seconds(job);
        queue.done(served, took);
        *got.entry(job).or_default() += took;
        queue.push(JobId(job), 0, job);
    }
    got
}

fn fill(queue: &mut WorkQueue<u64>, jobs: &[u64]) {
    for job in jobs {
        for _ in 0..4 {
            queue.push(JobId(*job), 0, *job);
        }
    }
}

#[test]
fn jobs_get_time_in_proportion_to_their_shares_whatever_their_work_takes() {
    for seed in 0..100 {
        let dice = |number: u64| mix64(seed * 100 + number);
        let shares: BTreeMap<JobId, f64> =
            (1..=3).map(|job| (JobId(job), (dice(job) % 40 + 1) as f64 / 4.0)).collect();
        let mut queue = WorkQueue::new(2);
        queue.set_shares(0.0, shares.clone(), BTreeMap::new());
        fill(&mut queue, &[1, 2, 3]);
        let got = serve(&mut queue, 20_000, |job| (dice(job + 10) % 20 + 1) as f64 / 1000.0);
        let all: f64 = got.values().sum();
        let shared: f64 = shares.values().sum();
        for (job, share) in &shares {
            let (is, wanted) = (got[&job.0] / all, share / shared);
            assert!((is - wanted).abs() < 0.01, "seed {seed}: {is} of the time, not {wanted}");
        }
    }
}

#[test]
fn a_job_that_had_nothing_to_do_does_not_catch_up() {
    let mut queue = WorkQueue::new(1);
    queue.set_shares(0.0, [(JobId(1), 1.0), (JobId(2), 1.0)].into(), BTreeMap::new());
    fill(&mut queue, &[1]);
    serve(&mut queue, 1000, |_| 1.0);
    fill(&mut queue, &[2]);
    let got = serve(&mut queue, 100, |_| 1.0);
    assert!((got[&1] - got[&2]).abs() <= 2.0, "{got:?}");
}

#[test]
fn without_shares_the_most_urgent_of_all_jobs_is_first() {
    let mut queue = WorkQueue::new(2);
    for (job, priority) in [(1, 3), (2, 1), (1, 2), (3, 4)] {
        queue.push(JobId(job), priority, priority);
    }
    queue.set_shares(0.0, [(JobId(3), 100.0)].into(), BTreeMap::new());
    queue.set_shares(0.0, BTreeMap::new(), BTreeMap::new());
    let order: Vec<u64> = std::iter::from_fn(|| work(&mut queue, 0.0)).collect();
    assert_eq!(order, [1, 2, 3, 4]);
}

#[test]
fn shares_change_while_work_waits_and_none_is_lost() {
    let mut queue = WorkQueue::new(2);
    fill(&mut queue, &[1, 2]);
    queue.set_shares(0.0, [(JobId(1), 3.0), (JobId(2), 1.0)].into(), BTreeMap::new());
    let got = serve(&mut queue, 4000, |_| 0.01);
    assert!((got[&1] / got[&2] - 3.0).abs() < 0.1, "{got:?}");
    queue.set_shares(0.0, [(JobId(1), 1.0), (JobId(2), 1.0)].into(), BTreeMap::new());
    let got = serve(&mut queue, 4000, |_| 0.01);
    assert!((got[&1] / got[&2] - 1.0).abs() < 0.1, "{got:?}");
    // One has a share of half of what all threads are.
    queue.set_shares(0.0, [(JobId(1), 1.0)].into(), BTreeMap::new());
    let got = serve(&mut queue, 3000, |_| 0.01);
    assert!((got[&2] / got[&1] - 2.0).abs() < 0.1, "{got:?}");
    assert_eq!(std::iter::from_fn(|| work(&mut queue, 0.0)).count(), 8);
}

fn work(queue: &mut WorkQueue<u64>, at: f64) -> Option<u64> {
    match queue.pop(at) {
        NextWork::Work(_, job) => Some(job),
        NextWork::At(_) | NextWork::Nothing => None,
    }
}

/// Threads that serve a queue for a while, each job's work taking its own time; the thread seconds that each job got.
fn serve_on(
    threads: usize,
    queue: &mut WorkQueue<u64>,
    until: f64,
    seconds: impl Fn(u64) -> f64,
) -> BTreeMap<u64, f64> {
    let mut got = BTreeMap::new();
    // When each thread is free, and what it is at.
    let mut busy: Vec<(f64, Option<(RunningWork, u64)>)> = vec![(0.0, None); threads];
    loop {
        let next = busy.iter_mut().min_by(|a, b| a.0.total_cmp(&b.0)).expect("there is a thread");
        let now = next.0;
        if now >= until {
            return got;
        }
        if let Some((served, job)) = next.1.take() {
            queue.done(served, seconds(job));
            *got.entry(job).or_default() += seconds(job);
            queue.push(JobId(job), 0, job);
        }
        match queue.pop(now) {
            NextWork::Work(served, job) => *next = (now + seconds(job), Some((served, job))),
            NextWork::At(at) => next.0 = at,
            NextWork::Nothing => next.0 = now + 0.001,
        }
    }
}

#[test]
fn a_job_uses_no_more_than_its_limit_however_much_is_idle() {
    for seed in 0..50 {
        let dice = |number: u64| mix64(seed * 100 + number);
        let limits: BTreeMap<JobId, f64> =
            (1..=2).map(|job| (JobId(job), (dice(job) % 300 + 5) as f64 / 100.0)).collect();
        let mut queue = WorkQueue::new(8);
        queue.set_shares(0.0, [(JobId(1), 1.0)].into(), limits.clone());
        fill(&mut queue, &[1, 2]);
        let seconds = |job| (dice(job + 10) % 20 + 1) as f64 / 1000.0;
        let got = serve_on(8, &mut queue, 20.0, seconds);
        for (job, limit) in &limits {
            let used = got[&job.0] / 20.0;
            assert!(used <= limit * 1.02 + 0.02, "seed {seed}: {used} threads of {limit}");
            // Four pieces of work at a time are no more than four threads.
            assert!(used >= 0.9 * limit.min(4.0) - 0.02, "seed {seed}: {used} threads of {limit}");
        }
    }
}

#[test]
fn what_a_limit_leaves_is_the_others() {
    let mut queue = WorkQueue::new(4);
    queue.set_shares(0.0, [(JobId(1), 3.0), (JobId(2), 1.0)].into(), [(JobId(1), 0.5)].into());
    fill(&mut queue, &[1, 2]);
    let got = serve_on(4, &mut queue, 10.0, |_| 0.005);
    assert!((got[&1] / 10.0 - 0.5).abs() < 0.03, "{got:?}");
    assert!(got[&2] / 10.0 > 3.3, "{got:?}");
}

#[test]
fn time_without_work_is_not_saved_up() {
    let mut queue = WorkQueue::new(4);
    queue.set_shares(0.0, BTreeMap::new(), [(JobId(1), 1.0)].into());
    fill(&mut queue, &[1]);
    assert!(matches!(queue.pop(100.0), NextWork::Work(served, _) if served.line == Some(JobId(1))));
    let served = RunningWork { line: Some(JobId(1)), reckoned_seconds: 0.0, limit: 1.0 };
    queue.done(served, 0.5);
    let NextWork::At(at) = queue.pop(100.0) else { panic!("it has used half a second") };
    assert!((at - 100.4).abs() < 1e-9, "{at}");
    assert!(matches!(queue.pop(at), NextWork::Work(..)));
}

#[test]
fn no_more_is_under_way_than_the_limit_rounded_up() {
    for (limit, most) in [(0.01, 1), (1.0, 1), (2.5, 3)] {
        let mut queue = WorkQueue::new(16);
        queue.set_shares(0.0, BTreeMap::new(), [(JobId(1), limit)].into());
        (0..16).for_each(|number| queue.push(JobId(1), 0, number));
        let mut taken = Vec::new();
        while let NextWork::Work(served, _) = queue.pop(0.0) {
            taken.push(served);
        }
        assert_eq!(taken.len(), most, "a limit of {limit}");
        assert!(queue.begins(0.0).is_none() && matches!(queue.pop(0.0), NextWork::Nothing));
        queue.done(taken[0], 0.0);
        assert!(matches!(queue.pop(0.0), NextWork::Work(..)), "one is done");
    }
}

#[test]
fn what_a_job_owes_of_a_limit_does_not_outlive_it() {
    let mut queue = WorkQueue::new(16);
    let limit = |limit: f64| BTreeMap::from([(JobId(1), limit)]);
    queue.set_shares(0.0, BTreeMap::new(), limit(0.01));
    fill(&mut queue, &[1]);
    let NextWork::Work(served, _) = queue.pop(0.0) else { panic!("there is work") };
    queue.done(served, 1.0);
    assert!(matches!(queue.pop(0.0), NextWork::At(at) if at > 90.0), "a second is a hundred at the limit");
    queue.set_shares(0.0, BTreeMap::new(), limit(0.02));
    let NextWork::At(at) = queue.pop(0.0) else { panic!("it owes something still") };
    assert!((at - LONGEST_DEBT).abs() < 1e-9, "{at}");
    queue.set_shares(0.5, BTreeMap::new(), limit(0.2));
    let NextWork::At(at) = queue.pop(0.5) else { panic!("it owes something still") };
    assert!((at - 0.55).abs() < 1e-9, "{at}: half a second at a limit ten times as wide");
    let NextWork::Work(served, _) = queue.pop(0.56) else { panic!("there is work") };
    queue.set_shares(0.56, [(JobId(1), 1.0)].into(), BTreeMap::new());
    queue.done(served, 9.0);
    assert!(matches!(queue.pop(0.56), NextWork::Work(..)), "without a limit nothing is owed");
}

#[test]
fn however_limits_change_the_wait_is_short() {
    for seed in 0..100 {
        let dice = |number: u64| mix64(seed * 10_000 + number);
        let mut queue = WorkQueue::new(16);
        let (mut at, mut under_way) = (0.0, Vec::new());
        for step in 0..200 {
            at += (dice(4 * step) % 100) as f64 / 1000.0;
            // No two after each other are equal.
            let limit = (dice(4 * step + 1) % 300 + 1) as f64 / 100.0 + (step % 2) as f64 * 0.005;
            queue.set_shares(at, BTreeMap::new(), [(JobId(1), limit)].into());
            queue.push(JobId(1), 0, step);
            match queue.pop(at) {
                NextWork::Work(served, _) => under_way.push(served),
                NextWork::At(time) => {
                    assert!(time <= at + LONGEST_DEBT + 1e-9, "seed {seed}: {time} at {at}")
                }
                NextWork::Nothing => assert!(under_way.len() as f64 >= limit.ceil(), "seed {seed}: {limit}"),
            }
            if dice(4 * step + 2) % 2 == 0
                && let Some(served) = under_way.pop()
            {
                queue.done(served, (dice(4 * step + 3) % 3000) as f64 / 1000.0);
            }
        }
    }
}
