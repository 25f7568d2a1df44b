//! Tests that the cost of a step does not grow with the cluster. The cost is counted in examined items, so that the tests do
//! not depend on the machine.

use super::*;

/// A running job with this many consumers, one stream each, and workers that have computed all of their leases.
struct LoadedCluster {
    bench: Bench,
    job: JobId,
    consumers: u32,
    workers: u64,
}

impl LoadedCluster {
    fn new(consumers: u32, workers: u64) -> Self {
        let spec = JobSpec { epochs: 100, ..spec(4, consumers) };
        Self::of(&spec, consumers, workers)
    }

    fn of(spec: &JobSpec, consumers: u32, workers: u64) -> Self {
        let (mut bench, job) = Bench::running(spec, 64 * consumers);
        bench.has_full_checks = false;
        for worker in 2..=workers {
            bench.worker(report(worker));
        }
        let mut cluster = Self { bench, job, consumers, workers };
        for consumer in 0..consumers {
            cluster.bench.consumer(consumer_report(job, consumer));
        }
        cluster.compute_all();
        cluster.bench.pass(1);
        cluster
    }

    /// Every worker reports that it has computed all of its leases.
    fn compute_all(&mut self) {
        for worker in 1..=self.workers {
            let computed = self.leases_of(worker);
            self.bench.worker(WorkerReport { computed, ..report(worker) });
        }
    }

    fn leases_of(&self, worker: u64) -> Vec<(JobId, SplitRef)> {
        self.bench.cluster.workers[&WorkerId(worker)].leases().collect()
    }

    /// Items that one input examines.
    fn cost(&mut self, input: impl FnOnce(RequestId) -> Input) -> u64 {
        let before = self.bench.cluster.examined_items();
        self.bench.ask(input);
        self.bench.cluster.examined_items() - before
    }

    /// The maximum number of items that the report of a consumer examines after it has delivered a split.
    fn cost_of_progress(&mut self) -> u64 {
        let job = self.job;
        let split_rows = self.bench.cluster.jobs[&job].layout.as_ref().expect("it runs").split_rows;
        let step = (self.consumers / 20).max(1) as usize;
        let costs = (0..self.consumers).step_by(step).map(|consumer| {
            let positions = vec![(consumer, StreamPosition { epoch: 0, row: split_rows })];
            let report = ConsumerReport { positions, ..consumer_report(job, consumer) };
            self.cost(|request| Input::Consumer { request, report })
        });
        costs.max().unwrap_or_default()
    }

    /// The maximum number of items that the report of a worker examines, without the splits that the report lists.
    fn cost_of_worker(&mut self) -> u64 {
        let step = (self.workers / 20).max(1) as usize;
        let costs = (1..=self.workers).step_by(step).map(|worker| {
            let computed = self.leases_of(worker);
            let listed = computed.len() as u64;
            let report = WorkerReport { computed, ..report(worker) };
            self.cost(|request| Input::Worker { request, report }) - listed
        });
        costs.max().unwrap_or_default()
    }
}

#[test]
fn a_report_examines_as_much_in_a_small_cluster_as_in_a_large_one() {
    let costs = [(20, 10), (1_000, 500)].map(|(consumers, workers)| {
        let mut cluster = LoadedCluster::new(consumers, workers);
        (cluster.cost_of_progress(), cluster.cost_of_worker(), cluster.cost(|_| Input::Tick))
    });
    let [small, large] = costs;
    assert!(large.0 <= small.0 + 8 && small.0 > 3, "consumer reports: {costs:?}");
    assert!(large.1 <= small.1 + 8 && small.1 > 1, "worker reports: {costs:?}");
    assert!(large.2 <= 4, "ticks without due polls: {costs:?}");
}

#[test]
fn a_report_of_a_relaxed_job_examines_only_its_own_splits() {
    let costs = [(20, 10), (1_000, 50)].map(|(consumers, workers)| {
        let spec = JobSpec { epochs: 100, ..relaxed(4, consumers) };
        let mut cluster = LoadedCluster::of(&spec, consumers, workers);
        let job = cluster.job;
        let plan = cluster.bench.consumer(consumer_report(job, 3)).expect("a plan");
        let split_rows = cluster.bench.cluster.jobs[&job].layout.as_ref().expect("it runs").split_rows;
        let open = vec![(plan.splits[0].split, split_rows as u32)];
        let report = ConsumerReport { open_splits: open, ..consumer_report(job, 3) };
        cluster.cost(|request| Input::Consumer { request, report })
    });
    assert!(costs[1] <= costs[0] + 8 && costs[0] > 3, "{costs:?}");
}

/// Ended jobs and unaffected jobs do not add to the cost of a step.
#[test]
fn a_report_examines_no_other_jobs() {
    let costs = [0, 50].map(|others| {
        let mut cluster = LoadedCluster::new(10, 5);
        for number in 0..others {
            let spec = JobSpec { name: format!("other {number}"), ..spec(4, 1) };
            let other = cluster.bench.open(&spec).expect("a valid job");
            if number % 2 == 0 {
                cluster.bench.ask(|request| Input::CancelJob { request, job: other });
            }
        }
        (1..=5).for_each(|worker| drop(cluster.bench.worker(report(worker))));
        cluster.compute_all();
        (cluster.cost_of_progress(), cluster.cost_of_worker())
    });
    assert_eq!(costs[0], costs[1]);
}
