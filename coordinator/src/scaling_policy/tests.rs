//! Tests of the decisions for pools, and of the calls of a scaler.

use std::sync::Mutex;

use async_trait::async_trait;
use feedline_data::ids::WorkerId;
use feedline_data::messages::ProcessCpu;
use feedline_data::view::BottleneckKind;
use feedline_planner::observe::PoolNeeds;

use super::*;
use crate::metrics::tests::GaugeRecorder;

/// A scaler that records its calls. It starts workers immediately, fails, or never answers.
#[derive(Debug)]
struct RecordingScaler {
    limits: Vec<PoolLimits>,
    behaviour: Behaviour,
    state: Mutex<ScalerState>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Behaviour {
    Works,
    Fails,
    Hangs,
}

#[derive(Debug, Default)]
struct ScalerState {
    present: BTreeMap<String, Option<u32>>,
    calls: Vec<(String, u32, Vec<String>)>,
}

#[async_trait]
impl Scaler for RecordingScaler {
    fn pools(&self) -> Vec<PoolLimits> {
        self.limits.clone()
    }

    fn present(&self, pool: &str, _: u32) -> Option<u32> {
        self.state.lock().unwrap().present.get(pool).copied().unwrap_or(Some(0))
    }

    async fn scale(&self, change: &PoolChange) -> Result<(), String> {
        let PoolChange { pool, wanted, victims } = change;
        self.state.lock().unwrap().calls.push((pool.clone(), *wanted, victims.clone()));
        match self.behaviour {
            Behaviour::Works => {
                self.state.lock().unwrap().present.insert(pool.clone(), Some(*wanted));
                Ok(())
            }
            Behaviour::Fails => Err("no room".to_owned()),
            Behaviour::Hangs => std::future::pending().await,
        }
    }
}

/// A policy with a recording scaler.
struct Bench {
    scaler: Arc<RecordingScaler>,
    policy: ScalingPolicy,
    workers: Vec<WorkerReportSample>,
}

impl Bench {
    fn new(pools: &[(&str, u32, u32)], behaviour: Behaviour) -> Self {
        let limits = |(pool, min_workers, max_workers): &(&str, u32, u32)| PoolLimits {
            pool: (*pool).to_owned(),
            min_workers: *min_workers,
            max_workers: *max_workers,
        };
        let limits = pools.iter().map(limits).collect();
        let scaler = Arc::new(RecordingScaler { limits, behaviour, state: Mutex::default() });
        let policy = ScalingPolicy::new(30_000, Arc::<RecordingScaler>::clone(&scaler));
        Self { scaler, policy, workers: Vec::new() }
    }

    /// The policy for one pool of one to eight workers, without a name.
    fn single(behaviour: Behaviour) -> Self {
        Self::new(&[("", 1, 8)], behaviour)
    }

    fn set_present(&self, pool: &str, present: Option<u32>) {
        self.scaler.state.lock().unwrap().present.insert(pool.to_owned(), present);
    }

    /// Makes decisions, and waits until the scaler has answered unless it hangs.
    async fn update(&mut self, now: Millis, needs: &ResourceNeeds) {
        self.policy.update(now, needs, &self.workers);
        tokio::task::yield_now().await;
        if self.scaler.behaviour != Behaviour::Hangs {
            for scaling in self.policy.pools.values_mut() {
                while let Some(joined) = scaling.calls.running.join_next().await {
                    scaling.calls.on_result(joined.unwrap());
                }
            }
        }
    }

    fn calls(&self) -> Vec<(String, u32)> {
        let state = self.scaler.state.lock().unwrap();
        state.calls.iter().map(|(pool, wanted, _)| (pool.clone(), *wanted)).collect()
    }

