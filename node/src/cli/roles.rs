//! Flags of the roles: `feedline coordinator`, `feedline worker` and `feedline up`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{
    AutoCacheArgs, CacheArgs, ClusterArgs, ClusterLimitArgs, CoordinatorGraceArgs, FetchLimitArgs,
    FunctionArgs, GivenFlags, LocalArgs, PoolArgs, ScalingArgs, SecretArgs, ServerAccessArgs, StoreArgs,
    SwitchArg, TenantArgs, WorkerStoreArgs,
};
use crate::local_listener::TransportArg;
use crate::memory_size::{MemorySize, parse_memory_size};

/// Arguments of `feedline coordinator`.
#[derive(Args, Debug, Clone)]
#[command(after_help = "Prints `feedline coordinator listening on HOST:PORT` when it is ready. \
    SIGTERM and SIGINT shut it down within --grace; a leader transfers leadership first.\n\n\
    Examples:\n  feedline coordinator --data-dir /var/lib/feedline\n  \
    feedline coordinator --listen 10.0.0.1:7070 --data-dir /var/lib/feedline \\\n    \
    --peers https://10.0.0.1:7070,https://10.0.0.2:7070,https://10.0.0.3:7070 \\\n    \
    --secret-file keys/secret --tls-ca keys/ca.pem --tls-cert keys/role.pem --tls-key keys/role-key.pem")]
pub(crate) struct CoordinatorArgs {
    /// Address to listen on for workers and consumers, such as 0.0.0.0:7070, or `[::]:7070` for IPv4 and IPv6; port 0 selects
    /// a free port.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7070")]
    pub(crate) listen: String,
    /// URLs at which all coordinators of the cluster, including this one, reach each other. Three coordinators tolerate the
    /// loss of one, five the loss of two [default: a single coordinator].
    #[arg(long, value_name = "URL,URL", value_delimiter = ',')]
    pub(crate) peers: Vec<String>,
    /// URL at which other coordinators, workers and consumers reach this coordinator [default: http:// and the address
    /// of --listen].
    #[arg(long, value_name = "URL")]
    pub(crate) advertise: Option<String>,
    /// Directory for the log, from which a restarted coordinator recovers.
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: PathBuf,
    /// Directory for saved dataset indexes [default: index in the data directory].
    #[arg(long, value_name = "DIR")]
    pub(crate) index_dir: Option<PathBuf>,
    /// Time after which a worker's leases expire if the worker sends no report.
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = crate::size::parse_duration)]
    pub(crate) worker_lease: Duration,
    #[command(flatten)]
    pub(crate) auto_cache: AutoCacheArgs,
    #[command(flatten)]
    pub(crate) stores: StoreArgs,
    /// YAML file with the planner's settings, such as prices, in the format of `settings` in a cluster file of
    /// `feedline plan`
    /// [default: price ratios of large cloud providers].
    #[arg(long, value_name = "FILE")]
    pub(crate) planner: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) tenants: TenantArgs,
    #[command(flatten)]
    pub(crate) limits: ClusterLimitArgs,
    #[command(flatten)]
    pub(crate) shutdown: CoordinatorGraceArgs,
    /// Address on which to serve /metrics, /healthz, /readyz and /startupz, such as 127.0.0.1:7170 [default: none].
    #[arg(long, visible_alias = "metrics", value_name = "ADDR")]
    pub(crate) http: Option<String>,
    /// Protocol version of this coordinator, for tests of upgrades.
    #[arg(long, hide = true, value_name = "N", default_value_t = feedline_proto::PROTOCOL_VERSION)]
    pub(crate) protocol_version: u32,
    #[command(flatten)]
    pub(crate) health: HealthArgs,
    #[command(flatten)]
    pub(crate) scaling: ScalingArgs,
    #[command(flatten)]
    pub(crate) secret: SecretArgs,
    #[command(flatten)]
    pub(crate) server_access: ServerAccessArgs,
}

