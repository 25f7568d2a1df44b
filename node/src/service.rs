//! Feedline inside another program, such as a Python interpreter: connects to a cluster, or runs all roles in this process.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Parser;
use feedline_client::WorkerDirectory;
use feedline_data::ids::SessionId;
use feedline_data::pipeline::Pipeline;
use feedline_proto::CoordinatorService;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::access::ServerSecurity;
use crate::cli::{self, AutoCacheArgs, LocalArgs, RemoteArgs, ServerAccessArgs};
use crate::cluster::LocalCluster;
use crate::failure::Failure;
use crate::http::{self, HttpAddresses, HttpServers};
use crate::local_listener::TransportArg;
use crate::{entropy, logging, pipeline_file};

/// A service that runs the jobs of a program.
pub struct JobService {
    cluster: LocalCluster,
    http: HttpServers,
    /// Reloads the certificate of the HTTP server.
    _security: ServerSecurity,
}

/// Settings of a service. Each field corresponds to a flag of `feedline run` that selects or configures a cluster. The
/// flags define the defaults and the allowed combinations.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "`feedline run --help` describes each flag")]
pub struct ServiceSettings {
    pub coordinator: Vec<String>,
    pub token_file: Option<PathBuf>,
    pub tls_ca: Option<PathBuf>,
    pub tls_cert: Option<PathBuf>,
    pub tls_key: Option<PathBuf>,
    pub transport: Option<String>,
    pub http: Option<String>,
    pub workers: Option<u32>,
    pub pool: Option<String>,
    pub cores: Option<u32>,
    pub memory: Option<ByteSize>,
    pub graph_memory: Option<ByteSize>,
    pub index_dir: Option<PathBuf>,
    pub cache_dir: Option<PathBuf>,
    pub cache_disk: Option<ByteSize>,
    pub cache_store: Option<String>,
    pub cache_store_limit: Option<ByteSize>,
    pub auto_cache: Option<Switch>,
    pub credentials: Option<PathBuf>,
    pub allow_url: Vec<String>,
    pub allow_metadata_addresses: bool,
    pub store_retry_timeout: Option<String>,
    pub functions: Option<Switch>,
    pub python: Option<PathBuf>,
    pub trace: Option<Switch>,
}

/// A size in bytes: a number, or text with a unit, such as `4GiB`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ByteSize {
    /// Bytes.
    Bytes(u64),
    /// A number with a unit.
    Text(String),
}

/// Whether a feature is enabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "bool", rename_all = "lowercase")]
pub enum Switch {
    /// Enabled.
    On,
    /// Disabled.
    Off,
}

impl From<bool> for Switch {
    fn from(is_on: bool) -> Self {
        if is_on { Self::On } else { Self::Off }
    }
}

impl ServiceSettings {
    /// Renders the settings as flags of `feedline run`.
    fn flags(&self) -> Vec<String> {
        let Ok(Value::Object(fields)) = serde_json::to_value(self) else { return Vec::new() };
        let flag = |name: &str| format!("--{}", name.replace('_', "-"));
        let render = |(name, value): (String, Value)| match value {
            Value::Bool(true) => vec![flag(&name)],
            Value::String(text) => vec![format!("{}={text}", flag(&name))],
            Value::Number(number) => vec![format!("{}={number}", flag(&name))],
            Value::Array(values) => {
                let texts = values.iter().filter_map(Value::as_str);
                texts.map(|text| format!("{}={text}", flag(&name))).collect()
            }
            Value::Bool(false) | Value::Null | Value::Object(_) => Vec::new(),
        };
        fields.into_iter().flat_map(render).collect()
    }
}

/// The flags that correspond to [`ServiceSettings`].
#[derive(Parser, Debug)]
#[command(no_binary_name = true, disable_help_flag = true, disable_version_flag = true)]
struct ServiceArgs {
    #[command(flatten)]
    remote: RemoteArgs,
    #[command(flatten)]
    local: LocalArgs,
    #[command(flatten)]
    auto_cache: AutoCacheArgs,
    #[command(flatten)]
    server_access: ServerAccessArgs,
    #[arg(long)]
    http: Option<String>,
    #[arg(long, value_enum, default_value_t)]
    transport: TransportArg,
}

impl JobService {
    /// Connects to the cluster of `settings.coordinator`, or starts all roles in this process. Must be called inside a
    /// runtime from [`Self::start_runtime`], which runs the roles.
    ///
    /// # Errors
    /// Returns a message if a setting is invalid, no coordinator answers, or a role cannot start.
    pub async fn open(settings: &ServiceSettings) -> Result<Self, Failure> {
        let parsed = cli::parse::<ServiceArgs>(settings.flags());
        let args = parsed.map_err(|error| Failure::invalid_usage(first_line(&error)))?.args;
        let security = ServerSecurity::new(&args.server_access)?;
        let addresses = HttpAddresses { http: args.http.as_deref(), health: None };
        let http = http::start(addresses, &security, None).await?;
        let cluster = LocalCluster::open(
            &args.remote.urls(),
            &args.server_access.access,
            (&args.local, args.auto_cache.auto_cache),
        )
        .await?;
        http.set_ready(Box::new(|| Ok(())));
        http.export_jobs(cluster.local_coordinator());
        Ok(Self { cluster: cluster.with_transport(args.transport), http, _security: security })
    }

