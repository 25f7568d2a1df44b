//! Tests of jobs that sample a graph: workers load the graph before they receive leases.

use std::collections::BTreeSet;

use feedline_data::graph::description::GraphHash;
use feedline_data::graph::{FeatureSummary, GraphSummary, NodeTypeSummary, RelationSummary};
use feedline_data::messages::GraphLoadState::{Failed, Loaded, Loading};
use feedline_data::messages::{
    GraphJobLoad, GraphLoadState, GraphReport, HeldGraph, JobAllocation, PartitionedJob, WorkerAddress,
    WorkerAllocations, WorkerPlan,
};
use feedline_data::pipeline::{OperatorKind, PlacementMode};
use proptest::prelude::*;

use super::*;

const TOPOLOGY: GraphHash = GraphHash(7);
const ROWS: u32 = 256;

/// 256 seeds of a graph.
fn dataset() -> Manifest {
    let feature = FeatureSummary {
        name: "x".to_owned(),
        dtype: ScalarType::Float32,
        shape: vec![4],
        content: GraphHash(1),
    };
    let relation = RelationSummary {
        source: "n".to_owned(),
        name: "e".to_owned(),
        target: "n".to_owned(),
        edges: 1 << 20,
        undirected: false,
        has_weights: false,
        has_times: false,
        features: Vec::new(),
    };
    let graph = GraphSummary {
        topology: TOPOLOGY,
        nodes: vec![NodeTypeSummary { name: "n".to_owned(), count: 1 << 16, features: vec![feature] }],
        relations: vec![relation],
        seeds: Vec::new(),
    };
    let shard = |name: &str, index| {
        let object = ShardRef {
            url: format!("file:///g/{name}"),
            size_bytes: 10,
            version: "1".to_owned(),
            ..ShardRef::default()
        };
        Shard::simulated(object, index)
    };
    let blocks = vec![Block { rows: ROWS, offset: 0, bytes: 10, group: 0, row_bytes: Vec::new() }];
    let schema = Schema::new([("node", ColumnType::Scalar(ScalarType::UInt32))]);
    let seeds = ShardIndex { blocks, schema: Some(schema), ..ShardIndex::default() };
    let description = ShardIndex { graph: Some(Box::new(graph)), ..ShardIndex::default() };
    let shards = vec![shard("graph.json", description), shard("seeds/train.arrow", seeds)];
    Manifest::build(shards).expect("one shard has rows")
}

fn sampling() -> JobSpec {
    let pipeline = Pipeline::builder("p").source(Source::graph("g"));
    let pipeline = pipeline.sample_neighbors(4, &[1], &["x"]).build().expect("a valid pipeline");
    JobSpec { name: "run".to_owned(), ..JobSpec::new(pipeline) }
}

/// The report of a worker that has loaded jobs as far as these states say.
fn graph_report(worker: u64, loads: &[(JobId, GraphLoadState)]) -> WorkerReport {
    let jobs = loads.iter().map(|(job, state)| GraphJobLoad { job: *job, state: *state }).collect();
    let is_loaded = loads.iter().any(|(_, state)| *state == Loaded);
    let held = if is_loaded { vec![HeldGraph { topology: TOPOLOGY, bytes: 1 << 30 }] } else { Vec::new() };
    WorkerReport { graphs: Some(GraphReport { held, jobs }), ..report(worker) }
}

/// A job whose dataset worker 1 has prepared.
fn prepared() -> (Bench, JobId) {
    let (mut bench, manifest) = (Bench::new(), dataset());
    let job = bench.open_with(&sampling(), Some(Arc::new(manifest.clone()))).expect("a valid job");
    let plan = bench.worker(graph_report(1, &[])).expect("the listing task");
    let tasks = vec![listed(plan.tasks[0].id, &manifest)];
    bench.worker(WorkerReport { tasks, ..graph_report(1, &[]) });
    assert_eq!(bench.status(job).state, JobState::Running);
    (bench, job)
}

