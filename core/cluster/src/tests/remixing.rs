//! Tests of weight changes in a mix: where they apply, who receives them, and which are rejected.

use expect_test::expect;
use feedline_data::checkpoint::Position;
use feedline_data::mix::MixChange;
use feedline_data::pipeline::{Mix, MixPart, MixStop};

use super::*;

/// Two datasets of 512 rows in batches of 4: splits of 128 rows, three of them ahead of a worker.
fn mixed(stop: MixStop) -> JobSpec {
    let part = |url: &str| MixPart { weight: 1.0, source: Source::text(url) };
    let source = Source::mixed(Mix { parts: vec![part("/one"), part("/other")], stop });
    let pipeline = Pipeline::builder("mixed").source(source).batch(4).build().expect("a valid job");
    JobSpec { epochs: 2, ..JobSpec::new(pipeline) }
}

fn running(spec: &JobSpec) -> (Bench, JobId) {
    let mut manifest = manifest(&[512, 512]);
    for (part, shard) in (0..).zip(&mut manifest.shards) {
        shard.object.part = part;
    }
    let mut bench = Bench::new();
    let job = bench.open_with(spec, Some(Arc::new(manifest.clone()))).expect("a valid job");
    let plan = bench.worker(report(1)).expect("there is a task");
    bench.worker(WorkerReport { tasks: vec![listed(plan.tasks[0].id, &manifest)], ..report(1) });
    assert_eq!(bench.status(job).state, JobState::Running);
    (bench, job)
}

impl Bench {
    fn reweigh(&mut self, job: JobId, weights: &[f64]) -> Result<MixChange, String> {
        let weights = weights.to_vec();
        match self.ask(|request| Input::SetWeights { request, job, weights }) {
            Some(Reply::WeightsChanged(change)) => Ok(change),
            Some(Reply::Rejected(refusal)) => Err(refusal.message),
            other => panic!("not an answer to weights: {other:?}"),
        }
    }
}

fn furthest(bench: &Bench) -> u64 {
    bench.granted(1).iter().map(|split| split.ordinal).max().expect("there are leases")
}

#[test]
fn weights_apply_after_all_granted_splits() {
    let (mut bench, job) = running(&mixed(MixStop::All));
    let rows = bench.status(job).layout.expect("it runs").split_rows;
    let change = bench.reweigh(job, &[3.0, 1.0]).expect("there are rows left");
    assert_eq!((change.pass, change.offset), (0, (furthest(&bench) + 1) * rows));
    // Workers and consumers receive all changes before leases after them.
    let plan = bench.worker(report(1)).expect("it changed");
    assert_eq!(plan.mixes.len(), 1);
    assert_eq!((plan.mixes[0].job, &plan.mixes[0].changes), (job, &vec![change.clone()]));
    let plan = bench.consumer(consumer_report(job, 0)).expect("a first plan");
    assert_eq!(plan.layout.expect("it runs").mix_changes, std::slice::from_ref(&change));
    // A second change at the same offset replaces the first.
    let again = bench.reweigh(job, &[1.0, 2.0]).expect("there are rows left");
    assert_eq!((again.pass, again.offset), (change.pass, change.offset));
    let status = bench.status(job);
    assert_eq!(status.layout.expect("it runs").mix_changes, std::slice::from_ref(&again));
    assert_eq!(status.position.expect("it runs").mix, std::slice::from_ref(&again));
    // A consumer may have rows of revoked leases.
    bench.pass(3_001);
    let later = bench.reweigh(job, &[1.0, 3.0]).expect("there are rows left");
    assert_eq!(later.offset, change.offset);
    // The same after a restart from the log and from a snapshot.
    for records in [bench.records.clone(), bench.cluster.snapshot()] {
        let mut other = Bench::new();
        other.cluster = Cluster::restore(ClusterSettings::default(), INCARNATION + 1, 0, records);
        assert_eq!(other.status(job).layout.expect("it runs").mix_changes, std::slice::from_ref(&later));
        assert_eq!(other.reweigh(job, &[5.0, 1.0]).expect("there are rows left").offset, change.offset);
    }
}

