//! Records each second of a run, and computes the totals and the demand changes of the report.

use super::report::{DemandChange, JobOutcome, ScalingChange, SimulatedSecond};

/// Seconds after the last change of demand for which reversed scaling decisions count as oscillations.
const OSCILLATION_WINDOW_S: u32 = 300;

/// The accumulated times of a job's consumers, in nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ConsumerTimes {
    pub(super) stall_ns: u64,
    pub(super) step_ns: u64,
}

/// The state of the simulation at the end of one second.
#[derive(Debug)]
pub(super) struct ElapsedSecond {
    pub(super) at_s: u32,
    pub(super) workers: u32,
    pub(super) wanted: u32,
    pub(super) demand_rows_per_s: f64,
    /// Delivered rows of all jobs since the start.
    pub(super) rows: u64,
    /// Rows that have arrived and are not delivered.
    pub(super) lag_rows: u64,
    /// The accumulated times of each job's consumers.
    pub(super) job_times: Vec<ConsumerTimes>,
}

/// All seconds and decisions of a run.
#[derive(Debug)]
pub(super) struct Recording {
    warm_up_s: u32,
    /// The accumulated times of each job at the last second.
    last_times: Vec<ConsumerTimes>,
    /// The accumulated times of each job at the end of the warm-up.
    warm_up_times: Vec<ConsumerTimes>,
    /// The sum and the count of the planned fed fractions of each job.
    planned_fed: Vec<(f64, u32)>,
    rows: u64,
    stall_ns: u64,
    pub(super) seconds: Vec<SimulatedSecond>,
    pub(super) decisions: Vec<ScalingChange>,
}

impl Recording {
    pub(super) fn new(warm_up_s: u32, jobs: usize) -> Self {
        Self {
            warm_up_s,
            last_times: vec![ConsumerTimes::default(); jobs],
            warm_up_times: vec![ConsumerTimes::default(); jobs],
            planned_fed: vec![(0.0, 0); jobs],
            rows: 0,
            stall_ns: 0,
            seconds: Vec::new(),
            decisions: Vec::new(),
        }
    }

    pub(super) fn on_second(&mut self, elapsed: ElapsedSecond) {
        let ElapsedSecond { at_s, workers, wanted, demand_rows_per_s, rows, lag_rows, job_times } = elapsed;
        let (mut smallest_fed, mut sum) = (1.0_f64, 0.0);
        for (now, before) in job_times.iter().zip(&self.last_times) {
            let stall_ns = now.stall_ns - before.stall_ns;
            let all_ns = stall_ns + now.step_ns - before.step_ns;
            let fed = 1.0 - stall_ns as f64 / all_ns.max(1) as f64;
            smallest_fed = smallest_fed.min(fed);
            sum += fed;
            self.stall_ns += if at_s > self.warm_up_s { stall_ns } else { 0 };
        }
        self.seconds.push(SimulatedSecond {
            at_s,
            workers,
            wanted,
            demand_rows_per_s,
            rows: rows - self.rows,
            lag_rows,
            smallest_fed,
            mean_fed: sum / job_times.len().max(1) as f64,
        });
        (self.rows, self.last_times) = (rows, job_times);
        if at_s <= self.warm_up_s {
            self.warm_up_times.clone_from(&self.last_times);
        }
    }

    /// Records the planned fed fraction of a job.
    pub(super) fn record_planned_fed_fraction(&mut self, job: usize, at_s: u32, fed_fraction: f64) {
        if let Some((sum, count)) = self.planned_fed.get_mut(job).filter(|_| at_s > self.warm_up_s) {
            *sum += fed_fraction;
            *count += 1;
        }
    }

