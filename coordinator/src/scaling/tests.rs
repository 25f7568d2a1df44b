//! Tests of the calls of a scaler.

use std::sync::Mutex;

use feedline_data::view::BottleneckKind;

use super::*;
use crate::metrics::tests::GaugeRecorder;

/// A scaler that records its calls and starts workers immediately, or fails.
#[derive(Debug, Default)]
struct Remembering {
    state: Mutex<(u32, Vec<u32>)>,
    refuses: bool,
}

#[async_trait]
impl Scaler for Remembering {
    fn present(&self) -> u32 {
        self.state.lock().unwrap().0
    }

    async fn scale(&self, wanted: u32) -> Result<(), String> {
        let mut state = self.state.lock().unwrap();
        state.1.push(wanted);
        if self.refuses {
            return Err("no room".to_owned());
        }
        state.0 = wanted;
        Ok(())
    }
}

async fn asked(refuses: bool, steps: &[(Millis, ResourceNeeds)]) -> Vec<u32> {
    let scaler = Arc::new(Remembering { refuses, ..Remembering::default() });
    let settings = ScaleSettings { min_workers: 1, max_workers: 8, shrink_after_ms: 30_000 };
    let mut scaled = ScalingPolicy::new(settings, Arc::<Remembering>::clone(&scaler));
    for (now, needs) in steps {
        scaled.update(*now, *needs).await;
    }
    let state = scaler.state.lock().unwrap();
    state.1.clone()
}

fn wants(wanted: u32) -> ResourceNeeds {
    ResourceNeeds {
        is_known: true,
        wanted_workers: wanted,
        fed_fraction: 0.5,
        bottleneck: Some(BottleneckKind::Cpu),
    }
}

#[tokio::test]
async fn workers_start_immediately_and_stop_after_a_while() {
    let idle = ResourceNeeds { fed_fraction: 1.0, ..wants(0) };
    let steps = [(0, idle), (1_000, wants(5)), (2_000, idle), (31_000, idle), (32_000, idle), (33_000, idle)];
    assert_eq!(asked(false, &steps).await, [1, 5, 1], "the least, what is needed, the least again");
}

#[tokio::test]
async fn workers_stay_for_a_job_without_measurements() {
    let unknown = ResourceNeeds::default();
    let steps: Vec<(Millis, ResourceNeeds)> =
        [(0, wants(3))].into_iter().chain((1..100).map(|second| (1_000 * second, unknown))).collect();
    assert_eq!(asked(false, &steps).await, [3]);
}

#[tokio::test]
async fn a_failed_call_of_the_scaler_is_repeated() {
    assert_eq!(asked(true, &[(0, wants(2)), (1_000, wants(2))]).await, [2, 2]);
}

#[tokio::test]
async fn a_new_term_forgets_the_surplus_of_an_earlier_term() {
    let recorder = GaugeRecorder::default();
    let _local = metrics::set_default_local_recorder(&recorder);
    let scaler = Arc::new(Remembering::default());
    let settings = ScaleSettings { min_workers: 1, max_workers: 8, shrink_after_ms: 30_000 };
    let mut scaled = ScalingPolicy::new(settings, Arc::<Remembering>::clone(&scaler));
    let idle = ResourceNeeds { fed_fraction: 1.0, ..wants(0) };
    scaled.update(0, wants(5)).await;
    scaled.update(1_000, idle).await;
    assert_eq!(recorder.exported(), [format!("{SCALED_WORKERS} 5")]);
    scaled.reset();
    assert!(recorder.exported().is_empty() && scaled.last_decision().is_none());
    for now in [40_000, 69_000] {
        scaled.update(now, idle).await;
    }
    assert_eq!(scaler.state.lock().unwrap().1, [5], "the surplus began at 40 s");
    scaled.update(70_000, idle).await;
    assert_eq!(scaler.state.lock().unwrap().1, [5, 1]);
}
