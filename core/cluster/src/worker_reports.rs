//! Processes worker reports.

use std::sync::Arc;

use feedline_data::ids::WorkerId;
use feedline_data::messages::{TaskProgress, WorkerAddress, WorkerJobStats, WorkerReport};

use crate::state::long_poll::LongPoll;
use crate::state::worker::TrackedWorker;
use crate::{Cluster, Ready, Reply, RequestId, truncate_text};

/// Maximum number of stores in a report. A worker reads few stores.
const MAX_STORES: usize = 256;

impl Cluster {
    pub(crate) fn on_worker(&mut self, request: RequestId, mut report: WorkerReport, ready: &mut Ready) {
        if let Err(refusal) = self.check_worker_limit(report.worker) {
            ready.replies.push((request, Reply::Rejected(refusal)));
            return;
        }
        let (id, now) = (report.worker, self.now);
        report.address = truncate_text(report.address);
        report.tls_name = report.tls_name.map(truncate_text);
        report.pool = truncate_text(report.pool);
        report.machine = truncate_text(report.machine);
        report.stores.truncate(MAX_STORES);
        for store in &mut report.stores {
            store.name = truncate_text(std::mem::take(&mut store.name));
            store.key = truncate_text(std::mem::take(&mut store.key));
        }
        if let Some(graphs) = &mut report.graphs {
            graphs.truncate();
        }
        let (tasks, stats) = (std::mem::take(&mut report.tasks), std::mem::take(&mut report.stats));
        let poll = LongPoll::new(request, now, report.plan_revision, self.incarnation);
        self.worker_reports.set(id, now);
        self.worker_polls.set(id, now.saturating_add(self.settings.hold_ms));
        if !self.workers.contains_key(&id) {
            self.withdraw_losses(id, ready);
        }
        for TaskProgress { id: task, read_bytes } in std::mem::take(&mut report.task_progress) {
            let preparation = self.task_jobs.get(&task).and_then(|job| self.preparations.get_mut(job));
            if let Some(preparation) = preparation {
                preparation.set_read_bytes(task, id, read_bytes);
            }
        }
        self.update_worker(report);
        if let Some(earlier) = self.workers.get_mut(&id).and_then(|worker| worker.parked.replace(poll)) {
            // Requests may arrive out of order, so the parked request may be the later one. Both requests receive the
            // current plan.
            ready.replies.push((earlier.request, Reply::Worker(self.worker_plan(id))));
        }
        self.update_worker_stats(id, stats);
        if let Some(worker) = self.workers.get_mut(&id) {
            worker.on_plan_seen(poll.plan_revision);
        }
        self.settle(id, poll.plan_revision);
        self.withdraw_unconfirmed(id, poll.plan_revision);
        self.on_task_results(id, tasks, ready);
    }

    /// Updates the state of a worker from its report.
    fn update_worker(&mut self, report: WorkerReport) {
        let id = report.worker;
        if !self.workers.contains_key(&id) {
            self.workers.insert(id, TrackedWorker::new(self.now, self.next_revision));
        }
        let Some(worker) = self.workers.get_mut(&id) else { return };
        let accepted_work = worker.accepts_work();
        let address = WorkerAddress { url: report.address, tls_name: report.tls_name };
        let has_new_address = !worker.has_reported || worker.address != address;
        let has_new_load = worker.memory_full != report.memory_full || worker.cores != report.cores;
        worker.has_reported = true;
        worker.address = address;
        worker.last_seen = self.now;
        worker.memory_full = report.memory_full;
        worker.draining = report.draining;
        worker.cores = report.cores;
        worker.memory_bytes = report.memory_bytes;
        worker.pool = report.pool;
        worker.machine = report.machine;
        worker.nic_bytes_per_s = report.nic_bytes_per_s;
        worker.caches = report.caches;
        worker.memory = report.memory;
        worker.stores = report.stores;
        worker.elapsed_ns = report.elapsed_ns;
        worker.cpu = report.cpu;
        let graph_states = worker.set_graphs(report.graphs);
        let computed = worker.set_computed(&report.computed);
        self.examined_items += report.computed.len() as u64;
        let changes_live = accepted_work != worker.accepts_work();
        let filled_memory = has_new_load && worker.memory_full;
        // The worker can accept more splits of each job with newly computed splits.
        for (job, split) in computed {
            self.jobs_to_schedule.insert(job);
            if let Some(job) = self.jobs.get_mut(&job) {
                job.touched_streams.streams.insert(split.stream);
                job.late_splits.remove(&split);
                job.changed_loads.insert(id);
            }
        }
        if has_new_address {
            self.touch_consumers_of_worker(id);
        }
        if changes_live {
            self.refresh_live_workers();
        } else if has_new_load {
            self.touch_jobs_of_candidate(id, filled_memory);
        }
        self.on_graph_states(id, graph_states);
    }

    /// Updates the load of a worker in all jobs that have the worker as a candidate. If the worker's memory is now full,
    /// later splits of its streams may become urgent, so these streams are checked.
    fn touch_jobs_of_candidate(&mut self, id: WorkerId, filled_memory: bool) {
        let worker = &self.workers[&id];
        self.examined_items += worker.candidate_of.len() as u64;
        for job in &worker.candidate_of {
            if let Some(job) = self.jobs.get_mut(job) {
                job.changed_loads.insert(id);
                self.jobs_to_schedule.insert(job.id);
            }
        }
        if filled_memory {
            self.examined_items += worker.lease_count() as u64;
            for (job, split) in worker.leases() {
                if let Some(job) = self.jobs.get_mut(&job) {
                    job.touched_streams.streams.insert(split.stream);
                    self.jobs_to_schedule.insert(job.id);
                }
            }
        }
    }

    fn touch_consumers_of_worker(&mut self, id: WorkerId) {
        let worker = &self.workers[&id];
        self.examined_items += worker.lease_count() as u64;
        for (job, split) in worker.leases() {
            if let Some(job) = self.jobs.get_mut(&job) {
                job.mark_consumer_changed(split);
            }
        }
    }

    fn update_worker_stats(&mut self, id: WorkerId, stats: Vec<WorkerJobStats>) {
        for mut stats in stats {
            for operator in &mut stats.operators {
                operator.name = truncate_text(std::mem::take(&mut operator.name));
            }
            if let Some(job) = self.jobs.get_mut(&stats.job) {
                job.worker_stats.insert(id, Arc::new(stats));
            }
        }
    }

    /// Settles the ended jobs that the worker's plan no longer contains: the last report contains their final counters.
    fn settle(&mut self, id: WorkerId, seen: u64) {
        let Some(worker) = self.workers.get_mut(&id) else { return };
        while let Some((_, job)) =
            worker.unsettled_jobs.first().copied().filter(|(revision, _)| *revision <= seen)
        {
            worker.unsettled_jobs.pop_first();
            self.examined_items += 1;
            if let Some(job) = self.jobs.get_mut(&job) {
                job.unsettled_workers.remove(&id);
            }
        }
    }
}
