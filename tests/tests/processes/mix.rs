//! Mixed datasets: rows are delivered in proportion to weights, exactly once, and equally on any workers and after a resume.

use std::path::Path;
use std::sync::Arc;

use feedline_client::audit::Audit;
use feedline_client::{Batch, ClientSettings, Job};
use feedline_coordinator::CoordinatorSettings;
use feedline_data::checkpoint::Position;
use feedline_data::ids::{SessionId, WorkerId};
use feedline_data::layout::StreamPosition;
use feedline_data::messages::JobSpec;
use feedline_data::mix::MixChange;
use feedline_data::pipeline::Pipeline;
use feedline_tests::embedded::{OneWorker, worker_settings};
use feedline_tests::process::Processes;
use feedline_tests::running::Running;
use feedline_tests::{Scratch, assert_clean, embedded, wait_for_rows};
use feedline_worker::ProcessClock;
use serde_json::Value;

/// Two datasets in different formats with the same column: 300 and 100 rows.
fn pipeline(scratch: &Scratch, stop: &str) -> String {
    let lines = |name: &str, rows: u32| (0..rows).map(|row| format!("{name} {row}")).collect::<Vec<_>>();
    let text = scratch.write("a.txt", &lines("a", 300).join("\n"));
    let json: Vec<String> = lines("b", 100).iter().map(|line| format!("{{\"body\": \"{line}\"}}")).collect();
    let json = scratch.write("b.jsonl", &json.join("\n"));
    let yaml = format!(
        "name: mixed\nsource:\n  mix:\n    - {{ weight: 1, url: {text}, format: text }}\n    - {{ weight: 1, url: {json}, format: jsonl, features: {{ text: body }} }}\n  stop: {stop}\nseed: 3\nshuffle: {{ window: 32 }}\noperators: [ batch: {{ size: 20 }} ]\n"
    );
    scratch.write("mixed.yaml", &yaml)
}

fn texts(scratch: &Scratch, stop: &str) -> Vec<String> {
    let yaml = std::fs::read_to_string(pipeline(scratch, stop)).expect("it was written");
    let mut found = Vec::new();
    embedded::for_each_batch(scratch.path(), &yaml, |records| found.extend(embedded::texts(records, "text")));
    found
}

#[test]
fn rows_are_delivered_in_proportion_until_the_mix_stops() {
    let scratch = Scratch::new();
    let all = texts(&scratch, "all");
    let of_b = |rows: &[String]| rows.iter().filter(|row| row.starts_with('b')).count();
    assert_eq!((all.len(), of_b(&all)), (400, 100));
    // Equal numbers of rows while both datasets have rows.
    assert!(all[..200].chunks(20).all(|batch| of_b(batch) == 10), "{:?}", &all[..20]);
    assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), 400);
    let first = texts(&scratch, "first");
    assert_eq!((first.len(), of_b(&first)), (200, 100));
    let restarted = texts(&scratch, "restart");
    assert_eq!(
        (restarted.len(), of_b(&restarted)),
        (599, 299),
        "the last row of the longer one ends the pass"
    );
    let of_first_round: Vec<&String> =
        restarted.iter().filter(|row| row.starts_with('b')).take(100).collect();
    assert_eq!(of_first_round.iter().collect::<std::collections::BTreeSet<_>>().len(), 100);
    let second: Vec<&String> =
        restarted.iter().filter(|row| row.starts_with('b')).skip(100).take(100).collect();
    assert_ne!(of_first_round, second, "a dataset that is begun again has another order");
}

#[test]
fn a_mix_is_equal_on_other_workers_and_after_a_resume() {
    let scratch = Scratch::new();
    for stop in ["all", "first", "restart"] {
        let file = pipeline(&scratch, stop);
        let run = |flags: &[&str]| -> Value {
            let report = scratch.run(&file, &[&["--epochs", "2", "--consumers", "2"], flags].concat());
            assert_clean(&report);
            report
        };
        let one = run(&[]);
        let three = run(&["--workers", "3"]);
        assert_eq!(one["digest"], three["digest"], "{stop}");
        let position = scratch.file(&format!("{stop}.json"));
        run(&["--limit", "150", "--position", &position]);
        let rest = run(&["--position", &position]);
        assert_eq!(one["digest"], rest["digest"], "{stop}");
    }
}

const ROWS: u64 = 40_000;