    /// Starts the runtime of this process.
    ///
    /// # Errors
    /// Returns an error if the system cannot start threads.
    pub fn start_runtime() -> io::Result<Runtime> {
        crate::start_runtime()
    }

    /// Starts the log of this process on standard error. `FEEDLINE_LOG` filters lines; the default level is `warn`.
    /// Does nothing if the program has already configured logging.
    pub fn start_log() {
        // Report an invalid filter. An existing log is not an error.
        if let Err(failure @ Failure::InvalidUsage(_)) = logging::start(logging::LogFormat::Text, "warn") {
            eprintln!("feedline: {failure}");
        }
    }

    /// Parses the pipeline in `text`, and resolves relative paths against the working directory. Error messages contain
    /// `name`.
    ///
    /// # Errors
    /// Returns a message with the line.
    pub fn pipeline(text: &str, name: &str) -> Result<Pipeline, Failure> {
        pipeline_file::resolve(Pipeline::from_yaml(text, name).map_err(Failure::invalid_usage)?)
    }

    /// Parses the argument `name`, which is a size such as `4GiB`, or a number of bytes.
    ///
    /// # Errors
    /// Returns a message that names the argument and the units.
    pub fn size(name: &str, text: &str) -> Result<u64, Failure> {
        crate::size::parse_bytes(text).map_err(|message| Failure::invalid_usage(format!("{name}: {message}")))
    }

    /// Returns the id of a new consumer session. It is larger than the ids of all earlier sessions if the clocks agree.
    pub fn session_id() -> SessionId {
        entropy::session_id()
    }

    /// Returns the coordinator.
    pub fn coordinator(&self) -> Arc<dyn CoordinatorService> {
        Arc::clone(&self.cluster.coordinator)
    }

    /// Returns the directory that resolves worker addresses.
    pub fn workers(&self) -> Arc<dyn WorkerDirectory> {
        self.cluster.directory()
    }

    /// Whether all roles run in this process.
    pub fn is_embedded(&self) -> bool {
        self.cluster.is_embedded()
    }

    /// Shuts down the roles in this process. A remote cluster continues.
    pub async fn shutdown(self) {
        self.cluster.shutdown().await;
        self.http.shutdown().await;
    }
}

/// Returns the first line of an error, without the usage text.
fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory_size::MemorySize;

    fn parse(json: &str) -> Result<ServiceArgs, String> {
        let settings: ServiceSettings = serde_json::from_str(json).map_err(|error| error.to_string())?;
        let parsed = cli::parse::<ServiceArgs>(settings.flags());
        parsed.map(|parsed| parsed.args).map_err(|error| first_line(&error))
    }

    #[test]
    fn an_invalid_setting_is_one_sentence() {
        assert_eq!(
            parse(r#"{"memory": "lots"}"#).unwrap_err(),
            "invalid value 'lots' for '--memory <SIZE>': invalid size `lots`: expected a number with a unit (KB, MB, GB, TB, KiB, MiB, GiB, TiB), such as 4GiB"
        );
        let conflict = parse(r#"{"coordinator": ["http://h:1"], "cores": 2}"#).unwrap_err();
        assert!(conflict.contains("cannot be used with"), "{conflict}");
        assert!(parse(r#"{"cores": "2"}"#).unwrap_err().contains("expected u32"));
        assert!(parse(r#"{"speed": 2}"#).unwrap_err().contains("unknown field `speed`"));
    }

    #[test]
    fn typed_settings_are_parsed_as_flags() {
        let json = r#"{"cores": 2, "memory": 1048576, "cache_disk": "1GiB", "auto_cache": false, "functions": true,
            "allow_url": ["s3://a", "s3://b"], "allow_metadata_addresses": true, "index_dir": "/tmp/i",
            "pool": "spot"}"#;
        let args = parse(json).unwrap();
        assert_eq!((args.local.cores, args.local.memory), (Some(2), Some(MemorySize::Bytes(1 << 20))));
        assert_eq!(parse(r#"{"memory": "70%"}"#).unwrap().local.memory, Some(MemorySize::Percent(70)));
        let graphs = parse(r#"{"graph_memory": "2GiB"}"#).unwrap().local.graph_memory;
        assert_eq!(graphs, Some(MemorySize::Bytes(2 << 30)));
        assert_eq!(args.local.cache.cache_disk, 1 << 30);
        assert!(!args.auto_cache.auto_cache.is_on() && args.local.functions.functions.is_some());
        assert_eq!(args.local.stores.reads.allow_url, ["s3://a", "s3://b"]);
        assert!(args.local.stores.reads.allow_metadata_addresses);
        assert_eq!(args.local.index_dir, Some(PathBuf::from("/tmp/i")));
        assert_eq!(args.local.pool.pool, "spot");
    }
}
