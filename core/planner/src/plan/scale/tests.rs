//! Scaling over time, and the rules of other systems.

use expect_test::expect;

use super::*;

const SETTINGS: ScaleSettings = ScaleSettings { min_workers: 1, max_workers: 20, shrink_after_ms: 30_000 };

fn input(second: u64, present: u32, wanted: u32, bound: BottleneckKind) -> ScaleInput {
    ScaleInput {
        now: 1000 * second,
        current_workers: present,
        wanted_workers: wanted,
        fed_fraction: 0.25,
        bottleneck: Some(bound),
    }
}

#[test]
fn workers_grow_at_once_and_shrink_after_some_time() {
    let mut scaling = ScaleHistory::default();
    let mut text = String::new();
    let mut present = 2;
    let load = |second: u64| if (10..100).contains(&second) { 8 } else { 2 };
    let mut last = String::new();
    for second in 0..200 {
        let decision = scaling.decide(&SETTINGS, &input(second, present, load(second), BottleneckKind::Cpu));
        if decision.wanted != present || second % 25 == 0 {
            let line = format!("{second} s: {present} -> {}: {}\n", decision.wanted, decision.explanation);
            if line != last {
                text += &line;
            }
            last = line;
        }
        present = decision.wanted;
    }
    expect![[r#"
        0 s: 2 -> 2: 2 workers are needed
        10 s: 2 -> 8: the smallest fed fraction is 25 %, and 8 workers would feed all jobs
        25 s: 8 -> 8: 8 workers are needed
        50 s: 8 -> 8: 8 workers are needed
        75 s: 8 -> 8: 8 workers are needed
        100 s: 8 -> 8: 2 workers would be enough; surplus workers will be removed in 30 s unless they are needed before then
        125 s: 8 -> 8: 2 workers would be enough; surplus workers will be removed in 5 s unless they are needed before then
        130 s: 8 -> 2: 2 workers have been enough for 30 s
        150 s: 2 -> 2: 2 workers are needed
        175 s: 2 -> 2: 2 workers are needed
    "#]]
    .assert_eq(&text);
}

#[test]
fn a_slow_consumer_or_store_adds_no_workers() {
    for kind in [BottleneckKind::Consumer, BottleneckKind::Store] {
        let decision = ScaleHistory::default().decide(&SETTINGS, &input(0, 2, 9, kind));
        assert_eq!(decision.wanted, 2, "{}", decision.explanation);
    }
    let decision = ScaleHistory::default().decide(&SETTINGS, &input(0, 2, 9, BottleneckKind::Store));
    expect!["more workers would not help: the bottleneck is the store"].assert_eq(&decision.explanation);
}

#[test]
fn decisions_obey_and_name_the_limits() {
    let mut scaling = ScaleHistory::default();
    assert_eq!(scaling.decide(&SETTINGS, &input(0, 2, 90, BottleneckKind::Cpu)).wanted, 20);
    let full = scaling.decide(&SETTINGS, &input(1, 20, 90, BottleneckKind::Cpu));
    expect!["90 workers would feed all jobs, but the configured maximum is 20"].assert_eq(&full.explanation);
    let least = scaling.decide(&SETTINGS, &input(2, 1, 0, BottleneckKind::Consumer));
    assert_eq!(
        (least.wanted, least.explanation.as_str()),
        (1, "fewer workers would be enough, but the configured minimum is 1")
    );
}

#[test]
fn a_fast_oscillation_of_the_load_changes_nothing() {
    let mut scaling = ScaleHistory::default();
    for second in 0..300 {
        let wanted = if second % 20 < 10 { 8 } else { 3 };
        assert_eq!(scaling.decide(&SETTINGS, &input(second, 8, wanted, BottleneckKind::Cpu)).wanted, 8);
    }
}

#[test]
fn workers_shrink_to_the_largest_number_wanted_recently() {
    let mut scaling = ScaleHistory::default();
    let mut present = 8;
    for second in 0..=30 {
        let wanted = if second == 12 { 5 } else { 2 };
        present = scaling.decide(&SETTINGS, &input(second, present, wanted, BottleneckKind::Cpu)).wanted;
    }
    assert_eq!(present, 5);
}

#[test]
fn the_rate_quotient_is_rounded_up() {
    assert_eq!(rate_quotient(&[1000.0, 500.0], &[200.0, 300.0], 2), 6);
    assert_eq!(rate_quotient(&[1000.0], &[0.0], 2), 2);
}

#[test]
fn the_climber_stops_at_the_load_and_then_rests() {
    // The time per batch falls until the workers match the load.
    let batch_s = |workers: u32, load: u32| 1.0 / f64::from(workers.min(load));
    let (mut climber, mut present) = (HillClimber::default(), 1);
    let mut path = vec![present];
    for step in 0..24 {
        let load = if step < 12 { 5 } else { 2 };
        present = climber.step(present, batch_s(present, load), 0.05);
        path.push(present);
    }
    expect!["[1, 2, 3, 4, 5, 6, 5, 4, 5, 5, 5, 5, 5, 6, 5, 4, 3, 2, 1, 2, 2, 2, 2, 2, 2]"]
        .assert_eq(&format!("{path:?}"));
}
