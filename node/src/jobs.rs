//! `feedline job`: lists, shows and cancels a coordinator's jobs, and changes the weights of their mixes.

use feedline_data::messages::{JobState, JobStatus};
use feedline_data::mix::MixChange;
use feedline_data::tenants;
use serde::Serialize;

use crate::cli::{JobAction, JobArgs, RemovedJobsArgs};
use crate::failure::Failure;
use crate::{cluster, output, table};

/// Runs one action.
pub(crate) async fn run(args: JobArgs) -> Result<(), Failure> {
    let coordinator = cluster::connect(&args.cluster.urls(), &args.access.credentials()?).await?;
    let text = match args.action {
        JobAction::List { json: true } => json_line(&coordinator.list_jobs().await?)?,
        JobAction::List { json: false } => render(&coordinator.list_jobs().await?),
        JobAction::Show { job, json: true } => json_line(&coordinator.job_status(job).await?)?,
        JobAction::Show { job, json: false } => render_one(&coordinator.job_status(job).await?),
        JobAction::Cancel { job } => {
            coordinator.cancel_job(job).await?;
            format!("job {job} is cancelled\n")
        }
        JobAction::SetWeights { job, weights } => {
            let change = coordinator.set_weights(job, weights).await?;
            format!("job {job}: {}\n", show_change(&change))
        }
    };
    Ok(output::print(&text)?)
}

/// Rejects the removed command `feedline jobs`.
pub(crate) fn reject_removed(args: &RemovedJobsArgs) -> Failure {
    Failure::wrong_use(format!(
        "`feedline jobs` was replaced by `feedline job`: use `{}`",
        args.replacement()
    ))
}

fn json_line(value: &impl Serialize) -> Result<String, Failure> {
    Ok(serde_json::to_string(value).map_err(Failure::failed)? + "\n")
}

/// One job: a line for each column of the table, in the same order.
fn render_one(job: &JobStatus) -> String {
    let (epoch, done) = progress(job);
    let mut lines = vec![
        ("id", job.job.to_string()),
        ("tenant", tenants::shown(&job.tenant).to_owned()),
        ("name", job.name.clone()),
        ("state", state(&job.state)),
        ("epoch", epoch),
        ("done", done),
        ("consumers", job.consumers.to_string()),
        ("workers", job.workers.to_string()),
        ("rows", job.delivered.rows.to_string()),
        ("batches", job.delivered.batches.to_string()),
    ];
    lines.extend(EXTRAS.iter().filter_map(|(name, of)| Some((*name, of(job)?))));
    lines.iter().map(|(name, value)| format!("{name:<15} {value}\n")).collect()
}

fn show_change(change: &MixChange) -> String {
    let weights: Vec<String> = change.weights.iter().map(f64::to_string).collect();
    format!("weights {} hold from row {} of pass {} on", weights.join(", "), change.place, change.pass)
}

fn render(jobs: &[JobStatus]) -> String {
    if jobs.is_empty() {
        return "no jobs\n".to_owned();
    }
    let mut head = ["id", "name", "state", "epoch", "done", "consumers", "rows"].map(str::to_owned).to_vec();
    let are_several = are_several(jobs.iter().map(|job| &job.tenant));
    if are_several {
        head.insert(1, "tenant".to_owned());
    }
    let extras: Vec<&(&str, Extra)> =
        EXTRAS.iter().filter(|(_, of)| jobs.iter().any(|job| of(job).is_some())).collect();
    head.extend(extras.iter().map(|(name, _)| (*name).to_owned()));
    let rows = jobs.iter().map(|job| {
        let (epoch, done) = progress(job);
        let mut line = vec![
            job.job.to_string(),
            job.name.clone(),
            state(&job.state),
            epoch,
            done,
            job.consumers.to_string(),
            job.delivered.rows.to_string(),
        ];
        if are_several {
            line.insert(1, tenants::shown(&job.tenant).to_owned());
        }
        line.extend(extras.iter().map(|(_, of)| of(job).unwrap_or_else(|| "-".to_owned())));
        line
    });
    let texts: &[usize] = if are_several { &[1, 2, 3] } else { &[1, 2] };
    table::render(&[head].into_iter().chain(rows).collect::<Vec<_>>(), texts)
}

/// What only some jobs have.
type Extra = fn(&JobStatus) -> Option<String>;

/// Columns that are shown where a job has something for them.
const EXTRAS: [(&str, Extra); 2] = [("slots of ranks", slots), ("weights", weights)];

/// Elastic jobs: each rank and its slots.
fn slots(job: &JobStatus) -> Option<String> {
    let owners: Vec<String> = job.slot_owners.iter().map(|(rank, slots)| format!("{rank}:{slots}")).collect();
    (!owners.is_empty()).then(|| owners.join(" "))
}

/// The latest weights of a mix whose weights were changed.
fn weights(job: &JobStatus) -> Option<String> {
    let change = job.layout.as_ref()?.mix.last()?;
    let weights: Vec<String> = change.weights.iter().map(f64::to_string).collect();
    Some(weights.join(","))
}

/// Whether jobs are of more than one tenant, so that tables tell whose each is.
pub(crate) fn are_several<'a>(mut tenants: impl Iterator<Item = &'a String>) -> bool {
    let first = tenants.next();
    tenants.any(|tenant| Some(tenant) != first)
}

