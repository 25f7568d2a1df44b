//! Counters of the sampled graphs of a job on one worker.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use feedline_data::graph::SamplerMeter;
use feedline_data::messages::GraphStats;
use feedline_data::pipeline::GraphBatchSize;

/// The time that each stage of a batch took.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::engine) struct GraphStageTimes {
    /// Drawing and reading edges.
    pub(in crate::engine) sample: Duration,
    /// The map from node ids to the ids in the batch.
    pub(in crate::engine) map: Duration,
    /// Copying the rows of features.
    pub(in crate::engine) gather: Duration,
    /// Encoding the other columns.
    pub(in crate::engine) encode: Duration,
}

/// Measures the stages of sampling.
#[derive(Debug)]
pub(in crate::engine) struct SamplingClock {
    /// The end of the last stage.
    last: Instant,
    times: GraphStageTimes,
}

impl SamplingClock {
    /// Starts the first stage.
    pub(in crate::engine) fn start() -> Self {
        Self { last: Instant::now(), times: GraphStageTimes::default() }
    }

    /// Returns the times of both stages. The time after the last stage belongs to the map.
    pub(in crate::engine) fn finish(mut self) -> GraphStageTimes {
        self.end_map();
        self.times
    }

    fn lap(&mut self) -> Duration {
        let now = Instant::now();
        now - std::mem::replace(&mut self.last, now)
    }
}

impl SamplerMeter for SamplingClock {
    fn end_draws(&mut self) {
        let lap = self.lap();
        self.times.sample += lap;
    }

    fn end_map(&mut self) {
        let lap = self.lap();
        self.times.map += lap;
    }
}

/// Totals of all batches.
#[derive(Debug, Default)]
pub(in crate::engine) struct GraphCounters {
    batches: AtomicU64,
    seeds: AtomicU64,
    nodes: AtomicU64,
    edges: AtomicU64,
    bytes: AtomicU64,
    sample_ns: AtomicU64,
    map_ns: AtomicU64,
    gather_ns: AtomicU64,
    encode_ns: AtomicU64,
}

impl GraphCounters {
    /// Adds a batch.
    pub(in crate::engine) fn add(&self, size: GraphBatchSize, times: GraphStageTimes) {
        let add = |counter: &AtomicU64, amount: u64| {
            counter.fetch_add(amount, Ordering::Relaxed);
        };
        add(&self.batches, 1);
        add(&self.seeds, size.seeds);
        add(&self.nodes, size.nodes);
        add(&self.edges, size.edges);
        add(&self.bytes, size.bytes);
        add(&self.sample_ns, times.sample.as_nanos() as u64);
        add(&self.map_ns, times.map.as_nanos() as u64);
        add(&self.gather_ns, times.gather.as_nanos() as u64);
        add(&self.encode_ns, times.encode.as_nanos() as u64);
    }

    /// Returns the totals.
    pub(in crate::engine) fn snapshot(&self) -> GraphStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        GraphStats {
            batches: read(&self.batches),
            seeds: read(&self.seeds),
            nodes: read(&self.nodes),
            edges: read(&self.edges),
            bytes: read(&self.bytes),
            sample_ns: read(&self.sample_ns),
            map_ns: read(&self.map_ns),
            gather_ns: read(&self.gather_ns),
            encode_ns: read(&self.encode_ns),
            ..GraphStats::default()
        }
    }
}
