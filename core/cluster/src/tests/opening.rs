//! Tests of opening, joining, rejecting and cancelling jobs.

use expect_test::expect;
use feedline_data::checkpoint::{OpenRange, POSITION_VERSION, Position};
use feedline_data::manifest::{TopicRange, TopicRanges};
use feedline_data::pipeline::{
    FilterFunction, Function, FunctionEnvironment, OperatorKind, PipelineId, Repeat,
};
use feedline_data::tenants::{Quota, TenantReads, Tenants};
use feedline_data::urls::UrlPolicy;

use super::*;

#[test]
fn a_client_joins_with_the_same_spec_and_is_rejected_with_another() {
    let mut bench = Bench::new();
    let job = bench.open(&spec(4, 1)).expect("a valid job");
    assert_eq!(bench.open(&spec(4, 1)), Ok(job));
    assert_eq!(bench.records.len(), 1, "joining adds no record");
    let refusal = bench.open(&spec(5, 1)).expect_err("other settings");
    assert_eq!(refusal.kind, ServiceErrorKind::Invalid);
    expect!["job `run` is running with different settings; join it with the same pipeline, epochs and consumers, or choose another job name"]
        .assert_eq(&refusal.message);
}

#[test]
fn ranks_with_different_pickles_of_one_function_share_a_job() {
    let mut bench = Bench::new();
    let with = |code: &str, version: Option<&str>| {
        let mut spec = spec(4, 1);
        let function = Function {
            code: Some(code.to_owned()),
            version: version.map(str::to_owned),
            environment: Some(FunctionEnvironment { python: Some("3.11".to_owned()), ..Default::default() }),
            ..Function::new("m:f")
        };
        spec.pipeline.operators.insert(0, OperatorKind::FilterFunction(FilterFunction(function)).into());
        spec
    };
    let job = bench.open(&with("AAAA", Some("1"))).expect("a valid job");
    assert_eq!(bench.open(&with("BBBB", Some("1"))), Ok(job));
    assert!(bench.open(&with("AAAA", Some("2"))).is_err() && bench.open(&with("AAAA", None)).is_err());
    let opened = bench.cluster.jobs[&job].spec.pipeline.operators[0].kind.function().expect("a function");
    assert_eq!(opened.code.as_deref(), Some("AAAA"), "the pickle of the client that opened the job");
}

#[test]
fn each_tenant_has_its_own_job_names() {
    let mut bench = Bench::new();
    let of = |tenant: &str, batch| JobSpec { tenant: tenant.to_owned(), ..spec(batch, 1) };
    let [a, b] =
        [bench.open(&of("a", 4)), bench.open(&of("b", 5))].map(|opened| opened.expect("a valid job"));
    assert_ne!(a, b);
    assert_eq!((bench.open(&of("a", 4)), bench.open(&of("b", 5))), (Ok(a), Ok(b)));
    assert!(bench.open(&of("a", 5)).is_err(), "another spec within the tenant");
    assert_eq!(bench.status(b).tenant, "b");
    let refused = bench.open(&of("a b", 4)).expect_err("no name");
    expect!["invalid tenant name `a b`: use at most 64 letters, digits, `.`, `_` and `-`"]
        .assert_eq(&refused.message);
}

#[test]
fn a_tenant_has_at_most_the_jobs_of_its_quota() {
    let few = Quota { jobs: Some(2), ..Quota::default() };
    let tenants = Tenants { tenants: [("a".to_owned(), few)].into(), ..Tenants::default() };
    let mut bench = Bench::new();
    bench.cluster = Cluster::new(ClusterSettings { tenants, ..ClusterSettings::default() }, INCARNATION);
    let of =
        |tenant: &str, name: &str| JobSpec { tenant: tenant.to_owned(), name: name.to_owned(), ..spec(4, 1) };
    let first = bench.open(&of("a", "1")).expect("below the quota");
    bench.open(&of("a", "2")).expect("below the quota");
    let decided = bench.records.len();
    let refusal = bench.open(&of("a", "3")).expect_err("at the quota");
    assert_eq!((refusal.kind, refusal.retry_after_ms), (ServiceErrorKind::Busy, Some(5_000)));
    expect!["quota exceeded: tenant `a` may have at most 2 jobs; retry after a job has ended, cancel a job with `feedline job cancel ID`, or raise the quota"]
        .assert_eq(&refusal.message);
    assert_eq!(bench.records.len(), decided, "a rejection adds no record");
    assert_eq!(bench.open(&of("a", "1")), Ok(first), "the quota does not apply to joining");
    bench.open(&of("b", "3")).expect("another tenant");
    bench.ask(|request| Input::CancelJob { request, job: first });
    bench.open(&of("a", "3")).expect("one has ended");
}

