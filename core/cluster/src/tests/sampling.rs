//! Tests of the samples for the planner, and of its allocations.

use feedline_data::messages::samples::ConsumerReportSample;
use feedline_data::messages::{JobAllocation, WorkerAllocations};

use super::*;

/// A report of a worker that has decoded `rows` rows.
fn decoded(worker: u64, job: JobId, rows: u64) -> WorkerReport {
    let decode = OperatorStats { name: "decode_image".to_owned(), rows_in: rows, ..OperatorStats::default() };
    let store = StoreStats { bytes: rows * 10, ..StoreStats::default() };
    let cpu = ProcessCpu { process_ns: rows * 5, transport_ns: rows };
    let stats = vec![WorkerJobStats { operators: vec![decode], store, cpu, ..stats_of(job, 1) }];
    WorkerReport { cores: 4, memory_bytes: 99, elapsed_ns: rows * 7, cpu, stats, ..report(worker) }
}

#[test]
fn samples_contain_each_worker_and_consumer() {
    let (mut bench, job) = Bench::running(&spec(4, 2), 80);
    bench.worker(decoded(1, job, 10));
    bench.worker(decoded(2, job, 30));
    let stats = ConsumerStats { rows: 8, step_ns: 6, ..ConsumerStats::default() };
    bench.consumer(ConsumerReport { stats, ..consumer_report(job, 1) });
    let samples = bench.cluster.samples();
    let rows = |worker: usize| samples.workers[worker].jobs[0].operators[0].rows_in;
    assert_eq!((rows(0), rows(1)), (10, 30));
    let second = &samples.workers[1];
    assert_eq!((second.worker, second.cores, second.memory_bytes), (WorkerId(2), 4, 99));
    assert_eq!((second.elapsed_ns, second.cpu.transport_ns), (210, 30));
    assert_eq!(samples.consumers, [ConsumerReportSample { job, consumer: 1, session: SessionId(1), stats }]);
    let status = bench.status(job);
    assert_eq!((status.operators[0].rows_in, status.store.bytes), (40, 400));
    assert_eq!(status.worker_cpu[1], (WorkerId(2), second.cpu));
    bench.ask(|request| Input::CancelJob { request, job });
    assert_eq!(bench.cluster.samples().consumers, []);
}

#[test]
fn a_worker_receives_its_allocations_only_when_they_change() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 80);
    let plan = bench.worker(report(1)).expect("leases");
    assert_eq!((plan.cores, plan.allocations.len()), (0, 0));
    let waits = WorkerReport { plan_revision: plan.revision, ..report(1) };
    assert_eq!(bench.worker(waits.clone()), None);
    let request = bench.request;
    let share = WorkerAllocations {
        cores: 3,
        jobs: vec![JobAllocation { cores: 1.5, ..JobAllocation::unlimited(job) }],
        stores: Vec::new(),
    };
    let shares: BTreeMap<WorkerId, WorkerAllocations> = [(WorkerId(1), share.clone())].into();
    bench.step(Input::Allocations { allocations: shares.clone() });
    let Some(Reply::Worker(told)) = bench.answered.get(&request).cloned() else {
        panic!("an immediate plan")
    };
    assert_eq!((told.cores, &told.allocations), (3, &share.jobs));
    assert_eq!(told.leases, plan.leases);
    let waits = WorkerReport { plan_revision: told.revision, ..waits };
    assert_eq!(bench.worker(waits.clone()), None);
    bench.step(Input::Allocations { allocations: shares });
    assert_eq!(bench.worker(waits), None, "equal allocations change no plan");
    bench.step(Input::Allocations { allocations: BTreeMap::new() });
    let after = bench.worker(report(1)).expect("the limits are gone");
    assert_eq!((after.cores, after.allocations.len()), (0, 0));
}

#[test]
fn only_the_last_sessions_of_a_consumer_have_separate_counters() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 80);
    for session in 1..=100 {
        let stats = ConsumerStats { rows: 3, bytes: u64::MAX, ..ConsumerStats::default() };
        bench.consumer(ConsumerReport { session: SessionId(session), stats, ..consumer_report(job, 0) });
    }
    let sessions: Vec<u64> = bench.cluster.samples().consumers.iter().map(|told| told.session.0).collect();
    assert_eq!(sessions, [97, 98, 99, 100]);
    let delivered = bench.status(job).delivered;
    assert_eq!(
        (delivered.rows, delivered.bytes),
        (300, u64::MAX),
        "the sum contains all sessions and saturates"
    );
}