    /// Returns the measured and the planned fed fraction of each job.
    pub(super) fn outcomes<'a>(&self, names: impl Iterator<Item = &'a str>) -> Vec<JobOutcome> {
        let outcome = |(job, name): (usize, &str)| {
            let (now, before) = (self.last_times[job], self.warm_up_times[job]);
            let stall_ns = now.stall_ns - before.stall_ns;
            let all_ns = stall_ns + now.step_ns - before.step_ns;
            let (sum, count) = self.planned_fed[job];
            JobOutcome {
                name: name.to_owned(),
                fed_fraction: 1.0 - stall_ns as f64 / all_ns.max(1) as f64,
                planned_fed: (count > 0).then(|| sum / f64::from(count)),
            }
        };
        names.enumerate().map(outcome).collect()
    }

    pub(super) fn stall_seconds(&self) -> f64 {
        self.stall_ns as f64 / 1e9
    }

    /// Returns the seconds after the warm-up.
    fn seconds_after_warm_up(&self) -> impl Iterator<Item = &SimulatedSecond> {
        self.seconds.iter().filter(|second| second.at_s > self.warm_up_s)
    }

    pub(super) fn smallest_fed(&self) -> f64 {
        self.seconds_after_warm_up().map(|second| second.smallest_fed).fold(1.0, f64::min)
    }

    pub(super) fn mean_fed(&self) -> f64 {
        let count = self.seconds_after_warm_up().count().max(1);
        self.seconds_after_warm_up().map(|second| second.mean_fed).sum::<f64>() / count as f64
    }

    /// Returns the number of decisions after the warm-up.
    pub(super) fn decisions_after_warm_up(&self) -> u32 {
        self.decisions.iter().filter(|decision| decision.at_s > self.warm_up_s).count() as u32
    }

    pub(super) fn demand_changes(&self) -> Vec<DemandChange> {
        let mut steps = Vec::new();
        let places: Vec<usize> = (1..self.seconds.len())
            .filter(|place| {
                self.seconds[*place].at_s > self.warm_up_s
                    && self.seconds[*place].demand_rows_per_s != self.seconds[place - 1].demand_rows_per_s
            })
            .collect();
        for (place, start) in places.iter().enumerate() {
            let end = places.get(place + 1).copied().unwrap_or(self.seconds.len());
            steps.push(self.demand_change(*start, end));
        }
        steps
    }

    /// Returns the change of demand at second `start`, with its effects until second `end`.
    fn demand_change(&self, start: usize, end: usize) -> DemandChange {
        let seconds = &self.seconds[start..end];
        // Each second contains the values at its end.
        let at_s = self.seconds[start - 1].at_s;
        let last_unfed = seconds.iter().rposition(|second| second.smallest_fed < DemandChange::FED_THRESHOLD);
        let fed_after_s = match last_unfed {
            None => Some(0),
            Some(place) if place + 1 < seconds.len() => Some(seconds[place].at_s - at_s),
            Some(_) => None,
        };
        let left =
            (start..end).rev().find(|place| self.seconds[*place].workers < self.seconds[place - 1].workers);
        DemandChange {
            at_s,
            from_rows_per_s: self.seconds[start - 1].demand_rows_per_s,
            to_rows_per_s: self.seconds[start].demand_rows_per_s,
            fed_after_s,
            released_after_s: left.map(|place| self.seconds[place].at_s - at_s),
            workers: seconds.last().map_or(0, |second| second.workers),
        }
    }

    /// Returns the number of decisions within [`OSCILLATION_WINDOW_S`] after the last change of demand that reversed
    /// the previous decision.
    pub(super) fn oscillations(&self) -> u32 {
        let Some(step) = self.demand_changes().last().copied() else {
            return self.reversed_decisions(0, u32::MAX);
        };
        self.reversed_decisions(step.at_s, step.at_s.saturating_add(OSCILLATION_WINDOW_S))
    }

    fn reversed_decisions(&self, from_s: u32, to_s: u32) -> u32 {
        let within = |decision: &&ScalingChange| decision.at_s >= from_s && decision.at_s < to_s;
        let ups: Vec<bool> = self
            .decisions
            .iter()
            .filter(within)
            .map(|decision| decision.to_workers > decision.from_workers)
            .collect();
        ups.windows(2).filter(|pair| pair[0] != pair[1]).count() as u32
    }
}