#[test]
fn a_tenant_opens_only_jobs_with_sources_that_it_may_read() {
    let elsewhere = TenantReads { urls: UrlPolicy::new(["/elsewhere"]).expect("a path"), credentials: None };
    let tenants = Tenants { reads: [("a".to_owned(), elsewhere)].into(), ..Tenants::default() };
    let mut bench = Bench::new();
    bench.cluster = Cluster::new(ClusterSettings { tenants, ..ClusterSettings::default() }, INCARNATION);
    let of = |tenant: &str| JobSpec { tenant: tenant.to_owned(), ..spec(4, 1) };
    let refusal = bench.open(&of("a")).expect_err("a source outside of the policy");
    assert_eq!(refusal.kind, ServiceErrorKind::Invalid);
    assert!(
        refusal.message.contains("is outside the URLs that tenant `a` may read (/elsewhere)"),
        "{refusal}"
    );
    assert_eq!(bench.records.len(), 0, "a rejection adds no record");
    bench.open(&of("b")).expect("a tenant without a policy");
}

#[test]
fn workers_receive_the_read_policy_of_the_tenant() {
    let own = TenantReads { credentials: Some(vec!["own".to_owned()]), ..TenantReads::default() };
    let tenants = Tenants { reads: [("a".to_owned(), own.clone())].into(), ..Tenants::default() };
    let mut bench = Bench::new();
    bench.cluster = Cluster::new(ClusterSettings { tenants, ..ClusterSettings::default() }, INCARNATION);
    let rows = Arc::new(manifest(&[8]));
    let spec = JobSpec { tenant: "a".to_owned(), ..spec(4, 1) };
    let job = bench.open_with(&spec, Some(Arc::clone(&rows))).expect("a valid job");
    let plan = bench.worker(report(1)).expect("there is a task");
    assert_eq!(plan.tasks[0].reads, own);
    bench.worker(WorkerReport { tasks: vec![listed(plan.tasks[0].id, &rows)], ..report(1) });
    match bench.ask(|request| Input::JobDetails { request, job }) {
        Some(Reply::Details(details)) => assert_eq!(details.reads, own),
        other => panic!("not known: {other:?}"),
    }
}

#[test]
fn a_job_without_a_tenant_has_the_record_of_earlier_releases() {
    let mut bench = Bench::new();
    bench.open(&spec(4, 1)).expect("a valid job");
    let without = bench.text_since(0);
    assert!(!without.contains("tenant"), "{without}");
    bench.open(&JobSpec { tenant: "a".to_owned(), ..spec(4, 1) }).expect("a valid job");
    let record = |line: &str| serde_json::from_str::<Record>(line).expect("a record");
    let restored = Cluster::restore(
        ClusterSettings::default(),
        INCARNATION + 1,
        0,
        bench.text_since(0).lines().map(record),
    );
    assert_eq!(restored.snapshot(), bench.cluster.snapshot());
    let tenants = restored.jobs.values().map(|job| job.spec.tenant.as_str());
    assert_eq!(tenants.collect::<Vec<_>>(), ["", "a"]);
}

#[test]
fn the_name_of_an_ended_job_is_free() {
    let mut bench = Bench::new();
    let job = bench.open(&spec(4, 1)).expect("a valid job");
    assert_eq!(bench.ask(|request| Input::CancelJob { request, job }), Some(Reply::Cancelled));
    assert_eq!(bench.status(job).state, JobState::Cancelled);
    assert_ne!(bench.open(&spec(5, 1)), Ok(job));
    assert_eq!(bench.ask(|request| Input::CancelJob { request, job }), Some(Reply::Cancelled), "again");
}

