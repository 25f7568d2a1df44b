//! Tests of the page `/metrics`, and of the names of all metrics.

use std::collections::BTreeSet;

use feedline_common::metric_table::{ABSENT, describe_metrics, start_counters};
use metrics::{Unit, counter, gauge, histogram, with_local_recorder};
use metrics_exporter_prometheus::PrometheusBuilder;

use super::*;

/// Returns the page after `record` has recorded metrics.
fn page(record: impl FnOnce()) -> String {
    let recorder = PrometheusBuilder::new().build_recorder();
    with_local_recorder(&recorder, || {
        tables().into_iter().for_each(describe_metrics);
        record();
    });
    render(&recorder.handle(), &[])
}

fn job_series(name: &'static str, job: &str, operator: Option<&str>, value: f64) -> JobSeries {
    let labels =
        [("tenant", "vision"), ("job_name", job)].into_iter().chain(operator.map(|one| ("operator", one)));
    JobSeries { name, labels: labels.map(|(label, text)| (label, text.to_owned())).collect(), value }
}

#[test]
fn the_series_of_jobs_follow_the_other_metrics() {
    const CONSUMERS: &str = "feedline_coordinator_job_consumers";
    const BUSY: &str = "feedline_coordinator_job_operator_busy";
    let recorder = PrometheusBuilder::new().build_recorder();
    with_local_recorder(&recorder, || gauge!("feedline_client_buffered_bytes").set(7.0));
    let jobs = [
        job_series(CONSUMERS, "resnet", None, 8.0),
        job_series(CONSUMERS, "a \"b\"\\\nc", None, 0.5),
        job_series(BUSY, "resnet", Some("decode_image"), 1.5),
    ];
    let expected = r#"# TYPE feedline_client_buffered_bytes gauge
feedline_client_buffered_bytes 7

# HELP feedline_coordinator_job_consumers Consumers of a running job; only on the leader
# TYPE feedline_coordinator_job_consumers gauge
feedline_coordinator_job_consumers{tenant="vision",job_name="resnet"} 8
feedline_coordinator_job_consumers{tenant="vision",job_name="a \"b\"\\\nc"} 0.5

# HELP feedline_coordinator_job_operator_busy Mean number of concurrent executions of an `operator` of a job; only on the leader
# TYPE feedline_coordinator_job_operator_busy gauge
feedline_coordinator_job_operator_busy{tenant="vision",job_name="resnet",operator="decode_image"} 1.5

"#;
    assert_eq!(render(&recorder.handle(), &jobs), expected);
    assert!(!render(&recorder.handle(), &[]).contains("_job_"), "the jobs have ended");
}

#[test]
fn every_counter_starts_at_zero() {
    let started = page(|| tables().into_iter().for_each(start_counters));
    for metric in tables().into_iter().flatten().filter(|metric| metric.kind == MetricKind::Counter) {
        let name = metric.name;
        let series: Vec<String> = match metric.label {
            None => vec![name.to_owned()],
            Some(label) => {
                label.values.iter().map(|value| format!("{name}{{{}=\"{value}\"}}", label.name)).collect()
            }
        };
        for series in series {
            assert!(started.contains(&format!("\n{series} 0\n")), "{series} is missing in {started}");
        }
    }
}

#[test]
fn a_gauge_without_a_value_is_not_exported() {
    let wanted = || gauge!("feedline_coordinator_wanted_workers");
    let jobs = |tenant: &'static str| gauge!("feedline_coordinator_tenant_jobs", "tenant" => tenant);
    let leads = page(|| {
        wanted().set(3.0);
        jobs("vision").set(2.0);
        jobs("text").set(1.0);
    });
    assert!(leads.contains("\nfeedline_coordinator_wanted_workers 3\n"), "{leads}");
    let lost = page(|| {
        wanted().set(3.0);
        jobs("vision").set(2.0);
        jobs("text").set(1.0);
        wanted().set(ABSENT);
        jobs("text").set(ABSENT);
        counter!("feedline_coordinator_records_total").increment(5);
    });
    assert!(!lost.contains("wanted_workers") && !lost.contains("text") && !lost.contains("NaN"), "{lost}");
    assert!(lost.contains("\nfeedline_coordinator_tenant_jobs{tenant=\"vision\"} 2\n"), "{lost}");
    assert!(lost.contains("\nfeedline_coordinator_records_total 5\n"), "{lost}");
    let regained = page(|| {
        wanted().set(ABSENT);
        wanted().set(4.0);
    });
    assert!(regained.contains("\nfeedline_coordinator_wanted_workers 4\n"), "{regained}");
}

#[test]
fn counters_with_fractions_are_exported_as_counters() {
    let page = page(|| {
        gauge!("feedline_client_stall_seconds_total").increment(0.25);
        gauge!("feedline_client_stall_seconds_total").increment(1.5);
        gauge!("feedline_client_buffered_bytes").set(7.0);
        histogram!("feedline_coordinator_plan_seconds").record(0.5);
    });
    let expected =
        "# TYPE feedline_client_stall_seconds_total counter\nfeedline_client_stall_seconds_total 1.75\n";
    assert!(page.contains(expected), "{page}");
    assert!(page.contains("# TYPE feedline_client_buffered_bytes gauge\n"), "{page}");
    assert!(page.contains("feedline_coordinator_plan_seconds_count 1\n"), "{page}");
}

/// The rules of `promtool check metrics`.
#[test]
fn metric_names_follow_the_rules_of_prometheus() {
    /// Parts of names that abbreviate a unit, or that are not base units.
    const UNITS: [&str; 24] = [
        "s",
        "ms",
        "us",
        "ns",
        "sec",
        "b",
        "kb",
        "mb",
        "gb",
        "tb",
        "pb",
        "m",
        "h",
        "d",
        "milliseconds",
        "microseconds",
        "nanoseconds",
        "minutes",
        "hours",
        "days",
        "weeks",
        "bits",
        "kilobytes",
        "percent",
    ];
    let mut names = BTreeSet::new();
    for metric in tables().into_iter().flatten() {
        let name = metric.name;
        assert!(names.insert(name), "two metrics are named {name}");
        assert!(!metric.help.trim().is_empty(), "{name} has no help text");
        let is_plain = |letter: char| letter.is_ascii_lowercase() || letter == '_';
        assert!(name.starts_with("feedline_") && name.chars().all(is_plain), "{name}");
        let is_counter = metric.kind == MetricKind::Counter;
        assert_eq!(
            name.ends_with("_total"),
            is_counter,
            "{name}: counters, and only counters, end with _total"
        );
        let stem = name.strip_suffix("_total").unwrap_or(name);
        for reserved in ["_count", "_sum", "_bucket", "_counter", "_gauge", "_histogram", "_summary"] {
            assert!(!stem.ends_with(reserved), "{name} ends with {reserved}");
        }
        let unit = stem.split('_').find(|part| UNITS.contains(part));
        assert_eq!(unit, None, "{name}: use base units, such as seconds and bytes");
        let suffix = match metric.unit {
            Unit::Seconds => Some("_seconds"),
            Unit::Bytes => Some("_bytes"),
            _ => None,
        };
        let has_unit = ["_seconds", "_bytes"].into_iter().find(|unit| stem.ends_with(unit));
        assert_eq!(has_unit, suffix, "{name} names another unit than its description");
        let is_histogram = metric.kind == MetricKind::Histogram;
        assert!(
            !is_histogram || suffix == Some("_seconds"),
            "{name}: all histograms have buckets of seconds"
        );
    }
}