/// Arguments of `feedline worker`.
#[derive(Args, Debug, Clone)]
#[command(
    after_help = "Prints `feedline worker listening on HOST:PORT` when it is ready. After SIGTERM or SIGINT it \
    accepts no new splits, serves the splits that it has computed for at most --grace, and exits.\n\
    Object store credentials come from the environment variables AWS_*, GOOGLE_* and AZURE_*, or by name from --credentials.\n\n\
    Example:\n  feedline worker --coordinator https://10.0.0.1:7070 --listen 10.0.0.7:7071 --memory 8GiB \\\n    \
    --token-file keys/worker.token --tls-ca keys/ca.pem --tls-cert keys/role.pem --tls-key keys/role-key.pem"
)]
pub(crate) struct WorkerArgs {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// Address to listen on for consumers, such as 0.0.0.0:7071, or `[::]:7071` for IPv4 and IPv6; port 0 selects a free port.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    pub(crate) listen: String,
    /// URL at which consumers reach this worker [default: http:// and the address of --listen].
    #[arg(long, value_name = "URL")]
    pub(crate) advertise: Option<String>,
    /// Name or address at which consumers reach this worker, with the port of --listen, such as the address of a pod.
    #[arg(long, value_name = "HOST", conflicts_with = "advertise", value_parser = crate::listen::parse_host)]
    pub(crate) advertise_host: Option<String>,
    /// Name that consumers expect in the certificate of this worker. With one name for all workers, one certificate
    /// suffices, even if their addresses change [default: the host of the URL].
    #[arg(long, value_name = "NAME")]
    pub(crate) tls_name: Option<String>,
    #[command(flatten)]
    pub(crate) pool: PoolArgs,
    /// Cores that run operators [default: the CPU limit of the container, otherwise its CPU request in Kubernetes,
    /// otherwise all cores that this process may use].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) cores: Option<u32>,
    /// Network bandwidth per second in each direction, such as 1.25GB, for the planner; 0 means unlimited [default: the
    /// bandwidth of the fastest network card, or 0 on a loopback address].
    #[arg(long, value_name = "SIZE", value_parser = crate::size::parse_bandwidth)]
    pub(crate) nic: Option<u64>,
    /// Memory for batches and blocks, such as 4GiB, or a percentage of the memory limit of the container or of the
    /// machine's memory, such as 70% [default: 1 GiB, or a quarter of this memory if that is less].
    #[arg(long, value_name = "SIZE", value_parser = parse_memory_size)]
    pub(crate) memory: Option<MemorySize>,
    /// Part of --memory that the topologies and features of graphs may use: a size or a percentage, as for --memory
    /// [default: half of --memory].
    #[arg(long, value_name = "SIZE", value_parser = parse_memory_size)]
    pub(crate) graph_memory: Option<MemorySize>,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
    #[command(flatten)]
    pub(crate) fetch_limit: FetchLimitArgs,
    #[command(flatten)]
    pub(crate) stores: WorkerStoreArgs,
    #[command(flatten)]
    pub(crate) functions: FunctionArgs,
    /// Time to serve computed splits after SIGTERM or SIGINT.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = crate::size::parse_duration)]
    pub(crate) grace: Duration,
    /// Time for which the worker retries while the coordinators have another protocol version, as during a rolling
    /// upgrade. After this time, the worker exits with an error.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = crate::size::parse_duration)]
    pub(crate) upgrade_timeout: Duration,
    /// Address on which to serve /metrics, /healthz, /readyz and /startupz, such as 127.0.0.1:7171 [default: none].
    #[arg(long, visible_alias = "metrics", value_name = "ADDR")]
    pub(crate) http: Option<String>,
    #[command(flatten)]
    pub(crate) health: HealthArgs,
    /// Transports for consumers on this host. Except with `tcp`, a worker creates a directory for its sockets in $TMPDIR or
    /// /tmp.
    #[arg(long, value_enum, value_name = "TRANSPORT", default_value_t)]
    pub(crate) transport: TransportArg,
    /// Measure operators.
    #[arg(long, hide = true, value_enum, value_name = "SWITCH", default_value_t)]
    pub(crate) trace: SwitchArg,
    /// Size of the disk cache of all workers that `feedline up` starts [default: --cache-disk].
    #[arg(long, hide = true, value_name = "SIZE", value_parser = crate::size::parse_bytes)]
    pub(crate) cache_disk_together: Option<u64>,
    /// Allow the plan to cache rows of pipelines without `cache` in --cache-dir.
    #[arg(long, hide = true, value_enum, value_name = "SWITCH", default_value_t)]
    pub(crate) planner_uses_cache_dir: SwitchArg,
    /// Another file or directory that no pipeline may read, such as files of `feedline up`; `*` matches any text.
    #[arg(long, hide = true, value_name = "PATH")]
    pub(crate) own_file: Vec<PathBuf>,
    /// Shut down when standard input closes, as after SIGTERM.
    #[arg(long, hide = true)]
    pub(crate) while_input: bool,
    #[command(flatten)]
    pub(crate) server_access: ServerAccessArgs,
}

