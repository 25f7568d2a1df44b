//! Tests of the CPU pool's queue.

use feedline_data::random::mix64;

use super::*;

/// Runs work on one thread. `seconds` is the duration of a job's work. Returns the time of each job.
fn serve(queue: &mut WorkQueue<u64>, rounds: usize, seconds: impl Fn(u64) -> f64) -> BTreeMap<u64, f64> {
    let mut got = BTreeMap::new();
    for _ in 0..rounds {
        let NextWork::Work(running, job) = queue.pop(0.0) else { panic!("work is waiting") };
        let took = seconds(job);
        queue.finish(running, took);
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
fn jobs_get_time_in_proportion_to_their_shares() {
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
            let (actual, wanted) = (got[&job.0] / all, share / shared);
            assert!((actual - wanted).abs() < 0.01, "seed {seed}: {actual} of the time instead of {wanted}");
        }
    }
}

#[test]
fn an_idle_job_does_not_catch_up() {
    let mut queue = WorkQueue::new(1);
    queue.set_shares(0.0, [(JobId(1), 1.0), (JobId(2), 1.0)].into(), BTreeMap::new());
    fill(&mut queue, &[1]);
    serve(&mut queue, 1000, |_| 1.0);
    fill(&mut queue, &[2]);
    let got = serve(&mut queue, 100, |_| 1.0);
    assert!((got[&1] - got[&2]).abs() <= 2.0, "{got:?}");
}

#[test]
fn without_shares_the_most_urgent_work_of_all_jobs_is_first() {
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
fn no_work_is_lost_when_shares_change() {
    let mut queue = WorkQueue::new(2);
    fill(&mut queue, &[1, 2]);
    queue.set_shares(0.0, [(JobId(1), 3.0), (JobId(2), 1.0)].into(), BTreeMap::new());
    let got = serve(&mut queue, 4000, |_| 0.01);
    assert!((got[&1] / got[&2] - 3.0).abs() < 0.1, "{got:?}");
    queue.set_shares(0.0, [(JobId(1), 1.0), (JobId(2), 1.0)].into(), BTreeMap::new());
    let got = serve(&mut queue, 4000, |_| 0.01);
    assert!((got[&1] / got[&2] - 1.0).abs() < 0.1, "{got:?}");
    // Job 1 has a share of one thread, and job 2 has the share of both.
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

/// Runs work on several threads until a time. `seconds` is the duration of a job's work. Returns the thread seconds of each job.
fn serve_on(
    threads: usize,
    queue: &mut WorkQueue<u64>,
    until: f64,
    seconds: impl Fn(u64) -> f64,
) -> BTreeMap<u64, f64> {
    let mut got = BTreeMap::new();
    // The time when each thread is idle, and its work until then.
    let mut busy: Vec<(f64, Option<(RunningWork, u64)>)> = vec![(0.0, None); threads];
    loop {
        let next = busy.iter_mut().min_by(|a, b| a.0.total_cmp(&b.0)).expect("there is a thread");
        let now = next.0;
        if now >= until {
            return got;
        }
        if let Some((running, job)) = next.1.take() {
            queue.finish(running, seconds(job));
            *got.entry(job).or_default() += seconds(job);
            queue.push(JobId(job), 0, job);
        }
        match queue.pop(now) {
            NextWork::Work(running, job) => *next = (now + seconds(job), Some((running, job))),
            NextWork::At(at) => next.0 = at,
            NextWork::Nothing => next.0 = now + 0.001,
        }
    }
}

#[test]
fn a_job_never_exceeds_its_limit_even_if_threads_are_idle() {
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
            // A job has four tasks, so it uses at most four threads.
            assert!(used >= 0.9 * limit.min(4.0) - 0.02, "seed {seed}: {used} threads of {limit}");
        }
    }
}

#[test]
fn other_jobs_use_the_time_that_a_limit_leaves() {
    let mut queue = WorkQueue::new(4);
    queue.set_shares(0.0, [(JobId(1), 3.0), (JobId(2), 1.0)].into(), [(JobId(1), 0.5)].into());
    fill(&mut queue, &[1, 2]);
    let got = serve_on(4, &mut queue, 10.0, |_| 0.005);
    assert!((got[&1] / 10.0 - 0.5).abs() < 0.03, "{got:?}");
    assert!(got[&2] / 10.0 > 3.3, "{got:?}");
}