/// A job that these workers have loaded.
fn loaded(workers: std::ops::RangeInclusive<u64>) -> (Bench, JobId) {
    let (mut bench, job) = prepared();
    for worker in workers {
        bench.worker(graph_report(worker, &[(job, Loaded)]));
    }
    (bench, job)
}

/// A plan that gives a job a core of each of these workers.
fn placed(job: JobId, workers: &[u64]) -> Input {
    let share = || WorkerAllocations {
        jobs: vec![JobAllocation { cores: 1.0, ..JobAllocation::unlimited(job) }],
        ..WorkerAllocations::default()
    };
    Input::Allocations { allocations: workers.iter().map(|worker| (WorkerId(*worker), share())).collect() }
}

fn graph_jobs(bench: &mut Bench, report: WorkerReport) -> Vec<JobId> {
    bench.worker(report).expect("the report has no revision").graph_jobs
}

#[test]
fn a_worker_receives_leases_after_it_has_loaded_the_job() {
    let (mut bench, job) = prepared();
    assert_eq!(graph_jobs(&mut bench, graph_report(1, &[])), [job], "the plan says what to load");
    for _ in 0..60 {
        bench.pass(1_000);
        bench.consumer(consumer_report(job, 0));
        bench.worker(graph_report(1, &[(job, Loading)]));
    }
    assert_eq!(bench.granted(1), [], "the graph takes a minute to load, and the consumer waits");
    let graphs = |bench: &Bench| bench.cluster.samples().workers[0].graphs.clone();
    assert_eq!(graphs(&bench), [TOPOLOGY], "the planner does not move the job while the graph is loaded");
    let reason = bench.status(job).source_error;
    assert_eq!(reason.as_deref(), Some("a worker is loading the graph of the job"));
    bench.worker(graph_report(1, &[(job, Loaded)]));
    assert_eq!((graphs(&bench), bench.status(job).source_error), (vec![TOPOLOGY], None));
    assert_eq!(bench.held(1), [split(0, 0), split(0, 1), split(0, 2)]);
    assert_eq!(
        graph_jobs(&mut bench, graph_report(1, &[(job, Loaded)])),
        [job],
        "the worker keeps the graph"
    );
}

#[test]
fn other_workers_load_the_graph_while_one_computes() {
    let (mut bench, job) = loaded(1..=1);
    assert_eq!(graph_jobs(&mut bench, graph_report(2, &[])), [job]);
    let computed: Vec<_> = bench.held(1).into_iter().map(|split| (job, split)).collect();
    bench.worker(WorkerReport { computed, ..graph_report(1, &[(job, Loaded)]) });
    bench.worker(graph_report(2, &[(job, Loading)]));
    assert_eq!((bench.held(1).len(), bench.granted(2)), (6, vec![]));
    bench.worker(graph_report(2, &[(job, Loaded)]));
    assert_eq!(bench.held(2)[0], split(0, 4), "the new worker takes over a split that waits");
}

#[test]
fn several_workers_feed_one_trainer() {
    let (bench, _) = loaded(1..=4);
    let holder = |ordinal| (1..=4).find(|worker| bench.held(*worker).contains(&split(0, ordinal)));
    let holders: BTreeSet<Option<u64>> = (0..4).map(holder).collect();
    assert_eq!(
        holders,
        BTreeSet::from([1, 2, 3, 4].map(Some)),
        "each worker holds one of the next four splits"
    );
}

#[test]
fn a_worker_that_does_not_report_loads_receives_leases_immediately() {
    let (mut bench, job) = prepared();
    bench.worker(report(2));
    assert_eq!(bench.held(2), [split(0, 0), split(0, 1), split(0, 2)]);
    bench.worker(graph_report(1, &[(job, Loaded)]));
    assert!(!bench.held(1).is_empty());
}

