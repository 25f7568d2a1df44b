//! Models of stores with limits.

use feedline_data::ids::WorkerId;
use feedline_data::messages::StoreReport;
use feedline_data::messages::samples::WorkerReportSample;

/// The answer to one request.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Answer {
    Accepted { end: f64 },
    Rejected { retry_after: Option<f64> },
}

#[derive(Debug, Clone)]
pub(crate) enum Limit {
    /// A token bucket.
    Bucket { burst: f64, tokens: f64, at: f64 },
    /// A number of requests in each second.
    Window { second: u64, used: f64 },
    /// Requests are served one after the other at this rate of bytes per second.
    Bandwidth { bytes_per_s: f64, busy_until: f64 },
    /// A fraction of the requests is rejected at any rate.
    Random { fraction: f64 },
}

#[derive(Debug, Clone)]
pub(crate) struct Store {
    /// The allowed requests per second from each time on.
    pub(crate) allowed: Vec<(f64, f64)>,
    pub(crate) limit: Limit,
    pub(crate) retry_after: Option<f64>,
    /// The lowest latency, and the length of its random part, in seconds.
    pub(crate) latency: (f64, f64),
}

impl Store {
    pub(crate) fn allowed_at(&self, now: f64) -> f64 {
        self.allowed.iter().rev().find(|(from, _)| *from <= now).map_or(0.0, |(_, rate)| *rate)
    }

    pub(crate) fn answer(&mut self, now: f64, bytes: f64, noise: f64) -> Answer {
        let rate = self.allowed_at(now);
        let served = now + self.latency.0 + self.latency.1 * noise;
        let is_accepted = match &mut self.limit {
            Limit::Bucket { burst, tokens, at } => {
                *tokens = (*tokens + rate * (now - *at)).min(*burst);
                *at = now;
                let is_accepted = *tokens >= 1.0;
                *tokens -= if is_accepted { 1.0 } else { 0.0 };
                is_accepted
            }
            Limit::Window { second, used } => {
                if *second != now as u64 {
                    (*second, *used) = (now as u64, 0.0);
                }
                *used += 1.0;
                *used <= rate
            }
            Limit::Random { fraction } => noise >= *fraction,
            Limit::Bandwidth { bytes_per_s, busy_until } => {
                *busy_until = busy_until.max(served) + bytes / *bytes_per_s;
                return Answer::Accepted { end: *busy_until };
            }
        };
        if is_accepted {
            Answer::Accepted { end: served }
        } else {
            Answer::Rejected { retry_after: self.retry_after }
        }
    }
}

/// A report of a worker about one store.
pub(crate) fn sample(worker: WorkerId, report: StoreReport) -> WorkerReportSample {
    WorkerReportSample {
        worker,
        address: String::new(),
        pool: String::new(),
        machine: String::new(),
        nic_bytes_per_s: 0,
        cores: 1,
        memory_bytes: 1 << 30,
        caches: Vec::new(),
        memory: Vec::new(),
        memory_full: false,
        draining: false,
        elapsed_ns: report.elapsed_ns,
        cpu: Default::default(),
        jobs: Vec::new(),
        stores: vec![report],
        graphs: Vec::new(),
    }
}