#[test]
fn idle_time_is_saved_only_for_a_moment() {
    let mut queue = WorkQueue::new(4);
    queue.set_shares(0.0, BTreeMap::new(), [(JobId(1), 1.0)].into());
    fill(&mut queue, &[1]);
    assert!(matches!(queue.pop(100.0), NextWork::Work(running, _) if running.queue == Some(JobId(1))));
    let running = RunningWork { queue: Some(JobId(1)), estimated_seconds: 0.0, limit: 1.0 };
    queue.finish(running, 0.5);
    let NextWork::At(at) = queue.pop(100.0) else { panic!("the job has used half a second") };
    assert!((at - 100.4).abs() < 1e-9, "{at}");
    assert!(matches!(queue.pop(at), NextWork::Work(..)));
}

#[test]
fn running_tasks_do_not_exceed_the_limit_rounded_up() {
    for (limit, most) in [(0.01, 1), (1.0, 1), (2.5, 3)] {
        let mut queue = WorkQueue::new(16);
        queue.set_shares(0.0, BTreeMap::new(), [(JobId(1), limit)].into());
        (0..16).for_each(|number| queue.push(JobId(1), 0, number));
        let mut started = Vec::new();
        while let NextWork::Work(running, _) = queue.pop(0.0) {
            started.push(running);
        }
        assert_eq!(started.len(), most, "a limit of {limit}");
        assert!(queue.next_start(0.0).is_none() && matches!(queue.pop(0.0), NextWork::Nothing));
        queue.finish(started[0], 0.0);
        assert!(matches!(queue.pop(0.0), NextWork::Work(..)), "one task has finished");
    }
}

#[test]
fn the_debt_of_a_limit_ends_with_the_limit() {
    let mut queue = WorkQueue::new(16);
    let limit = |limit: f64| BTreeMap::from([(JobId(1), limit)]);
    queue.set_shares(0.0, BTreeMap::new(), limit(0.01));
    fill(&mut queue, &[1]);
    let NextWork::Work(running, _) = queue.pop(0.0) else { panic!("work is waiting") };
    queue.finish(running, 1.0);
    assert!(
        matches!(queue.pop(0.0), NextWork::At(at) if at > 90.0),
        "one second takes a hundred seconds at this limit"
    );
    queue.set_shares(0.0, BTreeMap::new(), limit(0.02));
    let NextWork::At(at) = queue.pop(0.0) else { panic!("the job still has a debt") };
    assert!((at - DEBT_SECONDS_MAX).abs() < 1e-9, "{at}");
    queue.set_shares(0.5, BTreeMap::new(), limit(0.2));
    let NextWork::At(at) = queue.pop(0.5) else { panic!("the job still has a debt") };
    assert!((at - 0.55).abs() < 1e-9, "{at}: half a second of debt at a limit ten times as large");
    let NextWork::Work(running, _) = queue.pop(0.56) else { panic!("work is waiting") };
    queue.set_shares(0.56, [(JobId(1), 1.0)].into(), BTreeMap::new());
    queue.finish(running, 9.0);
    assert!(matches!(queue.pop(0.56), NextWork::Work(..)), "a job without a limit has no debt");
}

#[test]
fn the_wait_stays_short_when_limits_change() {
    for seed in 0..100 {
        let dice = |number: u64| mix64(seed * 10_000 + number);
        let mut queue = WorkQueue::new(16);
        let (mut at, mut running_work) = (0.0, Vec::new());
        for step in 0..200 {
            at += (dice(4 * step) % 100) as f64 / 1000.0;
            // Consecutive limits differ.
            let limit = (dice(4 * step + 1) % 300 + 1) as f64 / 100.0 + (step % 2) as f64 * 0.005;
            queue.set_shares(at, BTreeMap::new(), [(JobId(1), limit)].into());
            queue.push(JobId(1), 0, step);
            match queue.pop(at) {
                NextWork::Work(running, _) => running_work.push(running),
                NextWork::At(time) => {
                    assert!(time <= at + DEBT_SECONDS_MAX + 1e-9, "seed {seed}: {time} at {at}")
                }
                NextWork::Nothing => {
                    assert!(running_work.len() as f64 >= limit.ceil(), "seed {seed}: {limit}")
                }
            }
            if dice(4 * step + 2) % 2 == 0
                && let Some(running) = running_work.pop()
            {
                queue.finish(running, (dice(4 * step + 3) % 3000) as f64 / 1000.0);
            }
        }
    }
}