#[test]
fn a_worker_that_cannot_load_the_graph_receives_leases_only_if_no_worker_can() {
    let (mut bench, job) = prepared();
    bench.worker(graph_report(2, &[(job, Loading)]));
    bench.worker(graph_report(1, &[(job, Failed)]));
    assert_eq!((bench.granted(1), bench.granted(2)), (vec![], vec![]), "the other worker may succeed");
    bench.worker(graph_report(2, &[(job, Loaded)]));
    assert_eq!((bench.granted(1), bench.granted(2).len()), (vec![], 3));

    let (mut bench, job) = prepared();
    bench.worker(graph_report(2, &[(job, Failed)]));
    bench.worker(graph_report(1, &[(job, Failed)]));
    assert!(!bench.held(1).is_empty(), "a fetch from the worker returns the reason");
    assert_eq!(bench.cluster.samples().workers[0].graphs, []);
}

#[test]
fn a_worker_that_dies_while_it_loads_delays_nobody() {
    let (mut bench, job) = loaded(1..=1);
    bench.worker(graph_report(2, &[(job, Loading)]));
    for _ in 0..4 {
        bench.pass(1_000);
        bench.consumer(consumer_report(job, 0));
        bench.worker(graph_report(1, &[(job, Loaded)]));
    }
    assert!(!bench.cluster.workers.contains_key(&WorkerId(2)));
    assert_eq!(bench.granted(1)[..3], [split(0, 0), split(0, 1), split(0, 2)]);
    assert_eq!(graph_jobs(&mut bench, graph_report(2, &[])), [job], "it starts again");
    assert_eq!(bench.granted(2), []);
}

#[test]
fn uncomputed_splits_leave_a_worker_that_has_evicted_the_graph() {
    let (mut bench, job) = loaded(1..=1);
    let computed = vec![(job, bench.held(1)[0])];
    bench.worker(WorkerReport { computed: computed.clone(), ..graph_report(1, &[(job, Loading)]) });
    assert_eq!(bench.held(1).len(), 3, "no other worker can compute them");
    bench.worker(graph_report(2, &[(job, Loaded)]));
    assert_eq!(bench.held(1), [split(0, 0)], "only the computed split stays");
    assert_eq!(bench.held(2)[..2], [split(0, 1), split(0, 2)]);
    bench.worker(WorkerReport { computed, ..graph_report(1, &[(job, Loaded)]) });
    assert!(bench.held(1).len() > 1, "the worker has loaded the graph again");
}

#[test]
fn a_worker_outside_the_plan_helps_while_it_holds_the_graph() {
    let (mut bench, job) = prepared();
    bench.step(placed(job, &[1]));
    bench.worker(graph_report(2, &[(job, Loading)]));
    bench.worker(graph_report(2, &[(job, Loaded)]));
    assert_eq!(
        bench.held(2),
        [split(0, 0)],
        "a consumer waits for the split, and worker 1 has not loaded the job"
    );
    bench.worker(graph_report(1, &[(job, Loaded)]));
    assert_eq!((bench.held(2), bench.held(1)[0]), (vec![split(0, 0)], split(0, 1)));
    bench.worker(graph_report(2, &[]));
    assert_eq!((bench.held(2), bench.held(1)[0]), (vec![], split(0, 0)), "worker 2 has evicted the graph");
}

#[test]
fn a_job_stays_on_its_workers_until_those_of_a_new_plan_have_loaded_it() {
    let (mut bench, job) = loaded(1..=1);
    bench.worker(graph_report(2, &[]));
    bench.worker(graph_report(3, &[]));
    bench.step(placed(job, &[2, 3]));
    let next = |bench: &mut Bench| {
        let computed: Vec<_> = bench.held(1).into_iter().map(|split| (job, split)).collect();
        bench.worker(WorkerReport { computed, ..graph_report(1, &[(job, Loaded)]) });
        bench.held(1).len()
    };
    assert_eq!(next(&mut bench), 6, "the worker computes on");
    bench.worker(graph_report(2, &[(job, Loaded)]));
    assert_eq!(graph_jobs(&mut bench, graph_report(1, &[(job, Loaded)])), [job], "worker 3 is still loading");
    bench.worker(graph_report(3, &[(job, Loaded)]));
    assert_eq!(graph_jobs(&mut bench, graph_report(1, &[(job, Loaded)])), [], "the graph may be evicted");
    assert!(!bench.held(2).is_empty());
}

