//! The committed history, which the log of each coordinator is compared with.

use std::collections::BTreeMap;

use feedline_cluster::records::Record;
use feedline_cluster::{ClusterSettings, ReplicatedState};
use feedline_data::checkpoint::Position;
use feedline_data::ids::JobId;
use feedline_data::layout::{SplitRef, StreamPosition};
use feedline_data::messages::JobStatus;

/// Splits of a job that a consumer has lost, with the recorded offsets.
pub(crate) type TakenBack = Vec<(JobId, u32, SplitRef, u32)>;

/// The committed entries, as the first coordinator applied them.
pub(crate) struct Kept {
    /// Records of each entry.
    entries: BTreeMap<u64, Vec<Record>>,
    state: ReplicatedState,
    /// Acknowledged offsets.
    acknowledged: BTreeMap<(JobId, SplitRef), u32>,
    /// The consumers of assigned splits.
    holders: BTreeMap<(JobId, SplitRef), u32>,
    /// The state of each job.
    positions: BTreeMap<JobId, Vec<StreamPosition>>,
    /// Committed positions at the time of the observer's request.
    asked: BTreeMap<u64, BTreeMap<JobId, Vec<StreamPosition>>>,
}

impl Kept {
    pub(crate) fn new() -> Self {
        Self {
            entries: BTreeMap::new(),
            state: ReplicatedState::new(ClusterSettings::default()),
            acknowledged: BTreeMap::new(),
            holders: BTreeMap::new(),
            positions: BTreeMap::new(),
            asked: BTreeMap::new(),
        }
    }

    /// Compares an entry that the coordinator at `place` has applied with the same entry of the other coordinators.
    pub(crate) fn take(
        &mut self,
        place: usize,
        index: u64,
        records: Vec<Record>,
    ) -> Result<TakenBack, String> {
        match self.entries.get(&index) {
            None => Ok(self.take_next(index, records)),
            Some(known) if *known == records => Ok(TakenBack::new()),
            Some(known) => Err(format!("entry {index} is {known:?}, and {records:?} at coordinator {place}")),
        }
    }

    fn take_next(&mut self, index: u64, records: Vec<Record>) -> TakenBack {
        let mut taken_back = TakenBack::new();
        for record in &records {
            self.state.apply(record);
            let job = record.job();
            match record {
                Record::Advanced { splits, .. } => {
                    self.acknowledged.extend(splits.iter().map(|(split, offset)| ((job, *split), *offset)));
                }
                Record::Assigned { consumer, splits, .. } => {
                    for split in splits {
                        let key = (job, *split);
                        let offset = self.acknowledged.get(&key).copied().unwrap_or_default();
                        let before = self.holders.remove(&key);
                        taken_back.extend(before.map(|holder| (job, holder, *split, offset)));
                        if let Some(consumer) = consumer {
                            self.holders.insert(key, *consumer);
                        }
                    }
                }
                _ => {}
            }
            let position = self.state.position(job);
            self.positions.extend(position.map(|position| (job, position.streams)));
        }
        self.entries.insert(index, records);
        taken_back
    }

    /// Records the positions when the observer sends a status request.
    pub(crate) fn on_asked(&mut self, call: u64) {
        self.asked.insert(call, self.positions.clone());
    }

    /// Checks that a status reply is not older than the positions at the time of the request.
    pub(crate) fn check_status(&mut self, call: u64, status: &[JobStatus]) -> Result<(), String> {
        let Some(kept) = self.asked.remove(&call) else { return Ok(()) };
        for (job, streams) in kept {
            let replied = status.iter().find(|replied| replied.job == job);
            let position: Option<&Position> = replied.and_then(|replied| replied.position.as_ref());
            let replied = position.map(|position| position.streams.as_slice()).unwrap_or_default();
            let older = streams.iter().zip(replied).any(|(kept, replied)| replied < kept);
            if older || replied.len() < streams.len() {
                return Err(format!(
                    "job {job} was at {streams:?} at the time of the request, and the reply has {replied:?}"
                ));
            }
        }
        Ok(())
    }

    /// The position of a job.
    pub(crate) fn position(&self, job: JobId) -> Option<Position> {
        self.state.position(job)
    }

    /// The records that rebuild the committed state.
    pub(crate) fn snapshot(&self) -> Vec<Record> {
        self.state.snapshot()
    }
}