/// How a job stands, in a word or with what went wrong.
pub(crate) fn state(state: &JobState) -> String {
    match state {
        JobState::Preparing { shards: 0, .. } => "listing".to_owned(),
        JobState::Preparing { indexed, shards, .. } => format!("indexing {indexed}/{shards}"),
        JobState::Running => "running".to_owned(),
        JobState::Completed => "completed".to_owned(),
        JobState::Failed(sentence) => format!("failed: {sentence}"),
        JobState::Cancelled => "cancelled".to_owned(),
    }
}

/// The present epoch of all, and the share of the job's rows that lies behind its consumers.
fn progress(job: &JobStatus) -> (String, String) {
    let (Some(layout), Some(position)) = (&job.layout, &job.position) else {
        return (format!("-/{}", job.epochs), "-".to_owned());
    };
    let streams = || position.streams.iter().zip(0..);
    let epoch = position
        .streams
        .iter()
        .map(|stream| stream.epoch)
        .min()
        .unwrap_or(0)
        .min(job.epochs.saturating_sub(1));
    let per_epoch: u64 = streams().map(|(_, stream)| layout.stream_rows(stream)).sum();
    let all = per_epoch * u64::from(layout.epochs);
    let behind = |(place, stream): (&feedline_data::layout::StreamPosition, u32)| {
        u64::from(place.epoch) * layout.stream_rows(stream) + place.row
    };
    let open: u64 = position.open.iter().map(|range| range.to - range.from).sum();
    let done = streams().map(behind).sum::<u64>().saturating_sub(open).min(all);
    let share = if all == 0 { 100.0 } else { done as f64 / all as f64 * 100.0 };
    (format!("{}/{}", epoch + 1, job.epochs), format!("{share:.0} %"))
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use feedline_data::ids::JobId;
    use feedline_data::layout::Layout;
    use feedline_data::messages::{ConsumerStats, StoreStats};
    use feedline_data::pipeline::Remainder;

    use super::*;

    fn job(id: u64, state: JobState) -> JobStatus {
        JobStatus {
            job: JobId(id),
            tenant: String::new(),
            name: format!("job-{id}"),
            state,
            epochs: 2,
            consumers: 1,
            dataset: None,
            layout: None,
            position: None,
            operators: Vec::new(),
            store: StoreStats::default(),
            worker_cpu: Vec::new(),
            delivered: ConsumerStats { rows: id * 100, ..ConsumerStats::default() },
            worker_peak_rss_bytes: Vec::new(),
            coordinator_peak_rss_bytes: 0,
            workers: 1,
            settled: true,
            slot_owners: Vec::new(),
        }
    }

    #[test]
    fn the_table_shows_every_state() {
        let jobs = [
            job(1, JobState::Preparing { indexed: 0, shards: 0, workers: 1 }),
            job(2, JobState::Preparing { indexed: 3, shards: 10, workers: 1 }),
            job(26, JobState::Failed("no rows".to_owned())),
        ];
        expect![[r#"
            id  name    state            epoch  done  consumers  rows
             1  job-1   listing            -/2     -          1   100
             2  job-2   indexing 3/10      -/2     -          1   200
            1a  job-26  failed: no rows    -/2     -          1  2600
        "#]]
        .assert_eq(&render(&jobs));
        assert_eq!(render(&[]), "no jobs\n");
    }

    #[test]
    fn one_job_is_a_line_for_each_value() {
        let shown = render_one(&JobStatus { slot_owners: vec![(0, 3)], ..job(26, JobState::Running) });
        expect![[r#"
            id              1a
            tenant          -
            name            job-26
            state           running
            epoch           -/2
            done            -
            consumers       1
            workers         1
            rows            2600
            batches         0
            slots of ranks  0:3
        "#]]
        .assert_eq(&shown);
    }

    #[test]
    fn jobs_of_several_tenants_are_told_apart() {
        let of =
            |id: u64, tenant: &str| JobStatus { tenant: tenant.to_owned(), ..job(id, JobState::Running) };
        assert_eq!(render(&[of(1, "vision"), of(2, "vision")]).find("vision"), None, "there is but one");
        expect![[r#"
            id  tenant  name   state    epoch  done  consumers  rows
             1  vision  job-1  running    -/2     -          1   100
             2  -       job-2  running    -/2     -          1   200
        "#]]
        .assert_eq(&render(&[of(1, "vision"), of(2, "")]));
    }

    #[test]
    fn slots_and_changed_weights_are_shown_where_a_job_has_them() {
        let layout = Layout {
            mix: vec![MixChange { pass: 0, place: 500, weights: vec![3.0, 0.5] }],
            dataset_rows: 1000,
            passes: 1,
            epochs: 2,
            streams: 1,
            batch_rows: 10,
            remainder: Remainder::Emit,
            changes_rows: false,
            split_rows: 100,
            group_rows: 100,
            coordinated: false,
        };
        let jobs = [
            JobStatus { slot_owners: vec![(0, 3), (2, 1)], ..job(1, JobState::Running) },
            JobStatus { layout: Some(layout), ..job(2, JobState::Running) },
        ];
        expect![[r#"
            id  name   state    epoch  done  consumers  rows  slots of ranks  weights
             1  job-1  running    -/2     -          1   100         0:3 2:1        -
             2  job-2  running    -/2     -          1   200               -    3,0.5
        "#]]
        .assert_eq(&render(&jobs));
    }
}