#[test]
fn an_unplanned_job_uses_the_workers_that_hold_its_graph_and_few_others() {
    let (mut bench, job) = prepared();
    for worker in 2..=30 {
        bench.worker(graph_report(worker, &[]));
    }
    let loading: BTreeSet<u64> =
        (1..=30).filter(|worker| !graph_jobs(&mut bench, graph_report(*worker, &[])).is_empty()).collect();
    assert_eq!(loading.len(), 8, "30 workers do not load the graph because one job starts");
    // A worker holds the graph for another job.
    let holder = (1..=30).find(|worker| !loading.contains(worker)).expect("22 workers");
    let held = graph_report(holder, &[(JobId(99), Loaded)]);
    bench.worker(held.clone());
    bench.cluster.refresh_candidates_of(job);
    bench.pass(1);
    assert_eq!(graph_jobs(&mut bench, held), [job]);
    for worker in loading {
        assert_eq!(graph_jobs(&mut bench, graph_report(worker, &[])), [job], "a load is not aborted");
    }
}

#[test]
fn a_job_that_ends_or_has_no_consumers_releases_the_graph() {
    let (mut bench, job) = loaded(1..=1);
    for _ in 0..20 {
        bench.pass(1_000);
        bench.worker(graph_report(1, &[(job, Loaded)]));
    }
    assert_eq!(graph_jobs(&mut bench, graph_report(1, &[(job, Loaded)])), [], "no consumer has reported");
    // The worker evicts the graph.
    bench.worker(graph_report(1, &[]));
    bench.consumer(consumer_report(job, 0));
    assert_eq!(graph_jobs(&mut bench, graph_report(1, &[])), [job]);
    assert_eq!(bench.held(1), [], "it loads the graph again");
    bench.worker(graph_report(1, &[(job, Loaded)]));
    assert!(!bench.held(1).is_empty());
    bench.ask(|request| Input::CancelJob { request, job });
    assert_eq!(graph_jobs(&mut bench, graph_report(1, &[(job, Loaded)])), []);
}

#[test]
fn a_new_leader_does_not_make_other_workers_load_the_graph() {
    let (mut bench, job) = loaded(1..=1);
    let held = bench.held(1);
    let records = bench.records.clone();
    bench.cluster = Cluster::restore(ClusterSettings::default(), INCARNATION + 1, bench.now, records);
    let states: States = [(1, Some(Loaded)), (2, None)].into();
    assert_eq!(graph_jobs(&mut bench, graph_report(2, &[])), [], "the first report is of another worker");
    assert_eq!(graph_jobs(&mut bench, graph_report(1, &[(job, Loaded)])), [job]);
    assert_eq!(bench.held(1), held);
    pass_seconds(&mut bench, job, &states, 6);
    assert_eq!(graph_jobs(&mut bench, graph_report(2, &[])), [job], "there is no plan");
    assert_eq!(bench.granted(2), []);
}

#[test]
fn jobs_that_only_read_seeds_need_no_graph() {
    let mut spec = sampling();
    let pipeline = Pipeline::builder("p").source(Source::graph("g")).batch(4);
    spec.pipeline = pipeline.build().expect("a valid pipeline");
    let (bench, _) = Bench::running_on(&spec, dataset());
    assert!(!bench.held(1).is_empty() && bench.cluster.workers[&WorkerId(1)].graph_jobs.is_empty());
}

type States = BTreeMap<u64, Option<GraphLoadState>>;