#[test]
fn invalid_specs_are_rejected_with_a_remedy() {
    let refuse = |change: fn(&mut JobSpec)| {
        let mut bench = Bench::new();
        let mut spec = spec(4, 2);
        change(&mut spec);
        let refusal = bench.open(&spec).expect_err("an invalid job");
        assert!(bench.records.is_empty());
        refusal.message + "\n"
    };
    let text = [
        refuse(|spec| spec.name.clear()),
        refuse(|spec| spec.epochs = 0),
        refuse(|spec| spec.consumers = 0),
        refuse(|spec| spec.virtual_consumers = 1),
        refuse(|spec| spec.name = "n".repeat(257)),
        refuse(|spec| spec.virtual_consumers = 65_537),
        refuse(|spec| {
            spec.epochs = u32::MAX;
            let repeat = OperatorKind::Repeat(Repeat { count: 2 });
            spec.pipeline.operators.insert(0, repeat.into());
        }),
        refuse(|spec| spec.pipeline.operators.clear()),
    ];
    expect![[r#"
        the job name is empty; set a name
        invalid number of epochs: 0; set epochs to at least 1
        invalid number of consumers: 0; set consumers to at least 1
        2 consumers cannot share 1 virtual consumers: each consumer needs at least one; set virtual_consumers to at least 2
        the job name is 257 bytes long; the limit is 256 bytes
        too many virtual consumers: 65537; use at most 65536
        too many passes: 4294967295 epochs of 2 passes; use fewer epochs or a smaller repeat count
    "#]]
    .assert_eq(&text[..7].concat());
    assert!(text[7].contains("batch"), "{}", text[7]);
}

#[test]
fn unknown_jobs_and_consumers_are_rejected() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 8);
    let kind = |reply| match reply {
        Some(Reply::Rejected(refusal)) => refusal.kind,
        other => panic!("not refused: {other:?}"),
    };
    let none = JobId(77);
    assert_eq!(
        kind(bench.ask(|request| Input::CancelJob { request, job: none })),
        ServiceErrorKind::NotFound
    );
    assert_eq!(
        kind(bench.ask(|request| Input::JobDetails { request, job: none })),
        ServiceErrorKind::NotFound
    );
    assert_eq!(
        kind(bench.ask(|request| Input::JobStatus { request, job: Some(none) })),
        ServiceErrorKind::NotFound
    );
    let report = consumer_report(none, 0);
    assert_eq!(kind(bench.ask(|request| Input::Consumer { request, report })), ServiceErrorKind::NotFound);
    let report = consumer_report(job, 1);
    assert_eq!(kind(bench.ask(|request| Input::Consumer { request, report })), ServiceErrorKind::Invalid);
}

#[test]
fn a_newer_session_supersedes_the_older_one() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 64);
    let plan = bench.consumer(consumer_report(job, 0)).expect("a first plan comes at once");
    let held = bench.consumer(ConsumerReport { plan_revision: plan.revision, ..consumer_report(job, 0) });
    assert_eq!(held, None, "the plan has not changed");
    let waiting = bench.request;
    assert!(bench.consumer(ConsumerReport { session: SessionId(2), ..consumer_report(job, 0) }).is_some());
    let superseded = |reply: Option<&Reply>| matches!(reply, Some(Reply::Rejected(refusal)) if refusal.kind == ServiceErrorKind::Superseded);
    assert!(superseded(bench.answered.get(&waiting)));
    let report = consumer_report(job, 0);
    assert!(superseded(bench.ask(|request| Input::Consumer { request, report }).as_ref()));
}

/// Requests may overtake each other, so the consumer may wait for either reply.
#[test]
fn a_second_poll_of_a_session_answers_the_first_with_a_plan() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 64);
    let plan = bench.consumer(consumer_report(job, 0)).expect("a first plan comes at once");
    let again = ConsumerReport { plan_revision: plan.revision, ..consumer_report(job, 0) };
    assert_eq!(bench.consumer(again.clone()), None);
    let waiting = bench.request;
    assert_eq!(bench.consumer(again), None);
    assert_eq!(bench.answered.get(&waiting), Some(&Reply::Consumer(plan)));
}

#[test]
fn a_failed_consumer_ends_the_job() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 64);
    let failed = Some("row 3 is corrupt".to_owned());
    let plan = bench
        .consumer(ConsumerReport { batch_error: failed, ..consumer_report(job, 0) })
        .expect("an immediate plan");
    assert_eq!(plan.state, JobState::Failed("row 3 is corrupt".to_owned()));
}

#[test]
fn a_coordinator_without_its_log_does_not_reuse_job_ids() {
    let incarnation = |nanoseconds: u64| {
        let mut bench = Bench::new();
        bench.cluster = Cluster::new(ClusterSettings::default(), nanoseconds);
        bench.open(&spec(4, 1)).expect("a valid job")
    };
    let first = 1_700_000_000_000_000_000;
    assert!(incarnation(first) < incarnation(first + 1_000_000_000));
}

#[test]
fn a_client_that_may_only_join_does_not_open_a_job() {
    let mut bench = Bench::new();
    let ask = |bench: &mut Bench, spec: JobSpec, may_open| {
        bench.ask(|request| Input::JoinJob { request, spec: Box::new(spec), may_open })
    };
    let Some(Reply::Rejected(refusal)) = ask(&mut bench, spec(4, 1), false) else { panic!("none is open") };
    assert_eq!(refusal.kind, ServiceErrorKind::Denied);
    expect![
        "job `run` is not open, and this token may only join jobs; open the job with another token first"
    ]
    .assert_eq(&refusal.message);
    assert_eq!(ask(&mut bench, spec(4, 1), true), Some(Reply::MayOpen));
    assert!(bench.records.is_empty(), "the question opens no job");
    let job = bench.open(&spec(4, 1)).expect("a valid job");
    for may_open in [false, true] {
        assert_eq!(ask(&mut bench, spec(4, 1), may_open), Some(Reply::Opened(job)));
        let other = ask(&mut bench, spec(5, 1), may_open);
        assert!(matches!(other, Some(Reply::Rejected(refusal)) if refusal.kind == ServiceErrorKind::Invalid));
    }
    // A job of another tenant does not count.
    let foreign = JobSpec { tenant: "a".to_owned(), ..spec(4, 1) };
    let refused = ask(&mut bench, foreign, false);
    assert!(matches!(refused, Some(Reply::Rejected(refusal)) if refusal.kind == ServiceErrorKind::Denied));
    bench.ask(|request| Input::CancelJob { request, job });
    let refused = ask(&mut bench, spec(4, 1), false);
    assert!(matches!(refused, Some(Reply::Rejected(refusal)) if refusal.kind == ServiceErrorKind::Denied));
}

