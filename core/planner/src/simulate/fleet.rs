//! The simulated workers. A fleet starts and drains workers, like a scaler.

use feedline_data::ids::{Millis, WorkerId};

use super::scenario::{Scenario, ScenarioWorkerType};
use super::worker::{SimulatedWorker, WorkerState};

/// All workers of a run in the order of their ids, which start at 1.
#[derive(Debug)]
pub(super) struct Fleet {
    pub(super) workers: Vec<SimulatedWorker>,
    /// The type of the workers that are started during the run.
    started_type: ScenarioWorkerType,
    start_delay_ms: Millis,
}

impl Fleet {
    /// Creates the workers at the start of the run.
    pub(super) fn new(scenario: &Scenario) -> Self {
        let mut fleet = Self {
            workers: Vec::new(),
            started_type: scenario.worker_types[0].clone(),
            start_delay_ms: 1_000 * u64::from(scenario.scaling.start_s),
        };
        for kind in &scenario.worker_types {
            for _ in 0..kind.workers_at_start {
                fleet.add(kind, WorkerState::Working, 0);
            }
        }
        fleet
    }

    fn add(&mut self, kind: &ScenarioWorkerType, state: WorkerState, now: Millis) {
        let id = WorkerId(self.workers.len() as u64 + 1);
        self.workers.push(SimulatedWorker::new(id, kind, state, now));
    }

    pub(super) fn worker(&mut self, id: WorkerId) -> Option<&mut SimulatedWorker> {
        self.workers.get_mut(id.0.checked_sub(1)? as usize)
    }

    /// Returns the number of running and starting workers, except draining workers.
    pub(super) fn current_workers(&self) -> u32 {
        let stays = |worker: &&SimulatedWorker| {
            matches!(worker.state, WorkerState::Starting(_) | WorkerState::Working)
        };
        self.workers.iter().filter(stays).count() as u32
    }

    /// Returns the number of workers that have been requested and have not left.
    pub(super) fn paid_workers(&self) -> u32 {
        self.workers.iter().filter(|worker| worker.state != WorkerState::Left).count() as u32
    }

    /// Marks workers as started when they are due, and removes draining workers without splits.
    pub(super) fn update_states(&mut self, now: Millis) {
        for worker in &mut self.workers {
            match worker.state {
                WorkerState::Starting(at) if at <= now => {
                    worker.state = WorkerState::Working;
                    worker.next_report = now;
                }
                WorkerState::Draining if worker.has_no_splits() && !worker.has_unreported_change => {
                    worker.state = WorkerState::Left;
                    worker.left_at = Some(now);
                }
                _ => {}
            }
        }
    }

    /// Starts or drains workers until `wanted` workers remain. Cancels starting workers first, then drains the newest
    /// workers.
    pub(super) fn scale(&mut self, wanted: u32, now: Millis) {
        let present = self.current_workers();
        for _ in present..wanted {
            let kind = self.started_type.clone();
            self.add(&kind, WorkerState::Starting(now + self.start_delay_ms), now);
        }
        let mut surplus = present.saturating_sub(wanted);
        for is_starting in [true, false] {
            for worker in self.workers.iter_mut().rev() {
                let matches = match worker.state {
                    WorkerState::Starting(_) => is_starting,
                    WorkerState::Working => !is_starting,
                    WorkerState::Draining | WorkerState::Left => false,
                };
                if surplus == 0 || !matches {
                    continue;
                }
                surplus -= 1;
                if is_starting {
                    worker.state = WorkerState::Left;
                    worker.left_at = Some(now);
                } else {
                    worker.state = WorkerState::Draining;
                    worker.has_unreported_change = true;
                }
            }
        }
    }

    /// Returns the total paid time of all workers between two times, in seconds.
    pub(super) fn worker_seconds(&self, from: Millis, to: Millis) -> f64 {
        let paid = |worker: &SimulatedWorker| {
            let end = worker.left_at.unwrap_or(to).min(to);
            end.saturating_sub(worker.requested_at.max(from)) as f64 / 1e3
        };
        self.workers.iter().map(paid).sum()
    }
}