/// Passes the reports of workers. After each report, only workers that have loaded the job may have received leases.
fn report_all(bench: &mut Bench, job: JobId, states: &States) {
    for (worker, state) in states {
        let from = bench.records.len();
        let loads: Vec<_> = state.iter().map(|state| (job, *state)).collect();
        bench.worker(graph_report(*worker, &loads));
        check_grants(bench, job, from);
    }
}

/// Checks the leases that the last step has granted.
fn check_grants(bench: &Bench, job: JobId, from: usize) {
    for record in &bench.records[from..] {
        if let Record::Granted { worker, .. } = record {
            let state = bench.cluster.workers.get(worker).and_then(|found| found.graph_state(job));
            assert_eq!(state, Some(Loaded), "{record:?}");
        }
    }
}

/// Passes seconds in which all these workers and the consumer report.
fn pass_seconds(bench: &mut Bench, job: JobId, states: &States, seconds: u32) {
    for _ in 0..seconds {
        let from = bench.records.len();
        bench.pass(1_000);
        check_grants(bench, job, from);
        let from = bench.records.len();
        bench.consumer(consumer_report(job, 0));
        check_grants(bench, job, from);
        report_all(bench, job, states);
    }
}

proptest! {
    /// Workers that load slowly, evict, die and move with the plan: only workers that have loaded the job receive leases, and the job
    /// completes once a worker keeps the graph.
    #[test]
    fn leases_follow_the_graph(steps in prop::collection::vec((0u8..7, 1u64..5), 1..60)) {
        let (mut bench, job) = prepared();
        let mut states: States = [(1, None)].into();
        // Workers that were lost while they loaded the job. With a third, the job would fail.
        let mut lost = BTreeSet::new();
        let mut row = 0;
        for (kind, worker) in steps {
            let from = bench.records.len();
            if kind < 4 {
                lost.remove(&worker);
            }
            match kind {
                0 => {
                    states.insert(worker, Some(Loading));
                }
                1 | 2 => {
                    if states.insert(worker, Some(Loaded)) != Some(Some(Loaded)) {
                        lost.clear();
                    }
                }
                3 => {
                    states.insert(worker, None);
                }
                4 if lost.len() < 2 || states.get(&worker) == Some(&Some(Loaded)) => {
                    if states.remove(&worker).is_some_and(|state| state != Some(Loaded)) {
                        lost.insert(worker);
                    }
                    pass_seconds(&mut bench, job, &states, 4);
                }
                5 => {
                    bench.step(placed(job, &[worker, worker % 4 + 1]));
                    check_grants(&bench, job, from);
                }
                _ => {
                    row = (row + 8 * worker).min(u64::from(ROWS) / 2);
                    let positions = vec![(0, StreamPosition { epoch: 0, row })];
                    bench.consumer(ConsumerReport { positions, ..consumer_report(job, 0) });
                    check_grants(&bench, job, from);
                }
            }
            report_all(&mut bench, job, &states);
        }
        let states: States = [(1, Some(Loaded))].into();
        pass_seconds(&mut bench, job, &states, 4);
        for _ in 0..100 {
            let computed: Vec<_> = bench.held(1).into_iter().map(|split| (job, split)).collect();
            bench.worker(WorkerReport { computed, ..graph_report(1, &[(job, Loaded)]) });
            let layout = bench.cluster.jobs[&job].layout.clone().expect("it runs");
            let position = bench.cluster.jobs[&job].streams.positions()[0];
            let Some((next, _)) = layout.locate(0, position) else { break };
            prop_assert!(bench.held(1).contains(&next), "the worker computes the next split");
            let end = StreamPosition { epoch: 0, row: (next.ordinal + 1) * layout.split_rows };
            let positions = vec![(0, layout.normalise(0, end))];
            bench.consumer(ConsumerReport { positions, ..consumer_report(job, 0) });
        }
        prop_assert_eq!(bench.status(job).state, JobState::Completed);
    }
}

