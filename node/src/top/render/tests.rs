//! Tests of the view of a busy cluster and of an empty one.

use expect_test::expect;
use feedline_data::ids::{JobId, WorkerId};
use feedline_data::memory::{MemoryAccount, MemoryUsage};
use feedline_data::pipeline::{CacheEncoding, CacheTier};
use feedline_data::view::WantedWorkers;
use feedline_data::view::{Bottleneck, BottleneckKind};
use feedline_data::view::{CacheView, PoolDecision, WorkerJobUsage};

use super::*;

fn job(id: u64, state: JobState) -> JobView {
    JobView {
        job: JobId(id),
        tenant: String::new(),
        name: format!("job-{id}"),
        state,
        consumers: 1,
        workers: 0,
        rows: 100 * id,
        rows_per_s: 0.0,
        demand_rows_per_s: None,
        fed_fraction: None,
        stall_share: None,
        cores: 0.0,
        bottleneck: None,
        store_limit: None,
    }
}

fn worker(id: u64, used_cores: f64) -> WorkerView {
    WorkerView {
        worker: WorkerId(id),
        address: format!("http://10.0.0.{id}:7071"),
        worker_type: "8 cores, 4.0 GiB".to_owned(),
        cores: 8,
        used_cores,
        memory_bytes: 4 << 30,
        finished_bytes: 1 << 30,
        memory: vec![
            MemoryUsage { account: MemoryAccount::Batches, used_bytes: 1 << 30 },
            MemoryUsage { account: MemoryAccount::Blocks, used_bytes: 1 << 20 },
        ],
        peak_rss_bytes: Some(3 << 30),
        draining: false,
        memory_full: false,
        job_usage: vec![WorkerJobUsage { job: JobId(26), used_cores, finished_bytes: 1 << 30 }],
    }
}

fn view() -> ClusterView {
    let busy = JobView {
        workers: 2,
        consumers: 4,
        rows_per_s: 1234.5,
        demand_rows_per_s: Some(2000.0),
        fed_fraction: Some(0.617),
        stall_share: Some(0.25),
        cores: 12.5,
        bottleneck: Some(Bottleneck {
            kind: BottleneckKind::Cpu,
            operator: Some("decode_image".to_owned()),
            rows_per_s: 1250.0,
            explanation: "12.5 cores give 1250 rows/s".to_owned(),
        }),
        ..job(26, JobState::Running)
    };
    let idle = WorkerView { draining: true, job_usage: Vec::new(), peak_rss_bytes: None, ..worker(9, 0.0) };
    let ended = (1..=7).map(|id| job(id, JobState::Completed));
    let preparing = JobState::Preparing { indexed: 0, shards: 0, read_bytes: 0, total_bytes: 0, workers: 2 };
    let listing = job(8, preparing);
    ClusterView {
        now_ms: 60_000,
        jobs: ended.chain([listing, busy]).collect(),
        workers: vec![WorkerView { memory_full: true, ..worker(7, 7.52) }, idle],
        wanted: vec![WantedWorkers { worker_type: "8 cores, 4.0 GiB".to_owned(), live: 2, wanted: 3 }],
        caches: vec![CacheView {
            operator: "source".to_owned(),
            tier: CacheTier::Disk,
            encoding: CacheEncoding::Indexed,
            bytes: 26e9,
            hit_rate: Some(0.93),
            jobs: vec![JobId(26)],
        }],
        reasons: vec!["the least fed job gets 62 % of what it could take".to_owned()],
        scaling: Some("one more worker was asked for".to_owned()),
        pools: vec![
            PoolDecision { pool: "spot".to_owned(), present: 2, wanted: 3, is_known: true },
            PoolDecision { pool: String::new(), present: 1, wanted: 1, is_known: false },
        ],
    }
}

