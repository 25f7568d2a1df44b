//! Flags of the roles: `feedline coordinator`, `feedline worker` and `feedline up`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{
    CacheArgs, ClusterArgs, FunctionArgs, GraceArgs, GuardArgs, LimitArgs, LocalArgs, RoomArgs, SecretArgs,
    StoreArgs, SwitchArg, TenantArgs,
};
use crate::local_listener::TransportArg;

/// What `feedline coordinator` is asked for.
#[derive(Args, Debug, Clone)]
#[command(after_help = "Prints `feedline coordinator listening on HOST:PORT` once it is ready. \
    SIGTERM and SIGINT end it in order, within --grace; one that leads has another lead first.\n\n\
    Examples:\n  feedline coordinator --data-dir /var/lib/feedline\n  \
    feedline coordinator --listen 10.0.0.1:7070 --data-dir /var/lib/feedline \\\n    \
    --peers https://10.0.0.1:7070,https://10.0.0.2:7070,https://10.0.0.3:7070 \\\n    \
    --secret-file keys/secret --tls-ca keys/ca.pem --tls-cert keys/role.pem --tls-key keys/role-key.pem")]
pub(crate) struct CoordinatorArgs {
    /// Address to listen on for workers and consumers; port 0 takes a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7070")]
    pub(crate) listen: String,
    /// All coordinators of the cluster, this one among them, as they reach each other: three survive the loss of one,
    /// five of two [default: this one alone].
    #[arg(long, value_name = "URL,URL", value_delimiter = ',')]
    pub(crate) peers: Vec<String>,
    /// Address at which the other coordinators, workers and consumers reach this one [default: http:// and the address
    /// it listens on].
    #[arg(long, value_name = "URL")]
    pub(crate) advertise: Option<String>,
    /// Directory of the log of decisions, from which a restarted coordinator goes on.
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: PathBuf,
    /// Directory of saved dataset indexes [default: index in the data directory].
    #[arg(long, value_name = "DIR")]
    pub(crate) index_dir: Option<PathBuf>,
    /// Time without contact after which a worker's splits are given to others.
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = crate::size::parse_duration)]
    pub(crate) worker_lease: Duration,
    /// Whether rows are also kept in caches where no pipeline asks for it and the model finds it worth while.
    #[arg(long, value_enum, value_name = "SWITCH", default_value_t)]
    pub(crate) auto_cache: SwitchArg,
    /// What pipelines may read.
    #[command(flatten)]
    pub(crate) stores: StoreArgs,
    /// YAML file of prices and of how plans weigh things, as `settings` in a cluster file of `feedline plan` [default: the
    /// proportions of large clouds' prices].
    #[arg(long, value_name = "FILE")]
    pub(crate) planner: Option<PathBuf>,
    /// Quotas of tenants.
    #[command(flatten)]
    pub(crate) tenants: TenantArgs,
    /// How much it takes on.
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
    /// Its end.
    #[command(flatten)]
    pub(crate) end: GraceArgs,
    /// Address to serve /metrics, /healthz and /readyz on, such as 127.0.0.1:7170 [default: none].
    #[arg(long, visible_alias = "metrics", value_name = "ADDR")]
    pub(crate) http: Option<String>,
    /// The secret that coordinators share.
    #[command(flatten)]
    pub(crate) secret: SecretArgs,
    /// Who is served.
    #[command(flatten)]
    pub(crate) guard: GuardArgs,
}

/// What `feedline worker` is asked for.
#[derive(Args, Debug, Clone)]
#[command(
    after_help = "Prints `feedline worker listening on HOST:PORT` once it is ready. SIGTERM and SIGINT make it \
    take no new splits, serve those that it holds for at most --grace, and end.\n\
    Credentials of object stores come from the environment, AWS_*, GOOGLE_* and AZURE_*, or by name from \
    --credentials.\n\n\
    Example:\n  feedline worker --coordinator https://10.0.0.1:7070 --listen 10.0.0.7:7071 --memory 8GiB \\\n    \
    --token-file keys/worker.token --tls-ca keys/ca.pem --tls-cert keys/role.pem --tls-key keys/role-key.pem"
)]
pub(crate) struct WorkerArgs {
    /// The cluster.
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// Address to listen on for consumers; port 0 takes a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    pub(crate) listen: String,
    /// Address at which consumers reach this worker [default: http:// and the address it listens on].
    #[arg(long, value_name = "URL")]
    pub(crate) advertise: Option<String>,
    /// Cores that run operators [default: those this process may use].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) cores: Option<u32>,
    /// Bandwidth of its network per second and direction, such as 1.25GB, so that plans reckon with it; 0: it never binds
    /// [default: that of the fastest network card that tells, and 0 for a worker that listens on loopback].
    #[arg(long, value_name = "SIZE", value_parser = crate::size::parse_bandwidth)]
    pub(crate) nic: Option<u64>,
    /// Memory for batches and blocks, such as 4GiB [default: 1 GiB, or a quarter of the machine's where that is less].
    #[arg(long, value_name = "SIZE", value_parser = crate::size::parse_bytes)]
    pub(crate) memory: Option<u64>,
    /// Row caches.
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
    /// How much it takes on.
    #[command(flatten)]
    pub(crate) room: RoomArgs,
    /// What pipelines may read, and with which keys.
    #[command(flatten)]
    pub(crate) stores: StoreArgs,
    /// Time for which a failing request to an object store is retried before its job fails; one more pause and one more
    /// request may follow, at most 35s.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = crate::size::parse_duration)]
    pub(crate) store_retry_timeout: Duration,
    /// Python functions of pipelines.
    #[command(flatten)]
    pub(crate) functions: FunctionArgs,
    /// Time to serve what it holds after SIGTERM or SIGINT.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = crate::size::parse_duration)]
    pub(crate) grace: Duration,
    /// Address to serve /metrics, /healthz and /readyz on, such as 127.0.0.1:7171 [default: none].
    #[arg(long, visible_alias = "metrics", value_name = "ADDR")]
    pub(crate) http: Option<String>,
    /// Ways that are offered to consumers on this host.
    #[arg(long, hide = true, value_enum, value_name = "WAY", default_value_t)]
    pub(crate) transport: TransportArg,
    /// Whether operators are measured.
    #[arg(long, hide = true, value_enum, value_name = "SWITCH", default_value_t)]
    pub(crate) trace: SwitchArg,
    /// Disk that the rows of all workers may take that are started together [default: --cache-disk].
    #[arg(long, hide = true, value_name = "SIZE", value_parser = crate::size::parse_bytes)]
    pub(crate) cache_disk_together: Option<u64>,
    /// Whether plans may keep rows in --cache-dir for pipelines that do not ask for it.
    #[arg(long, hide = true, value_enum, value_name = "SWITCH", default_value_t)]
    pub(crate) cache_dir_for_plans: SwitchArg,
    /// Host at which consumers reach this worker, at the port that it listens on.
    #[arg(long, hide = true, value_name = "HOST", conflicts_with = "advertise")]
    pub(crate) advertise_host: Option<String>,
    /// A file or folder that no pipeline reads, beside the worker's own: those of whoever started it; `*` stands for any text.
    #[arg(long, hide = true, value_name = "PATH")]
    pub(crate) own_file: Vec<PathBuf>,
    /// Run until standard input ends, as after SIGTERM.
    #[arg(long, hide = true)]
    pub(crate) while_input: bool,
    /// Who is served, and what is shown to coordinators.
    #[command(flatten)]
    pub(crate) guard: GuardArgs,
}

