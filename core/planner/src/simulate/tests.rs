//! Short runs: properties of scaling, the audit of rows, and equal results of equal runs.

use super::*;
use crate::plan::ScaleSettings;

fn demand_steps() -> Scenario {
    Scenario::from_yaml(include_str!("../../../../examples/scenarios/demand-steps.yaml"), "s.yaml").unwrap()
}

/// The same scenario with changes of demand after 60 s and 120 s.
fn quick_steps() -> Scenario {
    let mut scenario = demand_steps();
    scenario.duration_s = 200;
    for (step, at_s) in scenario.jobs[0].demand.iter_mut().zip([0, 60, 120]) {
        step.at_s = at_s;
    }
    scenario
}

fn simulated(scenario: &Scenario, rule: ScalingRule) -> SimulationReport {
    let report = run(scenario, rule, &mut ()).unwrap();
    assert!(report.audit.is_clean(), "{:?}", report.audit);
    report
}

#[test]
fn workers_follow_the_demand() {
    let report = simulated(&demand_steps(), ScalingRule::Plan);
    let [up, down] = report.demand_changes.as_slice() else {
        panic!("two steps, not {:?}", report.demand_changes)
    };
    assert!(up.fed_after_s.is_some_and(|seconds| seconds <= 15), "{up:?}");
    assert!(down.released_after_s.is_some_and(|seconds| seconds <= 60), "{down:?}");
    assert!(down.fed_after_s == Some(0), "no consumer waits because workers leave: {down:?}");
    assert_eq!(report.oscillations, 0, "{:#?}", report.decisions);
    let workers = |at_s: u32| report.seconds[at_s as usize - 1].workers;
    assert_eq!((workers(170), workers(900)), (3, 3), "16 cores need 3 workers of 8 cores");
    assert!((8..=10).contains(&workers(470)), "64 cores need 9 workers of 8 cores, not {}", workers(470));
}

/// Workers compute 1,000 rows per second each, and the producer writes 3,000.
#[test]
fn workers_are_added_until_the_lag_of_a_topic_is_small() {
    let text = include_str!("../../../../examples/scenarios/topic.yaml");
    let report = simulated(&Scenario::from_yaml(text, "s.yaml").unwrap(), ScalingRule::Plan);
    let at = |at_s: u32| report.seconds[at_s as usize - 1];
    assert!(at(20).workers == 1 && at(20).lag_rows < 1_000, "{:?}", at(20));
    let peak = report.seconds.iter().max_by_key(|second| second.lag_rows).unwrap();
    assert!(peak.at_s <= 20 + 15, "the lag falls after 15 s: {peak:?}");
    let seconds = |second: &SimulatedSecond| second.lag_rows as f64 / 3_000.0;
    let late = report.seconds.iter().filter(|second| second.at_s >= 20 + 60);
    assert!(late.clone().all(|second| seconds(second) < 5.0), "{:?}", late.collect::<Vec<_>>());
    assert!(report.seconds.iter().all(|second| second.workers <= 4));
    assert_eq!(report.oscillations, 0, "{:#?}", report.decisions);
}

#[test]
fn a_run_is_the_same_each_time() {
    let scenario = Scenario { duration_s: 90, ..quick_steps() };
    for rule in [ScalingRule::Plan, ScalingRule::RateQuotient, ScalingRule::Climb] {
        assert_eq!(simulated(&scenario, rule), simulated(&scenario, rule));
    }
}

#[test]
fn other_rules_stall_longer_than_ours() {
    let scenario = quick_steps();
    let ours = simulated(&scenario, ScalingRule::Plan);
    let quotient = simulated(&scenario, ScalingRule::RateQuotient);
    let climb = simulated(&scenario, ScalingRule::Climb);
    assert!(ours.stall_seconds < 0.5 * climb.stall_seconds, "one step per 10 s is slow");
    assert!(quotient.stall_seconds < climb.stall_seconds);
    let fixed = simulated(&scenario, ScalingRule::None);
    assert_eq!((fixed.decision_count, fixed.decisions.len()), (0, 0));
}