/// Arguments of `feedline up`.
#[derive(Args, Debug, Clone)]
#[command(
    after_help = "Prints `feedline coordinator listening on HOST:PORT`, and a line for each worker, when all are \
    ready. SIGTERM and SIGINT shut them down within --grace.\n\n\
    Examples:\n  feedline up --workers 2 & feedline run pipeline.yaml --coordinator http://127.0.0.1:7070\n  \
    feedline up --autoscale 1..8 --cores 8"
)]
pub(crate) struct UpArgs {
    // The first field, because parsing a field removes its flags.
    #[command(flatten)]
    pub(crate) given: GivenFlags,
    /// Address of the coordinator; port 0 selects a free port. Workers listen on free ports of the same host.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7070")]
    pub(crate) listen: String,
    /// Host at which consumers reach the workers [default: the host of --listen].
    #[arg(long, value_name = "HOST", value_parser = crate::listen::parse_host)]
    pub(crate) advertise: Option<String>,
    /// Directory for the log [default: none; jobs end with the process].
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) local: LocalArgs,
    #[command(flatten)]
    pub(crate) auto_cache: AutoCacheArgs,
    /// Run as many workers as the jobs need, within these bounds. Each worker is a separate process with an equal share of
    /// --cores, --memory and --cache-disk.
    #[arg(long, value_name = "MIN..MAX", value_parser = parse_worker_bounds, conflicts_with = "workers")]
    pub(crate) autoscale: Option<(u32, u32)>,
    /// Time for which a smaller number of workers must be sufficient before --autoscale stops surplus workers.
    #[arg(long, value_name = "TIME", default_value = "30s", requires = "autoscale", value_parser = crate::size::parse_duration)]
    pub(crate) shrink_after: Duration,
    /// Time for workers to serve computed splits after SIGTERM or SIGINT; with --autoscale, each worker process has two
    /// seconds less, but at least half of this time.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = crate::size::parse_duration)]
    pub(crate) grace: Duration,
    /// YAML file with the planner's settings, such as prices, in the format of `settings` in a cluster file of
    /// `feedline plan`
    /// [default: price ratios of large cloud providers].
    #[arg(long, value_name = "FILE")]
    pub(crate) planner: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) tenants: TenantArgs,
    #[command(flatten)]
    pub(crate) limits: ClusterLimitArgs,
    /// Address on which to serve /metrics, /healthz, /readyz and /startupz, such as 127.0.0.1:7170 [default: none].
    #[arg(long, visible_alias = "metrics", value_name = "ADDR")]
    pub(crate) http: Option<String>,
    #[command(flatten)]
    pub(crate) health: HealthArgs,
    /// Transports for consumers on this host. Except with `tcp`, a worker creates a directory for its sockets in $TMPDIR or
    /// /tmp.
    #[arg(long, value_enum, value_name = "TRANSPORT", default_value_t)]
    pub(crate) transport: TransportArg,
    #[command(flatten)]
    pub(crate) secret: SecretArgs,
    #[command(flatten)]
    pub(crate) server_access: ServerAccessArgs,
}

/// The server for the probes of an orchestrator.
#[derive(Args, Debug, Clone, Default)]
pub(crate) struct HealthArgs {
    /// Address on which to serve only /healthz, /readyz and /startupz, such as 0.0.0.0:7180. This server uses plain HTTP
    /// and accepts every client, also without --insecure [default: none].
    #[arg(long, value_name = "ADDR")]
    pub(crate) health: Option<String>,
}

/// Maximum number of workers of `feedline up --autoscale`.
const MAX_AUTOSCALED_WORKERS: u32 = 256;

fn parse_worker_bounds(text: &str) -> Result<(u32, u32), String> {
    let bounds = text.split_once("..").and_then(|(min, max)| {
        let max = max.strip_prefix('=').unwrap_or(max);
        Some((min.trim().parse::<u32>().ok()?, max.trim().parse::<u32>().ok()?))
    });
    match bounds {
        Some((min, max)) if min >= 1 && min <= max && max <= MAX_AUTOSCALED_WORKERS => Ok((min, max)),
        _ => Err(format!(
            "invalid bounds `{text}`: expected MIN..MAX with numbers from 1 to {MAX_AUTOSCALED_WORKERS}, such as 1..8"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::parse_worker_bounds;

    #[test]
    fn parse_worker_bounds_accepts_increasing_numbers_of_workers() {
        assert_eq!(parse_worker_bounds("1..8"), Ok((1, 8)));
        assert_eq!(parse_worker_bounds("3..3"), Ok((3, 3)));
        assert_eq!(parse_worker_bounds("2..=4"), Ok((2, 4)));
        for wrong in ["", "4", "0..4", "5..4", "1..1000", "a..b", "1-8"] {
            assert!(parse_worker_bounds(wrong).is_err(), "{wrong}");
        }
    }
}
