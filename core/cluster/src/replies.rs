//! Replies to the long polls of workers and consumers and to step queries.

use std::collections::BTreeSet;

use feedline_data::ids::{JobId, WorkerId};

use crate::{Cluster, Ready, Reply};

impl Cluster {
    /// Replies to the long polls with a changed plan or an expired hold time.
    pub(crate) fn send_due_replies(&mut self, ready: &mut Ready) {
        self.answer_step_queries(ready);
        self.send_worker_plans(ready);
        self.send_consumer_plans(ready);
    }

    fn send_worker_plans(&mut self, ready: &mut Ready) {
        let (now, hold) = (self.now, self.settings.hold_ms);
        let mut candidates = self.workers.take_visited();
        while let Some(id) = self.worker_polls.pop_due(now) {
            candidates.insert(id);
        }
        self.examined_items += candidates.len() as u64;
        for id in candidates {
            let Some(worker) = self.workers.get(&id) else { continue };
            if worker.parked.is_some_and(|parked| parked.is_due(worker.revision, now, hold)) {
                self.send_worker_plan(id, ready);
            }
        }
        // Sending a reply does not change a plan.
        self.workers.take_visited();
    }

    fn send_worker_plan(&mut self, id: WorkerId, ready: &mut Ready) {
        let Some(worker) = self.workers.get_mut(&id) else { return };
        let Some(parked) = worker.parked.take() else { return };
        worker.on_plan_sent();
        self.worker_polls.remove(id);
        let plan = self.worker_plan(id);
        ready.replies.push((parked.request, Reply::Worker(plan)));
    }

    fn send_consumer_plans(&mut self, ready: &mut Ready) {
        let mut candidates: BTreeSet<(JobId, u32)> = BTreeSet::new();
        while let Some(poll) = self.consumer_polls.pop_due(self.now) {
            candidates.insert(poll);
        }
        let visited: Vec<JobId> = self.jobs.visited().iter().copied().collect();
        for id in visited {
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            let changed = std::mem::take(&mut job.changed_consumers);
            candidates.extend(changed.into_iter().map(|number| (id, number)));
        }
        self.examined_items += candidates.len() as u64;
        for (id, number) in candidates {
            self.send_consumer_plan_if_due(id, number, ready);
        }
    }

    fn send_consumer_plan_if_due(&mut self, id: JobId, number: u32, ready: &mut Ready) {
        let (now, hold) = (self.now, self.settings.hold_ms);
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let Some(consumer) = job.consumers.get_mut(&number) else { return };
        let revision = consumer.revision;
        let Some(parked) = consumer.parked.take_if(|parked| parked.is_due(revision, now, hold)) else {
            return;
        };
        self.consumer_polls.remove((id, number));
        let plan = self.consumer_plan(&self.jobs[&id], number);
        ready.replies.push((parked.request, Reply::Consumer(plan)));
    }
}