    fn called_numbers(&self) -> Vec<u32> {
        self.calls().into_iter().map(|(_, wanted)| wanted).collect()
    }
}

/// Needs of pools. `None` means that no worker of the pool has reported.
fn needs_of(pools: &[(&str, Option<u32>)]) -> ResourceNeeds {
    let pool = |(pool, wanted): &(&str, Option<u32>)| PoolNeeds {
        pool: (*pool).to_owned(),
        wanted_workers: *wanted,
    };
    ResourceNeeds {
        is_known: true,
        wanted_workers: pools.iter().filter_map(|(_, wanted)| *wanted).sum(),
        fed_fraction: 0.5,
        bottleneck: Some(BottleneckKind::Cpu),
        pools: pools.iter().map(pool).collect(),
    }
}

fn wants(wanted: u32) -> ResourceNeeds {
    needs_of(&[("", Some(wanted))])
}

fn unknown() -> ResourceNeeds {
    ResourceNeeds { is_known: false, ..needs_of(&[("", None), ("spot", None), ("base", None)]) }
}

fn worker(id: u64, pool: &str) -> WorkerReportSample {
    WorkerReportSample {
        worker: WorkerId(id),
        address: format!("http://10.0.0.{id}:7071"),
        pool: pool.to_owned(),
        machine: String::new(),
        nic_bytes_per_s: 0,
        cores: 8,
        memory_bytes: 1 << 30,
        caches: Vec::new(),
        memory: Vec::new(),
        stores: Vec::new(),
        graphs: Vec::new(),
        memory_full: false,
        draining: false,
        elapsed_ns: 1_000 * id,
        cpu: ProcessCpu::default(),
        jobs: Vec::new(),
    }
}

#[tokio::test]
async fn workers_start_immediately_and_stop_after_a_while() {
    let mut bench = Bench::single(Behaviour::Works);
    let idle = ResourceNeeds { fed_fraction: 1.0, ..wants(0) };
    for (now, needs) in
        [(0, &idle), (1_000, &wants(5)), (2_000, &idle), (31_000, &idle), (32_000, &idle), (33_000, &idle)]
    {
        bench.update(now, needs).await;
    }
    assert_eq!(bench.called_numbers(), [1, 5, 1], "the least, what is needed, the least again");
}

#[tokio::test]
async fn workers_stay_for_a_job_without_measurements() {
    let mut bench = Bench::single(Behaviour::Works);
    bench.update(0, &wants(3)).await;
    for second in 1..100 {
        bench.update(1_000 * second, &unknown()).await;
    }
    assert_eq!(bench.called_numbers(), [3]);
    let decision = PoolDecision { pool: String::new(), present: 3, wanted: 3, is_known: false };
    assert_eq!(bench.policy.decisions(), [decision]);
}

#[tokio::test]
async fn a_failed_call_of_the_scaler_is_repeated() {
    let mut bench = Bench::single(Behaviour::Fails);
    bench.update(0, &wants(2)).await;
    bench.update(1_000, &wants(2)).await;
    assert_eq!(bench.called_numbers(), [2, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_hanging_call_delays_no_decision_and_ends_at_its_deadline() {
    let mut bench = Bench::new(&[("spot", 0, 8), ("base", 1, 8)], Behaviour::Hangs);
    let started = Instant::now();
    for second in 0..5 {
        bench
            .update(1_000 * second, &needs_of(&[("spot", Some(2)), ("base", Some(second as u32 + 3))]))
            .await;
    }
    assert_eq!(started.elapsed(), Duration::ZERO, "no decision waits for a call");
    let first = [("spot".to_owned(), 2), ("base".to_owned(), 3)];
    assert_eq!(bench.calls(), first, "one call for each pool");
    assert_eq!(bench.policy.decisions()[1].wanted, 7, "the decisions continue");
    tokio::time::advance(CALL_TIMEOUT + Duration::from_secs(1)).await;
    tokio::task::yield_now().await;
    bench.update(16_000, &needs_of(&[("spot", Some(2)), ("base", Some(8))])).await;
    assert_eq!(bench.calls()[2..], [("spot".to_owned(), 2), ("base".to_owned(), 8)]);
}

#[tokio::test(start_paused = true)]
async fn a_lasting_failure_is_one_warning_a_minute() {
    let mut calls = ScalerCalls::default();
    let failed = || Err("no room".to_owned());
    calls.on_result(failed());
    let first = calls.warned_at.expect("a warning");
    tokio::time::advance(Duration::from_secs(30)).await;
    calls.on_result(failed());
    assert_eq!(calls.warned_at, Some(first));
    tokio::time::advance(Duration::from_secs(30)).await;
    calls.on_result(failed());
    assert!(calls.warned_at.is_some_and(|at| at > first));
    calls.on_result(Ok(()));
    assert_eq!(calls.warned_at, None, "the next failure is a warning again");
}

#[tokio::test]
async fn each_pool_grows_and_shrinks_on_its_own() {
    let mut bench = Bench::new(&[("spot", 0, 4), ("base", 1, 8)], Behaviour::Works);
    bench.workers = vec![worker(1, "spot"), worker(2, "base"), worker(3, "spot")];
    bench.set_present("spot", Some(2));
    bench.set_present("base", Some(1));
    bench.update(0, &needs_of(&[("spot", Some(1)), ("base", Some(3))])).await;
    assert_eq!(bench.calls(), [("base".to_owned(), 3)]);
    assert_eq!(
        bench.policy.explanation().unwrap(),
        "pool spot: keeping the current number of workers: 1 worker would be enough; surplus workers will be removed in \
         30 s unless they are needed before then; pool base: scaling from 1 to 3 workers, because the smallest fed \
         fraction is 50 %, and 3 workers would feed all jobs"
    );
    bench.update(30_000, &needs_of(&[("spot", Some(1)), ("base", Some(3))])).await;
    let last = bench.scaler.state.lock().unwrap().calls.last().cloned();
    assert_eq!(last, Some(("spot".to_owned(), 1, vec!["10.0.0.1".to_owned()])), "the youngest worker stops");
}

#[tokio::test]
async fn a_pool_of_unknown_size_is_not_scaled() {
    let mut bench = Bench::new(&[("spot", 0, 4), ("base", 1, 8)], Behaviour::Works);
    bench.set_present("spot", None);
    let idle = needs_of(&[("spot", Some(0)), ("base", Some(1))]);
    for now in [0, 60_000] {
        bench.update(now, &idle).await;
    }
    assert_eq!(bench.calls(), [("base".to_owned(), 1)]);
    assert_eq!(bench.policy.decisions().len(), 1);
    bench.set_present("spot", Some(3));
    for now in [61_000, 90_000] {
        bench.update(now, &idle).await;
    }
    assert_eq!(bench.calls().len(), 1, "the surplus has been observed for 29 s");
    bench.update(91_000, &idle).await;
    assert_eq!(bench.calls()[1..], [("spot".to_owned(), 0)]);
}

#[tokio::test]
async fn a_pool_without_reports_keeps_its_size() {
    let mut bench = Bench::new(&[("spot", 0, 4), ("base", 1, 8)], Behaviour::Works);
    bench.set_present("spot", Some(3));
    bench.set_present("base", Some(2));
    for now in [0, 60_000] {
        bench.update(now, &needs_of(&[("spot", None), ("base", Some(9))])).await;
    }
    let spot = PoolDecision { pool: "spot".to_owned(), present: 3, wanted: 3, is_known: false };
    assert_eq!(bench.policy.decisions()[0], spot);
    assert_eq!(bench.calls(), [("base".to_owned(), 8)], "at most the maximum");
}

/// Without this worker, the planner would never learn the type of the pool, and the pool would stay empty.
#[tokio::test]
async fn an_empty_pool_of_unknown_type_starts_one_worker_if_the_others_are_too_small() {
    let mut bench = Bench::new(&[("spot", 0, 4), ("base", 1, 8), ("closed", 0, 0)], Behaviour::Works);
    bench.set_present("base", Some(8));
    bench.update(0, &needs_of(&[("spot", None), ("base", Some(8)), ("closed", None)])).await;
    assert!(bench.calls().is_empty(), "the other pool suffices");
    bench.update(1_000, &needs_of(&[("spot", None), ("base", Some(9)), ("closed", None)])).await;
    assert_eq!(bench.calls(), [("spot".to_owned(), 1)]);
    assert!(bench.policy.decisions()[0].is_known);
}

#[tokio::test]
async fn a_new_term_forgets_the_surplus_of_an_earlier_term() {
    let recorder = GaugeRecorder::default();
    let _local = metrics::set_default_local_recorder(&recorder);
    let mut bench = Bench::single(Behaviour::Works);
    let idle = ResourceNeeds { fed_fraction: 1.0, ..wants(0) };
    bench.workers =
        vec![worker(1, ""), worker(2, ""), WorkerReportSample { draining: true, ..worker(3, "") }];
    bench.update(0, &wants(5)).await;
    bench.update(1_000, &idle).await;
    let live = format!("{LIVE_WORKERS} default 2");
    let decided = [format!("{POOL_WANTED_WORKERS} default 0"), format!("{SCALED_WORKERS} default 5")];
    assert_eq!(recorder.exported(), [&[live.clone()][..], &decided].concat());
    bench.set_present("", None);
    bench.update(1_500, &idle).await;
    assert_eq!(recorder.exported(), [live], "only the scaler's number is unknown");
    bench.set_present("", Some(5));
    bench.policy.reset();
    assert!(recorder.exported().is_empty() && bench.policy.explanation().is_none());
    assert!(bench.policy.decisions().is_empty());
    for now in [40_000, 69_000] {
        bench.update(now, &idle).await;
    }
    assert_eq!(bench.called_numbers(), [5], "the surplus began at 40 s");
    bench.update(70_000, &idle).await;
    assert_eq!(bench.called_numbers(), [5, 1]);
}

#[tokio::test]
async fn a_maximum_below_the_minimum_counts_as_the_minimum() {
    let mut bench = Bench::new(&[("spot", 3, 0)], Behaviour::Works);
    bench.update(0, &needs_of(&[("spot", Some(0))])).await;
    assert_eq!(bench.calls(), [("spot".to_owned(), 3)]);
}

#[test]
fn a_change_is_reported_once_while_its_reason_alternates() {
    let mut scaling = PoolScaling::default();
    let mut reports = Vec::new();
    let settings = ScaleSettings { min_workers: 0, max_workers: 8, shrink_after_ms: 30_000 };
    for (now, present, wanted, fed_fraction) in [
        (0, 2, 5, 0.5),
        (1_000, 2, 5, 0.6),
        // The demand alternates as well.
        (2_000, 2, 2, 1.0),
        (3_000, 2, 5, 0.5),
        (4_000, 2, 6, 0.5),
        (4_500, 2, 5, 0.5),
        (5_000, 6, 6, 1.0),
        // Workers have failed.
        (6_000, 2, 6, 0.5),
        (7_000, 4, 6, 0.6),
    ] {
        let needs = ResourceNeeds { fed_fraction, ..wants(wanted) };
        let demand = PoolDemand { pool: "", settings, needs: &needs, are_full: false };
        scaling.decide(now, &demand, present);
        reports.push(scaling.is_new_change());
    }
    assert_eq!(reports, [true, false, false, false, true, false, false, true, true]);
    scaling.on_unknown_size("");
    assert!(!scaling.is_new_change());
}
