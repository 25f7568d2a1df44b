//! The order in which the workers of a pool stop.

use feedline_data::memory::MemoryAccount;
use feedline_data::messages::samples::WorkerReportSample;
use feedline_data::messages::saturating_sum;
use feedline_data::pipeline::CacheTier;

/// Returns the hosts of the workers of a pool that should stop first, at most `count`: the workers with the smallest
/// caches and graphs, and the youngest of those with equal sizes. Draining workers stop in any case, and are not included.
pub(crate) fn victims(workers: &[WorkerReportSample], pool: &str, count: usize) -> Vec<String> {
    let mut own: Vec<&WorkerReportSample> =
        workers.iter().filter(|worker| worker.pool == pool && !worker.draining).collect();
    own.sort_by_key(|worker| (lost_bytes(worker), worker.elapsed_ns, worker.worker));
    own.into_iter().take(count).map(|worker| host_of(&worker.address).to_owned()).collect()
}

/// Returns the size of the caches and graphs that are lost when the worker stops.
fn lost_bytes(worker: &WorkerReportSample) -> u64 {
    let caches = worker.caches.iter().filter(|cache| cache.tier != CacheTier::Store);
    let graphs = worker.memory.iter().filter(|usage| usage.account == MemoryAccount::Graphs);
    saturating_sum(caches.map(|cache| cache.used_bytes).chain(graphs.map(|usage| usage.used_bytes)))
}

/// Returns the host of a URL, without the brackets of an IPv6 address.
fn host_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split('/').next().unwrap_or_default();
    match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => authority.rsplit_once(':').map_or(authority, |(host, _)| host),
    }
}

#[cfg(test)]
mod tests {
    use feedline_data::ids::WorkerId;
    use feedline_data::memory::MemoryUsage;
    use feedline_data::messages::{ProcessCpu, TierCapacity};

    use super::*;

    fn worker(id: u64, host: &str, tiers: &[(CacheTier, u64)]) -> WorkerReportSample {
        let tier = |(tier, used_bytes): &(CacheTier, u64)| TierCapacity {
            tier: *tier,
            capacity_bytes: 1 << 30,
            used_bytes: *used_bytes,
        };
        WorkerReportSample {
            worker: WorkerId(id),
            address: format!("https://{host}:7071"),
            pool: "spot".to_owned(),
            machine: String::new(),
            nic_bytes_per_s: 0,
            cores: 8,
            memory_bytes: 1 << 30,
            caches: tiers.iter().map(tier).collect(),
            memory: Vec::new(),
            stores: Vec::new(),
            graphs: Vec::new(),
            memory_full: false,
            draining: false,
            elapsed_ns: 1_000 - id,
            cpu: ProcessCpu::default(),
            jobs: Vec::new(),
        }
    }

    #[test]
    fn workers_with_small_caches_stop_first() {
        let shared = (CacheTier::Store, 1 << 40);
        let workers = [
            worker(1, "10.0.0.1", &[(CacheTier::Disk, 700), (CacheTier::Memory, 1)]),
            worker(2, "[fd00::2]", &[(CacheTier::Disk, 600), shared]),
            worker(3, "w3.feedline", &[(CacheTier::Disk, 700)]),
            worker(4, "10.0.0.4", &[(CacheTier::Disk, 700)]),
            WorkerReportSample { draining: true, ..worker(5, "10.0.0.5", &[]) },
            WorkerReportSample { pool: String::new(), ..worker(6, "10.0.0.6", &[]) },
        ];
        assert_eq!(victims(&workers, "spot", 9), ["fd00::2", "10.0.0.4", "w3.feedline", "10.0.0.1"]);
        assert_eq!(victims(&workers, "spot", 1), ["fd00::2"]);
        assert_eq!(victims(&workers, "", 2), ["10.0.0.6"]);
        assert!(victims(&workers, "spot", 0).is_empty());
    }

    #[test]
    fn workers_without_graphs_stop_first() {
        let usage = |account, used_bytes| MemoryUsage { account, used_bytes };
        let holder = WorkerReportSample {
            memory: vec![usage(MemoryAccount::Graphs, 1 << 30)],
            ..worker(1, "10.0.0.1", &[(CacheTier::Memory, 1)])
        };
        let other = WorkerReportSample {
            memory: vec![usage(MemoryAccount::Blocks, 1 << 31)],
            ..worker(2, "10.0.0.2", &[(CacheTier::Memory, 700)])
        };
        assert_eq!(victims(&[holder, other], "spot", 2), ["10.0.0.2", "10.0.0.1"]);
    }

    #[test]
    fn the_host_of_an_address_has_neither_scheme_nor_port() {
        let hosts =
            ["http://a:1", "a:1", "http://a", "https://[::1]:7071/", "http://10.0.0.7:7071/x"].map(host_of);
        assert_eq!(hosts, ["a", "a", "a", "::1", "10.0.0.7"]);
    }
}