#[test]
fn a_saturated_store_adds_no_workers() {
    let mut scenario = Scenario { duration_s: 120, ..quick_steps() };
    scenario.worker_types[0].workers_at_start = 5;
    scenario.jobs[0].demand = vec![ScenarioDemand { at_s: 0, rows_per_s: 16_000.0 }];
    // The store delivers 5,000 rows per second, and the workers could compute 10,000.
    scenario.store_bytes_per_s = 5_000.0 * scenario.jobs[0].store_bytes_per_row as f64;
    let report = simulated(&scenario, ScalingRule::Plan);
    let most = report.seconds.iter().map(|second| second.workers).max();
    assert!(most <= Some(5), "{most:?} workers: {:#?}", report.decisions);
    let rows = report.seconds[100..].iter().map(|second| second.rows).sum::<u64>() / 20;
    assert!((4_800..=5_100).contains(&rows), "the store gives 5,000 rows/s, not {rows}");
}

/// Two jobs on one worker at the start.
fn two_jobs() -> Scenario {
    let mut scenario = Scenario { duration_s: 60, ..quick_steps() };
    scenario.worker_types[0].workers_at_start = 1;
    scenario.jobs[0].demand = vec![ScenarioDemand { at_s: 0, rows_per_s: 4_000.0 }];
    let second = ScenarioJob { name: "second".to_owned(), ..scenario.jobs[0].clone() };
    scenario.jobs.push(second);
    scenario
}

#[test]
fn two_jobs_on_one_worker_add_workers() {
    let report = simulated(&two_jobs(), ScalingRule::Plan);
    let last = report.seconds.last().unwrap();
    // The demand needs 32 cores.
    assert!((4..=6).contains(&last.workers), "{last:?}: {:#?}", report.decisions);
    assert!(last.smallest_fed > 0.95, "{last:?}: {:#?}", report.decisions);
}

#[test]
fn a_job_beside_one_that_waits_for_the_store_adds_workers() {
    let mut scenario = Scenario { duration_s: 100, ..two_jobs() };
    scenario.jobs[0].store_bytes_per_row = 0;
    // The store delivers 1,000 of 4,000 rows per second.
    scenario.store_bytes_per_s = 1_000.0 * scenario.jobs[1].store_bytes_per_row as f64;
    let report = simulated(&scenario, ScalingRule::Plan);
    let last = report.seconds.last().unwrap();
    // The demand needs 16 cores, and 4 for the other job.
    assert!((3..=5).contains(&last.workers), "{last:?}: {:#?}", report.decisions);
    assert!(report.jobs[0].fed_fraction > 0.9 && report.jobs[1].fed_fraction < 0.3, "{:?}", report.jobs);
}

#[test]
fn jobs_that_share_workers_are_all_fed() {
    let mut scenario = Scenario::of_size(50, 60);
    scenario.worker_types[0].workers_at_start = 45;
    scenario.scaling =
        ScenarioScaling { rule: ScalingRule::Plan, max_workers: 100, ..ScenarioScaling::default() };
    let report = simulated(&scenario, ScalingRule::Plan);
    assert_eq!(report.audit.streams, 25);
    let last = report.seconds.last().unwrap();
    assert!(last.smallest_fed > 0.99, "{last:?}");
    // 35,000 rows per second of 8 ms each need 280 cores.
    assert!((39..=45).contains(&last.workers), "{last:?}");
}

#[test]
fn a_leaving_worker_loses_no_row() {
    let mut scenario = quick_steps();
    scenario.scaling.shrink_after_s = 0;
    let report = simulated(&scenario, ScalingRule::Plan);
    assert!(report.decisions.iter().any(|decision| decision.to_workers < decision.from_workers));
    let shrink = ScaleSettings::default().shrink_after_ms;
    assert_eq!(
        1_000 * u64::from(ScenarioScaling::default().shrink_after_s),
        shrink,
        "the simulation has the default of the coordinator"
    );
}

