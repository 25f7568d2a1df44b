//! Counters with extreme values.

use std::sync::Arc;

use feedline_data::ids::SessionId;
use feedline_data::messages::{ConsumerStats, EncodingStats, OperatorStats, ProcessCpu, StoreStats};
use feedline_data::pipeline::CacheEncoding;
use proptest::prelude::*;

use super::super::*;
use super::{JOB, samples};
use crate::view::cluster_view;

/// Reports of two workers, and of two sessions of one consumer, for two jobs. All counters repeat the given ones.
fn reported(counts: &[u64]) -> Samples {
    let mut counts = counts.iter().copied().cycle();
    let mut next = || counts.next().expect("the list has at least one counter");
    let mut seen = samples(1, &[JOB, JobId(8)]);
    let other = WorkerReportSample { worker: WorkerId(2), ..seen.workers[0].clone() };
    seen.workers.push(other);
    for worker in &mut seen.workers {
        (worker.memory_bytes, worker.nic_bytes_per_s) = (next(), next());
        for stats in worker.jobs.iter_mut().map(Arc::make_mut) {
            (stats.elapsed_ns, stats.memory_wait_ns, stats.peak_rss_bytes) = (next(), next(), next());
            stats.cpu = ProcessCpu { process_ns: next(), transport_ns: next() };
            stats.store = StoreStats {
                requests: next(),
                bytes: next(),
                wait_ns: next(),
                distinct_shards: next(),
                distinct_shard_bytes: next(),
            };
            for operator in &mut stats.operators {
                *operator = OperatorStats {
                    name: operator.name.clone(),
                    rows_in: next(),
                    rows_out: next(),
                    bytes_in: next(),
                    bytes_out: next(),
                    cpu_ns: next(),
                    busy_ns: next(),
                    wait_input_ns: next(),
                    wait_output_ns: next(),
                    latency_ns: next(),
                    queue_bytes: next(),
                    parallelism: None,
                };
            }
            stats.encodings = vec![EncodingStats {
                operators_before: 1,
                encoding: CacheEncoding::Pixels,
                rows: next(),
                plain_bytes: next(),
                encoded_bytes: next(),
                encode_ns: next(),
                plain_ns: next(),
                encoded_ns: next(),
            }];
        }
    }
    let later =
        seen.consumers.iter().map(|one| ConsumerReportSample { session: SessionId(2), ..one.clone() });
    let later: Vec<ConsumerReportSample> = later.collect();
    seen.consumers.extend(later);
    for session in &mut seen.consumers {
        session.stats = ConsumerStats {
            rows: next(),
            batches: next(),
            bytes: next(),
            stall_ns: next(),
            step_ns: next(),
            copy_ns: next(),
            network_bytes: next(),
            skipped_rows: next(),
            newest_ms: next(),
        };
    }
    seen
}

#[test]
fn sums_saturate_at_the_largest_number() {
    let mut observer = Observer::default();
    observer.push(1_000, &reported(&[0]));
    observer.push(2_000, &reported(&[u64::MAX]));
    let seen = observer.observation(JOB).unwrap();
    let of_workers: Vec<_> = seen.recent.iter().map(|one| (one.process_cpu_ns, one.held_bytes)).collect();
    assert_eq!(of_workers, [(u64::MAX, u64::MAX); 2]);
    let [consumer] = seen.consumers.as_slice() else { panic!("one consumer: {:?}", seen.consumers) };
    assert_eq!(
        (consumer.stats.rows, consumer.stats.bytes, consumer.elapsed_ns),
        (u64::MAX, u64::MAX, u64::MAX)
    );
    let view = cluster_view(2_000, &reported(&[u64::MAX]), &observer, None, &BTreeMap::new());
    assert!(view.workers.iter().all(|worker| worker.finished_bytes == u64::MAX), "{:?}", view.workers);
    assert_eq!(view.jobs[0].stall_share, Some(1.0));
}

/// A counter of a malicious reporter, often an extreme value.
fn any_count() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(1), Just(u64::MAX - 1), Just(u64::MAX), any::<u64>()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn any_reported_counters_can_be_summed(
        reports in proptest::collection::vec(proptest::collection::vec(any_count(), 1..120), 1..6),
    ) {
        let mut observer = Observer::with_workers_per_process(2);
        for (second, counts) in (1..).zip(&reports) {
            let samples = reported(counts);
            observer.push(1_000 * second, &samples);
            for job in [JOB, JobId(8)] {
                observer.bottleneck(job);
                observer.problem_without_cache(job, &[]);
            }
            observer.problem(PlannerSettings::default(), CachePolicy::Never);
            let view = cluster_view(1_000 * second, &samples, &observer, None, &BTreeMap::new());
            for worker in &view.workers {
                prop_assert!(worker.job_usage.iter().all(|part| part.finished_bytes <= worker.finished_bytes));
            }
            for worker in view.for_tenant("").workers {
                prop_assert!(worker.job_usage.iter().all(|part| part.finished_bytes <= worker.finished_bytes));
            }
        }
    }
}
