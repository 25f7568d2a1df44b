//! Tests of the commits that run, and of the offsets that they write.

use feedline_data::layout::DeliveredPrefix;

use super::*;

fn commit(job: u64, rows: u64) -> GroupCommit {
    GroupCommit { job: JobId(job), delivered: DeliveredPrefix { epoch: 0, rows }, offsets: Vec::new() }
}

#[test]
fn one_commit_of_a_job_runs_at_a_time_and_the_latest_is_written() {
    let commits = OffsetCommitter::default();
    assert_eq!(commits.replace(&[commit(1, 5), commit(2, 0)]), [JobId(1), JobId(2)]);
    assert!(commits.replace(&[commit(1, 9), commit(2, 0)]).is_empty(), "both run");
    assert!(!commits.finish(&commit(2, 0), Ok(())));
    assert!(commits.finish(&commit(1, 5), Ok(())), "it has changed meanwhile");
    assert_eq!(commits.next(JobId(1)), Some(commit(1, 9)));
    assert!(!commits.finish(&commit(1, 9), Err("down".to_owned())));
    assert!(commits.replace(&[commit(1, 9)]).is_empty(), "nothing has changed");
    assert_eq!(commits.replace(&[commit(1, 10)]), [JobId(1)], "the next one replaces the failed one");
    assert!(!commits.finish(&commit(1, 10), Ok(())));
}

#[test]
fn a_commit_that_the_plan_no_longer_contains_is_not_tried_again() {
    let commits = OffsetCommitter::default();
    commits.replace(&[commit(1, 5)]);
    assert!(commits.is_wanted(&commit(1, 5)) && !commits.is_wanted(&commit(1, 6)));
    assert!(commits.replace(&[]).is_empty());
    assert!(!commits.is_wanted(&commit(1, 5)), "another worker may write a newer one");
    assert!(!commits.finish(&commit(1, 5), Err("down".to_owned())));
    assert_eq!(commits.replace(&[commit(1, 7)]), [JobId(1)]);
    commits.replace(&[]);
    assert_eq!(commits.next(JobId(1)), None, "it was removed before it began");
    assert_eq!(commits.replace(&[commit(1, 7)]), [JobId(1)]);
}

#[test]
fn an_offset_of_a_job_never_decreases() {
    let commits = OffsetCommitter::default();
    let offset = |partition, offset| PartitionOffset { topic: "t".to_owned(), partition, offset };
    let raised = |job, mut offsets: Vec<PartitionOffset>| {
        commits.raise(JobId(job), &mut offsets);
        offsets
    };
    commits.replace(&[commit(1, 5), commit(2, 5)]);
    assert_eq!(raised(1, vec![offset(0, 8), offset(1, 3)]), [offset(0, 8), offset(1, 3)]);
    commits.finish(&commit(1, 5), Ok(()));
    // A new leader has not planned a commit yet, and then plans one with older positions.
    commits.replace(&[]);
    commits.replace(&[commit(1, 4)]);
    assert_eq!(raised(1, vec![offset(0, 7), offset(1, 4)]), [offset(0, 8), offset(1, 4)]);
    assert_eq!(raised(2, vec![offset(0, 7)]), [offset(0, 7)], "of another job");
}

#[test]
fn the_offsets_of_the_last_jobs_are_remembered() {
    let commits = OffsetCommitter::default();
    let jobs = MAX_PAST_JOBS as u64 + 2;
    for job in 1..=jobs {
        commits.replace(&[commit(job, 1)]);
        commits.finish(&commit(job, 1), Ok(()));
    }
    // The first job is the oldest, but it still commits.
    commits.replace(&[commit(1, 2)]);
    commits.finish(&commit(1, 2), Ok(()));
    commits.replace(&[]);
    let known: Vec<u64> = commits.lock().keys().map(|job| job.0).collect();
    assert_eq!(known, std::iter::once(1).chain(4..=jobs).collect::<Vec<_>>());
}