/// A worker reports that it loads a job, and dies.
fn lose_loading(bench: &mut Bench, job: JobId, worker: u64) {
    assert_eq!(graph_jobs(bench, graph_report(worker, &[(job, Loading)])), [job]);
    for _ in 0..4 {
        bench.pass(1_000);
        bench.consumer(consumer_report(job, 0));
    }
}

#[test]
fn a_graph_that_crashes_the_workers_that_load_it_fails_the_job() {
    let (mut bench, job) = prepared();
    for worker in 1..=3 {
        assert_eq!(bench.status(job).state, JobState::Running);
        lose_loading(&mut bench, job, worker);
    }
    match bench.status(job).state {
        JobState::Failed(message) => assert!(
            message.starts_with("3 workers were lost while they loaded the graph of the job; "),
            "{message}"
        ),
        other => panic!("not failed: {other:?}"),
    }
}

#[test]
fn after_two_losses_one_worker_loads_the_graph_at_a_time() {
    let (mut bench, job) = prepared();
    lose_loading(&mut bench, job, 1);
    lose_loading(&mut bench, job, 2);
    assert_eq!(graph_jobs(&mut bench, graph_report(3, &[])), [job]);
    assert_eq!(graph_jobs(&mut bench, graph_report(4, &[])), []);
    bench.worker(graph_report(3, &[(job, Loading)]));
    assert_eq!(graph_jobs(&mut bench, graph_report(4, &[])), []);
    bench.worker(graph_report(3, &[(job, Loaded)]));
    assert_eq!(graph_jobs(&mut bench, graph_report(4, &[])), [job], "the graph crashes no worker");
    lose_loading(&mut bench, job, 4);
    assert_eq!(bench.status(job).state, JobState::Running);
}

#[test]
fn the_workers_of_a_partitioned_job_know_each_other() {
    let mut spec = sampling();
    let Some(OperatorKind::SampleNeighbors(sample)) =
        spec.pipeline.operators.last_mut().map(|last| &mut last.kind)
    else {
        panic!("the pipeline samples a graph");
    };
    sample.placement = PlacementMode::Partition;
    let (mut bench, manifest) = (Bench::new(), dataset());
    let job = bench.open_with(&spec, Some(Arc::new(manifest.clone()))).expect("a valid job");
    let plan = bench.worker(graph_report(1, &[])).expect("the listing task");
    let tasks = vec![listed(plan.tasks[0].id, &manifest)];
    bench.worker(WorkerReport { tasks, ..graph_report(1, &[]) });
    let workers_of = |plan: &WorkerPlan| -> Vec<u64> {
        assert_eq!(plan.partitioned_jobs.len(), 1);
        let PartitionedJob { job: listed, workers, ticket } = &plan.partitioned_jobs[0];
        assert_eq!((*listed, ticket.as_str()), (job, ""), "the service adds the ticket");
        workers.iter().map(|(worker, _)| worker.0).collect()
    };
    let first = bench.worker(graph_report(1, &[(job, Loaded)])).expect("the report has no revision");
    assert_eq!(workers_of(&first), [1]);
    let second = bench.worker(graph_report(2, &[])).expect("the report has no revision");
    assert_eq!(workers_of(&second), [1, 2], "also while it is loading");
    let again = bench.worker(graph_report(1, &[(job, Loaded)])).expect("the report has no revision");
    assert!(again.revision.number > first.revision.number, "the first worker learns of the second");
    assert_eq!(workers_of(&again), [1, 2]);
    assert_eq!(again.partitioned_jobs[0].workers[1].1, WorkerAddress::new(report(2).address));

    let (mut bench, job) = loaded(1..=1);
    let plan = bench.worker(graph_report(1, &[(job, Loaded)])).expect("the report has no revision");
    assert!(plan.partitioned_jobs.is_empty(), "other jobs replicate their features");
}
