//! Weights of a mix that change while its job runs: from where on they hold, who is told, and what is refused.

use expect_test::expect;
use feedline_data::checkpoint::Position;
use feedline_data::mix::MixChange;
use feedline_data::pipeline::{Mix, MixPart, MixStop};

use super::*;

/// Two datasets of 512 rows each in batches of 4: splits of 128 rows, of which a worker gets three ahead.
fn mixed(stop: MixStop) -> JobSpec {
    let part = |url: &str| MixPart { weight: 1.0, source: Source::text(url) };
    let source = Source::mixed(Mix { parts: vec![part("/one"), part("/other")], stop });
    let pipeline = Pipeline::builder("mixed").source(source).batch(4).build().expect("sound");
    JobSpec { epochs: 2, ..JobSpec::new(pipeline) }
}

fn running(spec: &JobSpec) -> (Bench, JobId) {
    let mut manifest = manifest(&[512, 512]);
    for (part, shard) in (0..).zip(&mut manifest.shards) {
        shard.object.part = part;
    }
    let mut bench = Bench::new();
    let job = bench.open_with(spec, Some(Arc::new(manifest.clone()))).expect("a good job");
    let plan = bench.worker(report(1)).expect("there is a task");
    bench.worker(WorkerReport { tasks: vec![listed(plan.tasks[0].id, &manifest)], ..report(1) });
    assert_eq!(bench.status(job).state, JobState::Running);
    (bench, job)
}

impl Bench {
    fn reweigh(&mut self, job: JobId, weights: &[f64]) -> Result<MixChange, String> {
        let weights = weights.to_vec();
        match self.ask(|request| Input::SetWeights { request, job, weights }) {
            Some(Reply::Remixed(change)) => Ok(change),
            Some(Reply::Refused(refusal)) => Err(refusal.message),
            other => panic!("not an answer to weights: {other:?}"),
        }
    }
}

fn furthest(bench: &Bench) -> u64 {
    bench.granted(1).iter().map(|split| split.ordinal).max().expect("there are leases")
}

#[test]
fn weights_hold_from_behind_all_that_was_ever_granted() {
    let (mut bench, job) = running(&mixed(MixStop::All));
    let rows = bench.status(job).layout.expect("it runs").split_rows;
    let change = bench.reweigh(job, &[3.0, 1.0]).expect("there are rows left");
    assert_eq!((change.pass, change.place), (0, (furthest(&bench) + 1) * rows));
    // Its workers and consumers are told all changes before they hear of rows behind them.
    let plan = bench.worker(report(1)).expect("it changed");
    assert_eq!(plan.mixes.len(), 1);
    assert_eq!((plan.mixes[0].job, &plan.mixes[0].changes), (job, &vec![change.clone()]));
    let plan = bench.consumer(taking(job, 0)).expect("a first plan");
    assert_eq!(plan.layout.expect("it runs").mix, std::slice::from_ref(&change));
    // Again at the same place: nobody has seen a row of the first.
    let again = bench.reweigh(job, &[1.0, 2.0]).expect("there are rows left");
    assert_eq!((again.pass, again.place), (change.pass, change.place));
    let status = bench.status(job);
    assert_eq!(status.layout.expect("it runs").mix, std::slice::from_ref(&again));
    assert_eq!(status.position.expect("it runs").mix, std::slice::from_ref(&again));
    // A lost worker's leases are revoked, and what it sent may be in a consumer's hands all the same.
    bench.pass(3_001);
    let later = bench.reweigh(job, &[1.0, 3.0]).expect("there are rows left");
    assert_eq!(later.place, change.place);
    // After a restart of the coordinator, from its log and from a compacted one.
    for records in [bench.records.clone(), bench.cluster.snapshot()] {
        let mut other = Bench::new();
        other.cluster = Cluster::restore(ClusterSettings::default(), LIFE + 1, 0, records);
        assert_eq!(other.status(job).layout.expect("it runs").mix, std::slice::from_ref(&later));
        assert_eq!(other.reweigh(job, &[5.0, 1.0]).expect("there are rows left").place, change.place);
    }
}

#[test]
fn at_the_end_of_an_epoch_they_hold_in_the_next_and_at_the_end_of_all_for_nothing() {
    let (mut bench, job) = running(&mixed(MixStop::All));
    let layout = bench.status(job).layout.expect("it runs");
    let at = |epoch: u32, row: u64| vec![(0, StreamPosition { epoch, row })];
    let report = |positions| ConsumerReport { positions, ..taking(job, 0) };
    bench.consumer(report(at(0, layout.stream_rows(0) - 4)));
    let change = bench.reweigh(job, &[3.0, 1.0]).expect("there is another epoch");
    // Of which two splits are granted already.
    assert_eq!((change.pass, change.place), (1, 2 * layout.split_rows));
    bench.consumer(report(at(1, layout.stream_rows(0) - 4)));
    let said = bench.reweigh(job, &[3.0, 1.0]).expect_err("nothing is left");
    expect![[r#"all rows of job "mixed" are on their way already, so other weights would hold for none; a smaller `buffer` of its consumers fetches less ahead"#]]
        .assert_eq(&said);
    // Of earlier changes a position has what tells what is to come.
    let position = bench.status(job).position.expect("it runs");
    assert_eq!(position.mix, [change]);
}

#[test]
fn a_job_that_goes_on_at_a_position_has_its_changes() {
    let (mut bench, job) = running(&mixed(MixStop::Restart));
    let change = bench.reweigh(job, &[3.0, 1.0]).expect("there are rows left");
    let position = bench.status(job).position.expect("it runs");
    let spec = JobSpec { start: Some(position.clone()), ..mixed(MixStop::Restart) };
    let (mut other, job) = running(&spec);
    assert_eq!(other.status(job).layout.expect("it runs").mix, std::slice::from_ref(&change));
    let edited = |mix: Vec<MixChange>| {
        let start = Some(Position { mix, ..position.clone() });
        Bench::new().open(&JobSpec { start, ..spec.clone() }).expect_err("edited").message + "\n"
    };
    let three = MixChange { weights: vec![1.0; 3], ..change.clone() };
    let earlier = MixChange { place: 0, ..change.clone() };
    expect![[r#"
        the mix has 2 datasets, but there are 3 weights in the position, which changes weights in pass 0; the file was edited
        the position has 2 changes of weights, at most 256 in their order are read; the file was edited
    "#]]
    .assert_eq(&(edited(vec![three]) + &edited(vec![change, earlier])));
}

#[test]
fn weights_that_cannot_be_are_refused_with_a_sentence() {
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
    let job = bench.open(&mixed(MixStop::All)).expect("sound");
    note(bench.reweigh(job, &[1.0, 2.0]));
    expect![[r#"
        job 4d does not exist; list the jobs with `feedline job list`
        the mix has 2 datasets, but there are 1 weights; give job "mixed" one for each dataset of its mix, in its order
        weight -2 is not a number above 0; give job "mixed" one for each dataset of its mix, in its order
        job "mixed" has ended; only a job that runs can be given other weights
        the mix of job "mixed" has `stop: first`, so its weights tell where a pass ends and stay as they are; use all or restart
        job "run" reads one dataset; only those of a `mix` have weights
        job "mixed" is still being prepared; ask again
    "#]].assert_eq(&said);
}