#[test]
fn a_weight_out_of_range_is_rejected() {
    for weight in [0.01, 1.0, 100.0] {
        Bench::new().open(&JobSpec { weight, ..spec(4, 1) }).expect("a valid job");
    }
    let refused =
        |weight| Bench::new().open(&JobSpec { weight, ..spec(4, 1) }).expect_err("no weight").message;
    expect!["invalid weight 1000000000; use a weight from 0.01 to 100"].assert_eq(&refused(1e9));
    for weight in [0.0, -1.0, 0.009, 1e308, f64::INFINITY, f64::NAN] {
        assert!(refused(weight).starts_with("invalid weight "), "{weight}");
    }
}

#[test]
fn a_start_position_beyond_the_limits_is_rejected() {
    let start = |streams: usize, open: usize| Position {
        version: POSITION_VERSION,
        pipeline: PipelineId::default(),
        dataset: String::new(),
        content: Default::default(),
        order: OrderMode::Deterministic,
        virtual_consumers: streams as u32,
        streams: vec![StreamPosition::default(); streams],
        open_ranges: vec![OpenRange { epoch: 0, start_row: 0, end_row: 1 }; open],
        mix: Vec::new(),
        growth: None,
        ranges: None,
        split_rows: None,
    };
    let refused = |start| {
        let mut bench = Bench::new();
        let refusal =
            bench.open(&JobSpec { start: Some(start), ..spec(4, 2) }).expect_err("beyond the limits");
        assert!(bench.records.is_empty());
        refusal.message + "\n"
    };
    let topic = |partitions: usize, last: u64, block_rows: u32| {
        let url = "kafka://a:9092/events/0".to_owned();
        let range = TopicRange { url, range: format!("id@0-{last}"), part: 0, block_rows, row_bytes: 10 };
        let ranges = TopicRanges { columns: Schema::default(), partitions: vec![range; partitions] };
        Position { ranges: Some(Box::new(ranges)), ..start(2, 0) }
    };
    let wordy = Position { dataset: "d".repeat(9 << 20), ..start(2, 0) };
    let text = refused(start(3, 0))
        + &refused(start(2, 65_537))
        + &refused(topic(4_097, 1, 1))
        + &refused(topic(1, 1 << 40, 4_096))
        + &refused(topic(1, 8, 0))
        + &refused(wordy);
    let (known, long) = text.split_at(text.find("the job specification").expect("the last message"));
    expect![[r#"
        the position has 3 streams, but the job has 2; set virtual_consumers to 3
        the position has 65537 undelivered row ranges, more than the limit of 65536; open the job from an earlier checkpoint
        the position has 4097 ranges of offsets, more than the limit of 4096: use an unmodified checkpoint
        the ranges of offsets in the position have 268435456 blocks, more than the limit of 4194304: use an unmodified checkpoint
        the position has an invalid range of offsets: use an unmodified checkpoint
    "#]]
    .assert_eq(known);
    assert!(long.contains(" bytes long; the limit is 4194304 bytes; "), "{long}");
    for start in [start(2, 65_536), topic(4_096, 4_096, 4)] {
        Bench::new().open(&JobSpec { start: Some(start), ..spec(4, 2) }).expect("within bounds");
    }
}

#[test]
fn long_texts_of_reports_are_truncated() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 64);
    let failed = Some("ä".repeat(1 << 20));
    let plan = bench
        .consumer(ConsumerReport { batch_error: failed, ..consumer_report(job, 0) })
        .expect("an immediate plan");
    assert_eq!(plan.state, JobState::Failed("ä".repeat(1_024)));
    let records = bench.text_since(0);
    assert!(records.len() < 8_192, "{} bytes", records.len());
    let words = WorkerReport { address: "a".repeat(9_000), machine: "ä".repeat(9_000), ..report(1) };
    bench.worker(words);
    let known = bench.cluster.samples().workers.remove(0);
    assert_eq!((known.address.len(), known.machine.len()), (2_048, 2_048));
}
