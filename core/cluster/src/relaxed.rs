//! Relaxed mode: assigns the next splits of the sequence to consumers that can accept more splits.

use feedline_data::ids::JobId;
use feedline_data::layout::SplitRef;

use crate::records::Record;
use crate::state::job::TrackedJob;
use crate::{Cluster, Ready};

impl Cluster {
    /// Assigns the next splits of a relaxed job round-robin to the consumers that can accept more splits.
    pub(crate) fn assign_relaxed(&mut self, id: JobId, ready: &mut Ready) {
        let (now, lease_ms) = (self.now, self.settings.consumer_lease_ms);
        let Some(job) = self.jobs.get_mut(&id).filter(|job| job.is_relaxed()) else { return };
        if job.open_splits.count_of(None) == 0 && job.streams.head(0).is_none() {
            return;
        }
        self.examined_items += job.consumers_with_room.len() as u64;
        let mut capacities = take_capacities(job, |job, number| {
            job.consumers.get(&number).is_some_and(|consumer| !consumer.is_silent(now, lease_ms))
        });
        let wanted: usize = capacities.iter().map(|(_, capacity)| capacity).sum();
        let mut splits: Vec<SplitRef> = job.open_splits.of(None).take(wanted).collect();
        splits.extend(job.streams.splits_from(0).take(wanted - splits.len()));
        let mut chosen: Vec<(SplitRef, u32)> = Vec::new();
        let mut splits = splits.into_iter();
        'splits: while capacities.iter().any(|(_, capacity)| *capacity > 0) {
            for (number, capacity) in capacities.iter_mut().filter(|(_, capacity)| *capacity > 0) {
                let Some(split) = splits.next() else { break 'splits };
                *capacity -= 1;
                chosen.push((split, *number));
            }
        }
        let with_room = capacities.iter().filter(|(_, capacity)| *capacity > 0);
        job.consumers_with_room.extend(with_room.map(|(number, _)| *number));
        self.assign_all(id, chosen, ready);
    }

    fn assign_all(&mut self, job: JobId, mut chosen: Vec<(SplitRef, u32)>, ready: &mut Ready) {
        // Splits are removed from the head of the sequence, so the records must be in the order of the sequence.
        chosen.sort_unstable();
        for run in chosen.chunk_by(|a, b| a.1 == b.1) {
            let number = run[0].1;
            let splits: Vec<SplitRef> = run.iter().map(|(split, _)| *split).collect();
            self.record(Record::Assigned { job, consumer: Some(number), splits: splits.clone() }, ready);
            let Some(found) = self.jobs.get_mut(&job) else { continue };
            found.touch_consumer(number);
            if let Some(consumer) = found.consumers.get_mut(&number) {
                consumer.lost_splits.retain(|split, _| !splits.contains(split));
            }
        }
    }
}

/// Returns the number of further splits that each consumer can accept. Removes silent consumers, and consumers that cannot
/// accept splits, from the list.
fn take_capacities(job: &mut TrackedJob, is_alive: impl Fn(&TrackedJob, u32) -> bool) -> Vec<(u32, usize)> {
    let consumers_with_room = std::mem::take(&mut job.consumers_with_room);
    let alive = consumers_with_room.into_iter().filter(|number| is_alive(job, *number));
    let capacities = alive.filter_map(|number| {
        let wanted = job.consumers.get(&number)?.wanted_splits as usize;
        let capacity = wanted.saturating_sub(job.open_splits.count_of(Some(number)));
        (capacity > 0).then_some((number, capacity))
    });
    capacities.collect()
}