/// Two datasets with the same number of rows.
fn large(scratch: &Scratch, stop: &str) -> String {
    let lines = |name: &str| (0..ROWS).map(|row| format!("{name} {row}")).collect::<Vec<_>>().join("\n");
    let (one, other) = (scratch.write("one.txt", &lines("a")), scratch.write("other.txt", &lines("b")));
    format!(
        "name: large\nsource:\n  mix:\n    - {{ url: {one}, format: text }}\n    - {{ url: {other}, format: text }}\n  stop: {stop}\n\
         seed: 3\nshuffle: {{ window: 64 }}\noperators: [ batch: {{ size: 10 }} ]\n"
    )
}

/// The rows of a job, and the changes of its weights.
struct Delivered {
    batches: Vec<Batch>,
    change: Option<MixChange>,
    /// The position after each hundredth batch.
    positions: Vec<Position>,
}

impl Delivered {
    fn texts(&self) -> Vec<String> {
        self.batches.iter().flat_map(|batch| embedded::texts(&batch.records, "text")).collect()
    }
}

/// Runs a job from `start`. The weights change to `weights` after batch 50.
async fn deliver(folder: &Path, yaml: &str, start: Option<Position>, weights: Option<&[f64]>) -> Delivered {
    let coordinator = feedline_coordinator::start(CoordinatorSettings::in_memory(folder.join("index")), 1);
    let coordinator = coordinator.await.expect("the directory is writable");
    let (settings, clock) = (worker_settings(256 << 20), ProcessClock::new());
    let worker = feedline_worker::start(WorkerId(1), settings, clock, coordinator.service());
    let worker = worker.expect("threads start");
    let pipeline = Pipeline::from_yaml(yaml, "test.yaml").expect("the test's pipeline is right");
    let spec = JobSpec {
        virtual_consumers: 3,
        audit: true,
        epochs: 2,
        start: start.clone(),
        ..JobSpec::new(pipeline.clone())
    };
    let workers = Arc::new(OneWorker(worker.service()));
    let job = Job::open(coordinator.service(), workers, spec, ClientSettings::default())
        .await
        .expect("it is sound");
    let mut consumer = job.consumer(0, SessionId(1));
    let mut delivered = Delivered { batches: Vec::new(), change: None, positions: Vec::new() };
    while let Some(batch) = consumer.next().await.expect("the job does not fail") {
        delivered.batches.push(batch);
        if let Some(weights) = weights.filter(|_| delivered.batches.len() == 50) {
            delivered.change = Some(job.set_weights(weights).await.expect("there are rows left"));
        }
        if delivered.batches.len().is_multiple_of(100) && weights.is_some() {
            consumer.flush().await.expect("the coordinator runs");
            let status = job.status().await.expect("the coordinator runs");
            delivered.positions.push(status.position.expect("it runs"));
        }
    }
    let layout = job.status().await.expect("the coordinator runs").layout.expect("it ran");
    let manifest = coordinator.service().manifest(job.id()).await.expect("it is indexed");
    let mut audit = Audit::new(layout, &manifest, &pipeline, start.as_ref());
    delivered.batches.iter().for_each(|batch| audit.add(&batch.info));
    let report = audit.report(None);
    assert!(report.is_exact(), "{report:?}");
    consumer.close().await.expect("the coordinator runs");
    worker.shutdown().await;
    coordinator.shutdown().await.expect("its log is in memory");
    delivered
}

/// Compares rows without printing thousands of them.
fn assert_same(found: &[String], expected: &[String], what: &str) {
    let differs = found.iter().zip(expected).position(|(found, expected)| found != expected);
    let show = |rows: &[String]| differs.map(|place| rows[place..rows.len().min(place + 5)].to_vec());
    assert_eq!(
        (found.len(), show(found)),
        (expected.len(), show(expected)),
        "{what}: row {differs:?} differs"
    );
}

