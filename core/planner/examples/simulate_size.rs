//! Measures the load of a coordinator at several cluster sizes: `cargo run --release -p feedline-planner --example
//! simulate_size` prints one line of JSON per size. The arguments are numbers of workers. A cluster has one job per ten
//! workers and one consumer per two workers. With `--seconds`, the example also prints one line per second to standard
//! error.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use feedline_planner::simulate::{Meter, Phase, ScalingRule, Scenario, Simulation};

/// Simulated seconds of the warm-up.
const WARM_UP_S: u32 = 20;
const MEASURED_S: u32 = 20;

/// Measures the wall time of each phase.
#[derive(Default)]
struct Clock {
    begun: Option<Instant>,
    spent: BTreeMap<Phase, Duration>,
}

impl Meter for Clock {
    fn begin(&mut self, _: Phase) {
        self.begun = Some(Instant::now());
    }

    fn end(&mut self, phase: Phase) {
        let begun = self.begun.take().expect("a phase begins before it ends");
        *self.spent.entry(phase).or_default() += begun.elapsed();
    }
}

impl Clock {
    fn seconds(&self, phase: Phase) -> f64 {
        self.spent.get(&phase).copied().unwrap_or_default().as_secs_f64()
    }
}

fn main() {
    let given: Vec<u32> = std::env::args().skip(1).filter_map(|size| size.parse().ok()).collect();
    let sizes = if given.is_empty() { vec![100, 1_000, 10_000] } else { given };
    for workers in sizes {
        println!("{}", measure(workers));
    }
}

fn measure(workers: u32) -> String {
    let scenario = Scenario::of_size(workers, WARM_UP_S + MEASURED_S);
    let mut simulation = Simulation::new(&scenario, ScalingRule::None).expect("the scenario is valid");
    let mut clock = Clock::default();
    while simulation.now() < 1_000 * u64::from(WARM_UP_S) {
        simulation.tick(&mut clock);
    }
    let opening_s = clock.seconds(Phase::Inputs);
    clock.spent.clear();
    let begun = simulation.report_count();
    while !simulation.is_over() {
        simulation.tick(&mut clock);
    }
    let inputs = simulation.report_count() - begun;
    let report = simulation.finish();
    if std::env::args().any(|argument| argument == "--seconds") {
        for second in &report.seconds {
            eprintln!("{second:?}");
        }
    }
    let per_second = |phase| clock.seconds(phase) / f64::from(MEASURED_S);
    format!(
        "{{\"workers\":{workers},\"jobs\":{},\"consumers\":{},\"observe_s\":{:.4},\"solve_s\":{:.4},\"replan_s\":{:.4},\"inputs_cpu_s_per_s\":{:.4},\"inputs_per_s\":{},\"opening_inputs_s\":{opening_s:.2},\"world_cpu_s_per_s\":{:.3},\"mean_fed\":{:.4},\"audit_is_clean\":{},\"peak_rss_mib\":{}}}",
        (workers / 10).max(1),
        report.audit.streams,
        per_second(Phase::Observe),
        per_second(Phase::Solve),
        per_second(Phase::Observe) + per_second(Phase::Solve),
        per_second(Phase::Inputs),
        inputs / u64::from(MEASURED_S),
        per_second(Phase::World),
        report.mean_fed,
        report.audit.is_clean(),
        peak_rss_mib()
    )
}

/// Returns the peak resident memory of this process. The peak never decreases, so measure sizes in ascending order.
fn peak_rss_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) / 1024
}
