//! Short runs: what is promised of scaling, and that a run is the same each time.

use super::*;

fn demand_steps() -> Scenario {
    Scenario::from_yaml(include_str!("../../../examples/scenarios/demand-steps.yaml")).unwrap()
}

#[test]
fn workers_follow_the_demand() {
    let report = run(&demand_steps(), Rule::Plan, &mut ()).unwrap();
    println!("{:#?}", report.steps);
    println!("{:#?}", report.decisions);
    println!("{:#?}", report.audit);
    for s in &report.seconds { println!("{s:?}"); }
    println!("{} {} {} {}", report.worker_seconds, report.stall_seconds, report.actions, report.oscillations);
    assert!(report.audit.is_clean());
}