fn share_of_a(rows: &[String]) -> f64 {
    rows.iter().filter(|row| row.starts_with('a')).count() as f64 / rows.len() as f64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_weights_apply_from_their_row_and_replay_from_any_position() {
    for stop in ["all", "restart"] {
        let scratch = Scratch::new();
        let yaml = large(&scratch, stop);
        let whole = deliver(scratch.path(), &yaml, None, Some(&[4.0, 1.0])).await;
        let change = whole.change.clone().expect("it was made");
        let texts = whole.texts();
        assert_eq!(texts.len() as u64, 4 * ROWS, "a pass keeps its length");
        assert_eq!(change.pass, 0);
        // Streams take turns, so what is delivered is in the order of the rows but for a round of splits.
        let (place, round) = (change.offset as usize, 3 * 1024);
        let before = share_of_a(&texts[..place - round]);
        let behind = share_of_a(&texts[place + round..place + 3 * round]);
        assert!((before - 0.5).abs() < 0.01 && (behind - 0.8).abs() < 0.01, "{stop}: {before} {behind}");
        let next_epoch = texts.len() / 2;
        assert!(
            (share_of_a(&texts[next_epoch + round..next_epoch + 4 * round]) - 0.8).abs() < 0.01,
            "for later passes too"
        );

        // The same from the beginning, for a job that has the change from its start.
        let first = &whole.positions[0];
        let begin = Position {
            streams: vec![StreamPosition::default(); 3],
            mix: vec![change.clone()],
            ..first.clone()
        };
        let again = deliver(scratch.path(), &yaml, Some(begin), None).await;
        assert_same(&again.texts(), &texts, stop);
        // And from any position on.
        for (number, position) in whole.positions.iter().enumerate().step_by(whole.positions.len() / 3) {
            assert_eq!(position.mix, std::slice::from_ref(&change));
            let rest = deliver(scratch.path(), &yaml, Some(position.clone()), None).await;
            let before = whole.batches.iter().take(100 * (number + 1));
            let begin = before.map(|batch| batch.info.rows as usize).sum::<usize>();
            let what = format!("{stop} from row {begin}");
            assert_same(&rest.texts(), &texts[begin..], &what);
        }
    }
}

#[test]
fn weights_changed_by_command_survive_killed_roles() {
    let scratch = Scratch::new();
    let file = scratch.write("large.yaml", &large(&scratch, "all"));
    let plain = scratch.run(&file, &[]);
    let mut processes = Processes::start(scratch.path().join("cluster"), 2);
    let url = processes.url();
    let position = scratch.file("position.json");
    let arguments = ["run", &file, "--coordinator", &url, "--consumers", "2", "--audit", "--report", "json"];
    let stopping =
        [&arguments[..], &["--step-ms", "2", "--buffer", "64KiB", "--position", &position]].concat();
    let run = Running::start(&stopping);
    wait_for_rows(&url, 500);
    let jobs: Value =
        serde_json::from_str(&scratch.call(&["job", "list", "--coordinator", &url, "--json"]).stdout)
            .expect("JSON");
    let id = format!("{:x}", jobs[0]["job"].as_u64().expect("an id"));
    let reweigh = |weights: &str| scratch.call(&["job", "set-weights", &id, weights, "--coordinator", &url]);
    let changed = reweigh("4,1");
    assert_eq!(changed.status, 0, "{}", changed.stderr);
    assert!(
        changed.stdout.starts_with(&format!("job {id}: the weights 4, 1 apply from row ")),
        "{}",
        changed.stdout
    );
    for (weights, said) in [
        ("4", "expected 2 weights, one per dataset of the mix, got 1"),
        ("4,x", "invalid weight `x`"),
        ("4,0", "invalid weight 0: expected a finite number above 0"),
    ] {
        let refused = reweigh(weights);
        assert_ne!(refused.status, 0);
        assert!(refused.stderr.contains(said), "{}", refused.stderr);
    }
    processes.workers[0].kill();
    processes.restart_coordinator(0);
    processes.replace_worker(0);
    wait_for_rows(&url, 10_000);
    run.interrupt();
    let part = run.wait();
    assert_eq!(part.status, 0, "{}", part.stderr);
    assert_clean(&part.report());
    let saved: Value =
        serde_json::from_str(&std::fs::read_to_string(&position).expect("it was written")).expect("JSON");
    let place = saved["position"]["mix"][0]["place"].as_u64().expect("it has the change");
    assert!(changed.stdout.contains(&format!("from row {place} of pass 0")), "{}", changed.stdout);
    let rest = scratch.run(
        &file,
        &["--consumers", "1", "--virtual-consumers", "2", "--workers", "2", "--position", &position],
    );
    assert_clean(&rest);
    assert_eq!(rest["content_digest"], plain["content_digest"], "the same rows, in another order");
    assert_ne!(rest["digest"], plain["digest"]);
}

#[test]
fn setting_weights_of_an_unknown_job_fails_at_once() {
    let scratch = Scratch::new();
    let processes = Processes::start(scratch.path().join("cluster"), 1);
    let refused = scratch.call(&["job", "set-weights", "7", "1,2", "--coordinator", &processes.url()]);
    assert_ne!(refused.status, 0);
    assert!(refused.stderr.contains("job 7 does not exist"), "{}", refused.stderr);
}