#[test]
fn a_busy_cluster_has_tables_of_jobs_workers_and_caches() {
    expect![[r#"
        2 jobs, 2 workers

        job  name    state      fed               rows/s  demand  stalled  cores  workers  consumers  rows  bottleneck
         1a  job-26  running    ██████░░░░  62 %    1234    2000     25 %   12.5        2          4  2600  cpu of decode_image: 12.5 cores give 1250 rows/s
          8  job-8   listing    -                      -       -        -      -        0          1   800  -
          7  job-7   completed  -                      -       -        -      -        0          1   700  -
          6  job-6   completed  -                      -       -        -      -        0          1   600  -
          5  job-5   completed  -                      -       -        -      -        0          1   500  -
          4  job-4   completed  -                      -       -        -      -        0          1   400  -
          3  job-3   completed  -                      -       -        -      -        0          1   300  -
        and 2 jobs ended earlier

        worker  address               cpu            cores    held  memory  largest account  peak rss  jobs  state
             7  http://10.0.0.7:7071  █████████░  7.5 of 8  1.1 GB  4.3 GB  batches 1.1 GB     3.2 GB  1a    memory full
             9  http://10.0.0.9:7071  ░░░░░░░░░░  0.0 of 8  1.1 GB  4.3 GB  batches 1.1 GB          -  -     draining

        pool     workers  wanted  demand
        spot           2       3  known
        default        1       1  unknown

        cached  encoding      tier     size  hits  read by
        source  indexed JPEG  disk  26.0 GB  93 %  1a

        plan
          2 workers of 8 cores, 4.0 GiB: 3 requested
          one more worker was asked for
          the least fed job gets 62 % of what it could take
    "#]].assert_eq(&render(&view()));
}

#[test]
fn the_table_has_a_tenant_column_for_several_tenants() {
    let job_of = |id: u64, tenant: &str| JobView { tenant: tenant.to_owned(), ..job(id, JobState::Running) };
    let view = ClusterView { jobs: vec![job_of(1, "vision"), job_of(2, "")], ..ClusterView::default() };
    expect![[r#"
        2 jobs, 0 workers

        job  tenant  name   state    fed  rows/s  demand  stalled  cores  workers  consumers  rows  bottleneck
          1  vision  job-1  running  -       0.0       -        -      -        0          1   100  -
          2  -       job-2  running  -       0.0       -        -      -        0          1   200  -
    "#]]
    .assert_eq(&render(&view));
}

#[test]
fn the_plan_names_the_store_that_limits_a_job() {
    let limit = "store s3://bucket limits the job to 25 requests/s".to_owned();
    let limited = JobView { store_limit: Some(limit), ..job(1, JobState::Running) };
    let view = ClusterView { jobs: vec![limited, job(2, JobState::Running)], ..ClusterView::default() };
    let text = render(&view);
    let (_, plan) = text.split_once("\nplan\n").expect("the plan has a line");
    assert_eq!(plan, "  job-1: store s3://bucket limits the job to 25 requests/s\n");
}

#[test]
fn a_running_job_without_rows_has_a_rate_of_zero() {
    let rate = |state: JobState| job_line(&job(1, state))[4].clone();
    assert_eq!((rate(JobState::Running).as_str(), rate(JobState::Completed).as_str()), ("0.0", "-"));
}

#[test]
fn an_empty_cluster_has_no_tables() {
    assert_eq!(render(&ClusterView::default()), "0 jobs, 0 workers\n");
}

#[test]
fn text_is_clipped_to_a_small_terminal() {
    let lines = clip_to_screen("one\ntwo is long\nthree\nfour\n", (14, 3));
    assert_eq!(lines, ["one", "two is long", "2 lines more; "]);
    assert_eq!(clip_to_screen("one\u{1b}[2J\n", (80, 24)), ["one [2J", "q quits"]);
    assert_eq!(clip_to_screen("one\n", (80, 1)), ["1 line more; q quits"]);
}

#[test]
fn a_bar_is_full_from_a_fraction_of_one() {
    assert_eq!((bar(0.0), bar(0.44), bar(7.0)), ("░".repeat(10), "████░░░░░░".to_owned(), "█".repeat(10)));
}
