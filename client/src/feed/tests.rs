//! The table of metrics; what the feed does is tested through the consumer.

#[test]
fn every_metric_has_a_name_of_its_own_and_a_text() {
    let names: std::collections::BTreeSet<_> = crate::METRICS.iter().map(|metric| metric.name).collect();
    assert_eq!(names.len(), crate::METRICS.len());
    assert!(crate::METRICS.iter().all(|metric| metric.name.starts_with("feedline_client_")));
    assert!(crate::METRICS.iter().all(|metric| !metric.text.is_empty()));
}
