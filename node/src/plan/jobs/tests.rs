//! Tests of building the planner's problem from traces and a cluster file.

use feedline_data::pipeline::CacheTier;

use super::super::cluster_file::tests::parsed;
use super::*;
use crate::trace_file::tests::{trace, trace_of};

#[test]
fn cpu_times_are_scaled_to_faster_cores() {
    let problem = build_problem(&parsed(""), &[trace("a", 1.0)], "c.yaml").unwrap();
    problem.check().unwrap();
    let job = &problem.jobs[0];
    assert_eq!((job.id, job.name.as_str(), job.weight), (JobId(1), "a", 1.0));
    assert_eq!(job.operators[1].cpu_s, [1e-3, 0.5e-3]);
    assert_eq!(job.cache_points.len(), 2);
    assert_eq!(job.demand_rows_per_s, None);
}

#[test]
fn the_cluster_file_takes_precedence_over_a_trace() {
    let jobs = "jobs: { a: { demand_rows_per_s: 70, weight: 3, cache: { after: burn, tier: disk } }, b: { cache: never } }";
    let problem = build_problem(&parsed(jobs), &[trace("a", 1.0), trace("b", 1.0)], "c.yaml").unwrap();
    let [a, b] = problem.jobs.as_slice() else { panic!("two jobs") };
    assert_eq!((a.demand_rows_per_s, a.weight), (Some(70.0), 3.0));
    assert_eq!(a.cache, CachePolicy::Pinned { point: 1, tier: CacheTier::Disk });
    assert_eq!(b.cache, CachePolicy::Never);
}

#[test]
fn a_job_has_the_quota_and_the_priority_of_its_tenant() {
    let file = "tenants: { text: {}, vision: { cores: 2, priority: 3 } }\njobs: { a: { tenant: vision, weight: 2 } }";
    let problem = build_problem(&parsed(file), &[trace("a", 1.0), trace("b", 1.0)], "c.yaml").unwrap();
    problem.check().unwrap();
    let [a, b] = problem.jobs.as_slice() else { panic!("two jobs") };
    assert_eq!((a.tenant, a.weight), (Some(1), 6.0));
    assert_eq!((b.tenant, b.weight), (None, 1.0));
}

#[test]
fn the_locality_comes_from_the_pipeline_or_the_cluster_file() {
    let traces = [trace("a", 1.0), trace_of("s3://bucket/data/", "b", 1.0)];
    let localities = |suffix: &str| {
        let problem = build_problem(&parsed(suffix), &traces, "c.yaml").unwrap();
        problem.check().unwrap();
        problem
            .jobs
            .iter()
            .map(|job| (job.locality.store_is_local, job.locality.consumers_share))
            .collect::<Vec<_>>()
    };
    assert_eq!(localities(""), [(true, 0.0), (false, 0.0)], "from the pipelines' URLs");
    let jobs = "jobs: { a: { store_is_local: false }, b: { store_is_local: true, consumers_share: 0.5 } }";
    assert_eq!(localities(jobs), [(false, 0.0), (true, 0.5)], "from the cluster file");
}

#[test]
fn contradicting_names_are_rejected() {
    let error_of =
        |suffix: &str, traces: &[SavedTrace]| build_problem(&parsed(suffix), traces, "c.yaml").unwrap_err();
    assert_eq!(
        error_of("", &[trace("a", 1.0), trace("a", 2.0)]),
        "two jobs have the name `a`: give each pipeline a different name"
    );
    assert_eq!(
        error_of("jobs: { c: {} }", &[trace("a", 1.0), trace("b", 2.0)]),
        "c.yaml: jobs.c does not name a planned job (`a`, `b`): correct or remove it"
    );
    assert_eq!(
        error_of("jobs: { a: { cache: { after: crop, tier: memory } } }", &[trace("a", 1.0)]),
        "c.yaml: jobs.a.cache.operator_index: rows cannot be cached after `crop`; possible operators: `source`, `burn`"
    );
}

#[test]
fn the_example_file_is_valid() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/cluster.yaml");
    let cluster = ClusterFile::load(&path).unwrap();
    let problem = build_problem(&cluster, &[trace("a", 1.0)], "c.yaml").unwrap();
    assert_eq!(problem.check(), Ok(()));
    assert_eq!(problem.worker_counts(), [4, 0]);
}
