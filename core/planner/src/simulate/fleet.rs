//! The simulated workers, and the scaler that starts and drains them.

use feedline_data::ids::{Millis, WorkerId};

use super::scenario::{Scenario, ScenarioWorkerType};
use super::worker::{SimulatedWorker, State};

/// Workers in the order of their ids, which start at 1.
#[derive(Debug)]
pub(super) struct Fleet {
    pub(super) workers: Vec<SimulatedWorker>,
    /// The type of workers that are started during the run.
    kind: ScenarioWorkerType,
    start_ms: Millis,
}

impl Fleet {
    /// The workers at the start of the run.
    pub(super) fn new(scenario: &Scenario) -> Self {
        let mut fleet = Self {
            workers: Vec::new(),
            kind: scenario.worker_types[0].clone(),
            start_ms: 1_000 * u64::from(scenario.scaling.start_s),
        };
        for kind in &scenario.worker_types {
            for _ in 0..kind.at_start {
                fleet.add(kind, State::Working, 0);
            }
        }
        fleet
    }

    fn add(&mut self, kind: &ScenarioWorkerType, state: State, now: Millis) {
        let id = WorkerId(self.workers.len() as u64 + 1);
        self.workers.push(SimulatedWorker::new(id, kind, state, now));
    }

    pub(super) fn worker(&mut self, id: WorkerId) -> Option<&mut SimulatedWorker> {
        self.workers.get_mut(id.0.checked_sub(1)? as usize)
    }

    /// The number of workers that run or start, except draining ones.
    pub(super) fn present_workers(&self) -> u32 {
        let stays = |worker: &&SimulatedWorker| matches!(worker.state, State::Starting(_) | State::Working);
        self.workers.iter().filter(stays).count() as u32
    }

    /// The number of workers that were requested and have not left.
    pub(super) fn paid_workers(&self) -> u32 {
        self.workers.iter().filter(|worker| worker.state != State::Gone).count() as u32
    }

    /// Starts workers that are due, and removes drained workers without splits.
    pub(super) fn update_states(&mut self, now: Millis) {
        for worker in &mut self.workers {
            match worker.state {
                State::Starting(at) if at <= now => {
                    worker.state = State::Working;
                    worker.next_report = now;
                }
                State::Draining if worker.has_no_splits() && !worker.has_news => {
                    worker.state = State::Gone;
                    worker.gone_at = Some(now);
                }
                _ => {}
            }
        }
    }

    /// Starts or drains workers until `wanted` remain. Starting workers are cancelled first, then the newest workers
    /// drain.
    pub(super) fn scale(&mut self, wanted: u32, now: Millis) {
        let present = self.present_workers();
        for _ in present..wanted {
            let kind = self.kind.clone();
            self.add(&kind, State::Starting(now + self.start_ms), now);
        }
        let mut surplus = present.saturating_sub(wanted);
        for is_starting in [true, false] {
            for worker in self.workers.iter_mut().rev() {
                let matches = match worker.state {
                    State::Starting(_) => is_starting,
                    State::Working => !is_starting,
                    State::Draining | State::Gone => false,
                };
                if surplus == 0 || !matches {
                    continue;
                }
                surplus -= 1;
                if is_starting {
                    worker.state = State::Gone;
                    worker.gone_at = Some(now);
                } else {
                    worker.state = State::Draining;
                    worker.has_news = true;
                }
            }
        }
    }

    /// The paid seconds of all workers between two times.
    pub(super) fn worker_seconds(&self, from: Millis, to: Millis) -> f64 {
        let paid = |worker: &SimulatedWorker| {
            let end = worker.gone_at.unwrap_or(to).min(to);
            end.saturating_sub(worker.asked_at.max(from)) as f64 / 1e3
        };
        self.workers.iter().map(paid).sum()
    }
}
