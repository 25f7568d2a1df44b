//! Features that the workers of a job hold together: the batches are equal on any number of workers, while workers are killed and
//! started, and rows are sent between workers.

use feedline_tests::http::try_metric;
use feedline_tests::process::{Processes, Role};
use feedline_tests::running::Running;
use feedline_tests::{Scratch, wait_for_rows};

use super::input::{build_small, pipeline};
use super::{SAMPLE, WINDOW, assert_equal};

/// Returns the pipeline files of the same job with replicated and with partitioned features.
fn pipelines(scratch: &Scratch) -> (String, String) {
    build_small(scratch, "g", 0.0);
    let partitioned = format!("{SAMPLE}, placement: partition");
    (pipeline(scratch, "g", WINDOW, SAMPLE), pipeline(scratch, "g", WINDOW, &partitioned))
}

#[test]
fn partitioned_features_do_not_change_graph_batches() {
    let scratch = Scratch::new();
    let (replicated, partitioned) = pipelines(&scratch);
    let expected = scratch.run(&replicated, &[]);
    let three = Processes::start(scratch.path().join("three"), 3);
    let three = three.url();
    let modes = [
        ("one worker", vec!["--workers", "1"]),
        ("four embedded workers", vec!["--workers", "4", "--cores", "4"]),
        ("three worker processes", vec!["--coordinator", &three]),
        ("a feature cache", vec!["--coordinator", &three, "--feature-cache", "1MiB"]),
    ];
    for (name, mode) in modes {
        assert_equal(&scratch.run(&partitioned, &mode), &expected, name);
    }
}

#[test]
fn workers_that_die_and_join_do_not_change_batches_with_partitioned_features() {
    let scratch = Scratch::new();
    let (replicated, partitioned) = pipelines(&scratch);
    let shape = ["--virtual-consumers", "2", "--epochs", "4"];
    let expected = scratch.run(&replicated, &shape);
    let mut processes = Processes::start(scratch.path().join("processes"), 2);
    let url = processes.url();
    let slow = ["--coordinator", &url, "--audit", "--report", "json", "--step-ms", "60"];
    let run = Running::start(&[&["run", &partitioned], &shape[..], &slow].concat());
    wait_for_rows(&url, 64);
    processes.add_worker();
    wait_for_rows(&url, 640);
    processes.workers.remove(0).kill();
    assert!(!run.has_ended(), "the run was too short");
    assert_equal(&run.wait().report(), &expected, "a worker joined, and another was killed");
}

#[test]
fn workers_send_rows_of_partitioned_features_to_each_other() {
    let scratch = Scratch::new();
    let (_, partitioned) = pipelines(&scratch);
    let processes = Processes::start(scratch.path().join("processes"), 0);
    let url = processes.url();
    let start = || {
        let address = "127.0.0.1:0";
        let arguments =
            ["worker", "--coordinator", &url, "--listen", address, "--cores", "1", "--http", address];
        Role::start(&arguments, &[])
    };
    let workers = [start(), start()];
    let by = ["--coordinator", &url, "--audit", "--report", "json", "--epochs", "3", "--step-ms", "20"];
    let run = Running::start(&[&["run", &partitioned][..], &by].concat()).wait();
    assert_eq!(run.status, 0, "{run:?}");
    let total = |name: &str| -> f64 {
        workers.iter().map(|worker| try_metric(worker.http(), name).unwrap_or_default()).sum()
    };
    let sent = total("feedline_worker_gather_sent_bytes_total");
    assert!(sent > 0.0, "the workers hold different slices");
    assert!(total("feedline_worker_gather_received_bytes_total") > 0.0);
}