#[test]
fn weights_apply_in_the_next_epoch_and_are_rejected_at_the_end_of_the_job() {
    let (mut bench, job) = running(&mixed(MixStop::All));
    let layout = bench.status(job).layout.expect("it runs");
    let at = |epoch: u32, row: u64| vec![(0, StreamPosition { epoch, row })];
    let report = |positions| ConsumerReport { positions, ..consumer_report(job, 0) };
    bench.consumer(report(at(0, layout.stream_rows(0) - 4)));
    let change = bench.reweigh(job, &[3.0, 1.0]).expect("there is another epoch");
    // Two splits of the next epoch are granted.
    assert_eq!((change.pass, change.offset), (1, 2 * layout.split_rows));
    bench.consumer(report(at(1, layout.stream_rows(0) - 4)));
    let said = bench.reweigh(job, &[3.0, 1.0]).expect_err("nothing is left");
    expect![[r#"all rows of job "mixed" are already leased, so new weights would have no effect; use a smaller `buffer` in its consumers"#]]
        .assert_eq(&said);
    // A position contains only the changes that affect later rows.
    let position = bench.status(job).position.expect("it runs");
    assert_eq!(position.mix, [change]);
}

#[test]
fn a_job_that_starts_at_a_position_has_its_changes() {
    let (mut bench, job) = running(&mixed(MixStop::Restart));
    let change = bench.reweigh(job, &[3.0, 1.0]).expect("there are rows left");
    let position = bench.status(job).position.expect("it runs");
    let spec = JobSpec { start: Some(position.clone()), ..mixed(MixStop::Restart) };
    let (mut other, job) = running(&spec);
    assert_eq!(other.status(job).layout.expect("it runs").mix_changes, std::slice::from_ref(&change));
    let edited = |mix: Vec<MixChange>| {
        let start = Some(Position { mix, ..position.clone() });
        Bench::new().open(&JobSpec { start, ..spec.clone() }).expect_err("edited").message + "\n"
    };
    let three = MixChange { weights: vec![1.0; 3], ..change.clone() };
    let earlier = MixChange { offset: 0, ..change.clone() };
    expect![[r#"
        expected 2 weights, one per dataset of the mix, got 3 in the position at pass 0; use an unmodified checkpoint
        invalid position with 2 weight changes: expected at most 256 in ascending order; use an unmodified checkpoint
    "#]]
    .assert_eq(&(edited(vec![three]) + &edited(vec![change, earlier])));
}

#[test]
fn invalid_weights_are_rejected_with_a_message() {
    let mut said = String::new();
    let (mut bench, job) = running(&mixed(MixStop::All));
    let mut note = |result: Result<MixChange, String>| said += &(result.expect_err("refused") + "\n");
    note(bench.reweigh(JobId(77), &[1.0]));
    note(bench.reweigh(job, &[1.0]));
    note(bench.reweigh(job, &[1.0, -2.0]));
    bench.ask(|request| Input::CancelJob { request, job });
    note(bench.reweigh(job, &[1.0, 2.0]));
    let (mut bench, job) = running(&mixed(MixStop::First));
    note(bench.reweigh(job, &[1.0, 2.0]));
    let (mut bench, job) = Bench::running(&spec(4, 1), 64);
    note(bench.reweigh(job, &[1.0, 2.0]));
    let mut bench = Bench::new();
    let job = bench.open(&mixed(MixStop::All)).expect("a valid job");
    note(bench.reweigh(job, &[1.0, 2.0]));
    expect![[r#"
        job 4d does not exist; list the jobs with `feedline job list`
        expected 2 weights, one per dataset of the mix, got 1; pass one weight for each dataset in the mix of job "mixed", in order
        invalid weight -2: expected a finite number above 0; pass one weight for each dataset in the mix of job "mixed", in order
        job "mixed" has ended; weights can be changed only while a job is running
        cannot change the weights of job "mixed": with `stop: first`, the weights determine where a pass ends; use `stop: all` or `stop: restart`
        job "run" has no `mix`; weights apply only to the datasets in a `mix`
        job "mixed" is still preparing; retry
    "#]].assert_eq(&said);
}
