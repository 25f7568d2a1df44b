//! Builds the plan of a consumer: its streams or slots, and the workers that serve its next splits.

use feedline_data::layout::{Layout, SplitRef};
use feedline_data::messages::{ConsumerPlan, PlannedSplit, Revision};

use crate::Cluster;
use crate::state::job::TrackedJob;

impl Cluster {
    pub(crate) fn consumer_plan(&self, job: &TrackedJob, number: u32) -> ConsumerPlan {
        let consumer = &job.consumers[&number];
        let mut plan = ConsumerPlan {
            revision: Revision { incarnation: self.incarnation, number: consumer.revision },
            state: self.job_state(job),
            layout: job.layout.clone(),
            streams: Vec::new(),
            splits: Vec::new(),
            exhausted: false,
            max_splits: job.max_wanted_splits(),
            consumers: job.spec.consumers,
            ticket: String::new(),
            slots: job.spec.elastic.then(Vec::new),
            has_rows: job.has_delivered_rows(),
            step_queries: job.step_queries.unanswered_steps(number),
            growth: None,
        };
        if let Some(layout) = job.running_layout() {
            self.fill_splits(&mut plan, job, layout, number);
        }
        if let Some(growth) =
            job.growth.as_ref().filter(|growth| growth.recorded.known() != consumer.known_growth)
        {
            plan.growth = Some(Box::new(growth.recorded.update_after(consumer.known_growth)));
        }
        plan
    }

    fn fill_splits(&self, plan: &mut ConsumerPlan, job: &TrackedJob, layout: &Layout, number: u32) {
        let consumer = &job.consumers[&number];
        let wants = consumer.wanted_splits as usize;
        if job.is_relaxed() {
            plan.splits
                .extend(job.open_splits.of(Some(number)).filter_map(|split| self.planned_split(job, split)));
            plan.exhausted = job.open_splits.count_of(None) == 0 && job.streams.is_finished();
            return;
        }
        let streams: Vec<u32> = if let Some(slots) = &mut plan.slots {
            *slots = job.grants(number, consumer.session);
            slots.iter().map(|slot| slot.stream).collect()
        } else {
            let own = (number..layout.streams).step_by(job.spec.consumers as usize);
            plan.streams = own.filter_map(|stream| Some((stream, job.streams.position(stream)?))).collect();
            plan.streams.iter().map(|(stream, _)| *stream).collect()
        };
        for stream in streams {
            let ahead = job.streams.splits_from(stream).take(wants);
            plan.splits.extend(ahead.filter_map(|split| self.planned_split(job, split)));
        }
    }

    fn planned_split(&self, job: &TrackedJob, split: SplitRef) -> Option<PlannedSplit> {
        let from = job.next_offset(split)?;
        let holders = job.leases.get(split).into_iter().flat_map(|lease| lease.holders());
        let workers = holders.filter_map(|holder| {
            let worker = self.workers.get(&holder.worker).filter(|worker| worker.has_reported)?;
            Some((holder.worker, worker.address.clone()))
        });
        Some(PlannedSplit { split, start_offset: from, workers: workers.collect() })
    }
}
