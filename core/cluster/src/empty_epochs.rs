//! Fails a job whose first epoch delivers no row to any consumer, because it would otherwise end without any sign of a
//! mistake, or continue for all its epochs without delivering anything.

use std::collections::BTreeMap;

use feedline_data::ids::JobId;
use feedline_data::messages::{JobState, OperatorStats};
use feedline_data::pipeline::{OnError, Remainder};

use crate::state::job::TrackedJob;
use crate::{Cluster, Ready};

impl TrackedJob {
    /// Starts to watch for an epoch without rows: the first epoch that this state machine observes from its first row.
    pub(crate) fn watch_epoch(&mut self, is_restored: bool) {
        self.watched_epoch = None;
        // A topic may have no records for any time, so that an unbounded job may have epochs without rows.
        let Some(layout) = self.running_layout().filter(|layout| !layout.unbounded) else { return };
        let may_be_empty =
            layout.changes_rows || layout.remainder == Remainder::Drop || layout.epoch_rows() == 0;
        let positions = self.streams.positions();
        let last = positions.iter().map(|position| position.epoch).max().unwrap_or_default();
        let is_at_start = |epoch: u32| {
            let all = positions.iter().all(|position| (position.epoch, position.row) == (epoch, 0));
            all && self.open_splits.is_empty() && !is_restored
        };
        let watched = if is_at_start(last) { last } else { last + 1 };
        let is_watched = may_be_empty
            && watched < layout.epochs
            && !self.spec.index_only
            && !self.spec.pipeline.fills_cache();
        self.watched_epoch = is_watched.then_some(watched);
    }

    /// Whether the job has delivered rows, or does not need to.
    pub(crate) fn has_delivered_rows(&self) -> bool {
        let has_rows = self.consumers.values().any(|consumer| {
            consumer.earlier_stats.rows > 0 || consumer.stats.values().any(|stats| stats.rows > 0)
        });
        self.watched_epoch.is_none() || has_rows
    }

    /// Returns the watched epoch if all of its rows are delivered or removed.
    fn finished_epoch(&self) -> Option<u32> {
        let watched = self.watched_epoch?;
        let has_passed = self.streams.positions().iter().all(|position| position.epoch > watched)
            && self.open_splits.iter().all(|(split, _)| split.epoch > watched);
        has_passed.then_some(watched)
    }

    fn empty_epoch_message(&self, epoch: u32) -> String {
        let pipeline = &self.spec.pipeline;
        let names = pipeline.operator_names();
        let droppers: Vec<String> = (pipeline.operators.iter().zip(&names))
            .filter(|(operator, _)| operator.kind.drops_rows())
            .map(|(_, name)| format!("`{name}`"))
            .collect();
        let skips = pipeline.on_error == OnError::Skip;
        let failed = "failed and were skipped because of `on_error: skip`; look at the reasons of the skipped rows, then repair the rows or the pipeline";
        let cause = match self.last_operator_with_rows(&names) {
            Some(OperatorStats { name, .. }) if droppers.contains(&format!("`{name}`")) => {
                let skipped = if skips { ", or they failed and were skipped" } else { "" };
                format!("`{name}` removed all rows that it received{skipped}; correct the operator, or check the values of its columns")
            }
            Some(OperatorStats { name, .. }) if skips => {
                format!("all rows that `{name}` received {failed}")
            }
            _ if !droppers.is_empty() => {
                format!("{} removed all rows; correct the operator, or check the values of its columns", droppers.join(" and "))
            }
            _ if skips => format!("all rows {failed}"),
            _ => "its rows do not fill a batch, and `remainder: drop` drops them; set a smaller batch size, or `remainder: emit`"
                .to_owned(),
        };
        format!("epoch {epoch} delivered no row to any consumer: {cause}")
    }

    /// Returns the statistics of the operator that received rows and passed none on, if workers have reported it.
    fn last_operator_with_rows(&self, names: &[String]) -> Option<OperatorStats> {
        let mut sums: BTreeMap<&str, OperatorStats> = BTreeMap::new();
        for stats in self.worker_stats.values().flat_map(|stats| &stats.operators) {
            let sum = sums.entry(stats.name.as_str()).or_default();
            sum.name.clone_from(&stats.name);
            sum.add(stats);
        }
        let mut own = names.iter().filter_map(|name| sums.get(name.as_str()));
        own.find(|stats| stats.rows_in > 0 && stats.rows_out == 0).cloned()
    }
}

impl Cluster {
    /// Fails a job if its watched epoch has ended without a row. Returns whether the job has failed.
    pub(crate) fn fail_if_empty(&mut self, id: JobId, ready: &mut Ready) -> bool {
        let Some(job) = self.jobs.get(&id).filter(|job| job.watched_epoch.is_some()) else { return false };
        if job.has_delivered_rows() {
            if let Some(job) = self.jobs.get_mut(&id) {
                job.watched_epoch = None;
            }
            return false;
        }
        let Some(epoch) = job.finished_epoch() else { return false };
        let message = job.empty_epoch_message(epoch);
        self.end_job(id, JobState::Failed(message), ready);
        true
    }
}