#[test]
fn an_invalid_scenario_is_rejected_with_a_sentence() {
    let rejection = |change: fn(&mut Scenario)| {
        let mut scenario = demand_steps();
        change(&mut scenario);
        run(&scenario, ScalingRule::Plan, &mut ()).map(|_| ()).unwrap_err()
    };
    assert!(rejection(|scenario| scenario.worker_types.clear()).contains("worker_types"));
    assert!(rejection(|scenario| scenario.jobs[0].demand[0].at_s = 5).contains("starting at 0"));
    assert!(rejection(|scenario| scenario.jobs[0].operators.clear()).contains("cpu_s"));
    assert!(rejection(|scenario| scenario.control.tick_ms = 7).contains("divisor of 1000"));
    let unknown = Scenario::from_yaml("name: x\nduratoin_s: 3\n", "s.yaml").unwrap_err();
    assert!(
        unknown.starts_with("s.yaml:2: unknown key `duratoin_s`; did you mean `duration_s`?"),
        "{unknown}"
    );
}

#[test]
fn the_scenario_of_a_large_cluster_is_valid() {
    let text = include_str!("../../../../examples/scenarios/size.yaml");
    assert_eq!(Scenario::from_yaml(text, "s.yaml").unwrap().worker_types[0].workers_at_start, 1_000);
}

/// The fed fractions are those of the plan, and an even division of all workers has a smaller one.
#[test]
fn unequal_jobs_on_unequal_workers_reach_their_planned_fed_fractions() {
    let mut scenario =
        Scenario::from_yaml(include_str!("../../../../examples/scenarios/fair.yaml"), "s.yaml")
            .expect("the scenario is valid");
    let planned = simulated(&scenario, ScalingRule::None);
    for job in &planned.jobs {
        let wanted = job.planned_fed.expect("plans contain the job");
        assert!((job.fed_fraction - wanted).abs() <= 0.05 * wanted, "{:?}", planned.jobs);
    }
    scenario.control.follow_plan = false;
    let even = simulated(&scenario, ScalingRule::None);
    let least =
        |report: &SimulationReport| report.jobs.iter().map(|job| job.fed_fraction).fold(1.0, f64::min);
    assert!(least(&even) < 0.8 * least(&planned), "{:?} and {:?}", even.jobs, planned.jobs);
}

/// The fed fractions are those of the plan even if one job starts later than the others.
#[test]
fn jobs_reach_their_planned_fed_fractions_at_any_start_time() {
    let scenario = Scenario::from_yaml(include_str!("../../../../examples/scenarios/fair.yaml"), "s.yaml")
        .expect("the scenario is valid");
    for (place, at_s) in [(0, 5), (1, 1), (2, 1)] {
        let mut later = Scenario { duration_s: 240, ..scenario.clone() };
        let demand = later.jobs[place].demand[0];
        let none = ScenarioDemand { at_s: 0, rows_per_s: 0.0 };
        later.jobs[place].demand = vec![none, ScenarioDemand { at_s, ..demand }];
        let report = simulated(&later, ScalingRule::None);
        for job in &report.jobs {
            let wanted = job.planned_fed.expect("plans contain the job");
            assert!(
                (job.fed_fraction - wanted).abs() <= 0.1 * wanted,
                "job {place} from {at_s} s on: {:?}",
                report.jobs
            );
        }
    }
}

/// Quotas hold with a plan and without one.
#[test]
fn a_tenant_uses_its_quota_and_others_use_the_rest() {
    let mut scenario =
        Scenario::from_yaml(include_str!("../../../../examples/scenarios/tenants.yaml"), "s.yaml")
            .expect("the scenario is valid");
    for follow_plan in [true, false] {
        scenario.control.follow_plan = follow_plan;
        let report = simulated(&scenario, ScalingRule::None);
        let [first, second, other] = report.jobs.as_slice() else { panic!("three jobs") };
        // 4 cores compute 2,000 of the 6,000 rows per second.
        for job in [first, second] {
            assert!((0.28..0.36).contains(&job.fed_fraction), "by plan: {follow_plan}, {:?}", report.jobs);
        }
        assert!(other.fed_fraction > 0.9, "by plan: {follow_plan}, {:?}", report.jobs);
    }
    let refused = Scenario {
        tenants: [(
            "vision".to_owned(),
            feedline_data::tenants::Quota { jobs: Some(1), ..Default::default() },
        )]
        .into(),
        ..scenario
    };
    let refused = run(&refused, ScalingRule::None, &mut ()).map(|_| ()).unwrap_err();
    assert!(refused.starts_with("quota exceeded: tenant `vision` may have at most 1 jobs"), "{refused}");
}
