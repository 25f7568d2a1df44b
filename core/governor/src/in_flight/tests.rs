//! Tests of the control law of the requests in flight.

use super::*;

/// A store with a queue: `served_per_s` requests per second, each of which takes at least `base_s`.
struct Queue {
    served_per_s: f64,
    base_s: f64,
}

impl Queue {
    fn interval(&self, in_flight: f64) -> LatencyInterval {
        let latency_s = self.base_s.max(in_flight / self.served_per_s);
        let finished = in_flight / latency_s;
        LatencyInterval {
            seconds: 1.0,
            finished,
            latency_s: finished * latency_s,
            base_latency_s: finished * self.base_s,
            bytes: finished * 1000.0,
            workers: 4.0,
            is_backlogged: true,
        }
    }

    fn run(&self, law: &mut InFlightLaw, demand: f64, seconds: usize) -> Vec<f64> {
        let second = |_| {
            law.on_interval(&self.interval(law.limit().unwrap_or(demand).min(demand)));
            law.limit().unwrap_or(demand)
        };
        (0..seconds).map(second).collect()
    }
}

#[test]
fn a_queue_is_removed_without_losing_throughput() {
    let queue = Queue { served_per_s: 1000.0, base_s: 0.02 };
    let limits = queue.run(&mut InFlightLaw::default(), 800.0, 60);
    let later = &limits[20..];
    assert!(later.iter().all(|limit| (20.0..=120.0).contains(limit)), "{limits:?}");
}

#[test]
fn requests_without_a_queue_are_not_limited() {
    let queue = Queue { served_per_s: 1e6, base_s: 0.02 };
    let mut law = InFlightLaw::default();
    queue.run(&mut law, 800.0, 60);
    assert_eq!((law.limit(), law.limit_bytes()), (None, None));
}

#[test]
fn a_decrease_that_costs_throughput_is_reverted() {
    // Latencies vary, although the store has no limit.
    let slow = |in_flight: f64| LatencyInterval {
        seconds: 1.0,
        finished: in_flight,
        latency_s: in_flight,
        base_latency_s: in_flight / 20.0,
        bytes: in_flight * 1000.0,
        workers: 1.0,
        is_backlogged: true,
    };
    let mut law = InFlightLaw::default();
    let mut limited_s = 0;
    for _ in 0..300 {
        law.on_interval(&slow(law.limit().unwrap_or(100.0).min(100.0)));
        limited_s += usize::from(law.limit().is_some());
    }
    assert!(limited_s <= 20, "limited for {limited_s} s of 300 s");
}

#[test]
fn more_bandwidth_is_found() {
    let mut law = InFlightLaw::default();
    Queue { served_per_s: 1000.0, base_s: 0.02 }.run(&mut law, 800.0, 60);
    let limits = Queue { served_per_s: 1e5, base_s: 0.02 }.run(&mut law, 800.0, 30);
    assert!(limits[29] > 600.0, "{limits:?}");
}

#[test]
fn a_limit_that_is_not_used_does_not_grow() {
    let queue = Queue { served_per_s: 1000.0, base_s: 0.02 };
    let mut law = InFlightLaw::default();
    queue.run(&mut law, 800.0, 20);
    let before = law.limit().expect("the queue is removed");
    // Two workers remain, whose latencies contain the queue from the start. Other bounds limit their requests.
    let few = Queue { base_s: 0.06, ..queue };
    for _ in 0..120 {
        law.on_interval(&LatencyInterval { workers: 2.0, ..few.interval(0.2 * before) });
    }
    assert_eq!(law.limit(), Some(before));
}

#[test]
fn a_limit_of_which_workers_with_large_requests_use_a_third_grows() {
    let mut law = InFlightLaw::default();
    Queue { served_per_s: 1000.0, base_s: 0.02 }.run(&mut law, 800.0, 60);
    let before = law.limit().expect("the queue is removed");
    let faster = Queue { served_per_s: 1e5, base_s: 0.02 };
    for _ in 0..30 {
        law.on_interval(&faster.interval(0.34 * law.limit().expect("a limit")));
    }
    assert!(law.limit().is_some_and(|limit| limit > 8.0 * before), "{before} {law:?}");
}