/// What `feedline up` is asked for.
#[derive(Args, Debug, Clone)]
#[command(
    after_help = "Prints `feedline coordinator listening on HOST:PORT`, and a line for each worker, once all are \
    ready. SIGTERM and SIGINT end it in order.\n\n\
    Examples:\n  feedline up --workers 2 & feedline run pipeline.yaml --coordinator http://127.0.0.1:7070\n  \
    feedline up --autoscale 1..8 --cores 8"
)]
pub(crate) struct UpArgs {
    /// Address of the coordinator; port 0 takes a free one. Workers take free ports of the same host.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7070")]
    pub(crate) listen: String,
    /// Host at which consumers reach the workers [default: the host of --listen].
    #[arg(long, value_name = "HOST")]
    pub(crate) advertise: Option<String>,
    /// Directory of the log of decisions [default: kept in memory, jobs end with the process].
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Resources of the workers.
    #[command(flatten)]
    pub(crate) local: LocalArgs,
    /// Run as many workers as the jobs need, within these bounds, each a process of its own with the same part of
    /// --cores, --memory and --cache-disk.
    #[arg(long, value_name = "MIN..MAX", value_parser = parse_bounds, conflicts_with = "workers")]
    pub(crate) autoscale: Option<(u32, u32)>,
    /// Time for which fewer workers must have been enough before --autoscale lets some go.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = crate::size::parse_duration)]
    pub(crate) shrink_after: Duration,
    /// Time that workers have to serve what they hold after SIGTERM or SIGINT; with --autoscale they end two seconds, or half
    /// of it, sooner.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = crate::size::parse_duration)]
    pub(crate) grace: Duration,
    /// YAML file of prices and of how plans weigh things, as `settings` in a cluster file of `feedline plan` [default: the
    /// proportions of large clouds' prices].
    #[arg(long, value_name = "FILE")]
    pub(crate) planner: Option<PathBuf>,
    /// Quotas of tenants.
    #[command(flatten)]
    pub(crate) tenants: TenantArgs,
    /// How much the coordinator takes on.
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
    /// Address to serve /metrics, /healthz and /readyz on, such as 127.0.0.1:7170 [default: none].
    #[arg(long, visible_alias = "metrics", value_name = "ADDR")]
    pub(crate) http: Option<String>,
    /// Ways that are offered to consumers on this host.
    #[arg(long, hide = true, value_enum, value_name = "WAY", default_value_t)]
    pub(crate) transport: TransportArg,
    /// The cluster's secret.
    #[command(flatten)]
    pub(crate) secret: SecretArgs,
    /// Who is served.
    #[command(flatten)]
    pub(crate) guard: GuardArgs,
}

/// The most workers of one host.
const MOST_WORKERS: u32 = 256;

fn parse_bounds(text: &str) -> Result<(u32, u32), String> {
    let bounds = text.split_once("..").and_then(|(min, max)| {
        let max = max.strip_prefix('=').unwrap_or(max);
        Some((min.trim().parse::<u32>().ok()?, max.trim().parse::<u32>().ok()?))
    });
    match bounds {
        Some((min, max)) if min >= 1 && min <= max && max <= MOST_WORKERS => Ok((min, max)),
        _ => Err(format!("write the fewest and the most workers, from 1 to {MOST_WORKERS}, such as 1..8")),
    }
}

#[cfg(test)]
mod tests {
    use super::parse_bounds;

    #[test]
    fn bounds_of_workers() {
        assert_eq!(parse_bounds("1..8"), Ok((1, 8)));
        assert_eq!(parse_bounds("3..3"), Ok((3, 3)));
        assert_eq!(parse_bounds("2..=4"), Ok((2, 4)));
        for wrong in ["", "4", "0..4", "5..4", "1..1000", "a..b", "1-8"] {
            assert!(parse_bounds(wrong).is_err(), "{wrong}");
        }
    }
}
