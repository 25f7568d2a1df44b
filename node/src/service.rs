//! Feedline inside another program, such as a Python interpreter: a cluster behind a URL, or all roles in this process, chosen by
//! the flags of `feedline run`.

use std::io;
use std::sync::Arc;

use clap::Parser;
use feedline_client::WorkerDirectory;
use feedline_data::ids::SessionId;
use feedline_data::pipeline::Pipeline;
use feedline_proto::CoordinatorService;
use tokio::runtime::Runtime;

use crate::access::ServerSecurity;
use crate::cli::{self, GuardArgs, LocalArgs, RemoteArgs};
use crate::cluster::LocalCluster;
use crate::failure::Failure;
use crate::http::{self, HttpServer};
use crate::local_listener::TransportArg;
use crate::{entropy, logging, pipeline_file};

/// Whom a program's jobs are run by.
pub struct JobService {
    cluster: LocalCluster,
    http: Option<HttpServer>,
}

/// Flags of `feedline run` that say who runs jobs.
#[derive(Parser, Debug)]
#[command(no_binary_name = true, disable_help_flag = true, disable_version_flag = true)]
struct ServiceArgs {
    #[command(flatten)]
    remote: RemoteArgs,
    #[command(flatten)]
    local: LocalArgs,
    #[command(flatten)]
    guard: GuardArgs,
    #[arg(long)]
    http: Option<String>,
    #[arg(long, value_enum, default_value_t)]
    transport: TransportArg,
}

impl JobService {
    /// The service that these flags of `feedline run` ask for: `--coordinator` with what is shown to it, or what is run in this
    /// process. Must be called inside a runtime of [`Self::start_runtime`], which runs the roles.
    ///
    /// # Errors
    /// One sentence, when the flags are wrong, no coordinator answers, or a role cannot be started.
    pub async fn open(flags: &[String]) -> Result<Self, Failure> {
        let parsed = cli::parse::<ServiceArgs>(flags);
        let args = parsed.map_err(|error| Failure::wrong_use(first_line(&error)))?.args;
        let http = http::start(args.http.as_deref(), &ServerSecurity::new(&args.guard)?, None).await?;
        let cluster = LocalCluster::open(&args.remote.urls(), &args.guard.access, &args.local).await?;
        if let Some(http) = &http {
            http.set_ready(Box::new(|| Ok(())));
        }
        Ok(Self { cluster: cluster.by(args.transport), http })
    }

    /// The threads that everything runs on.
    ///
    /// # Errors
    /// When the system has no threads left.
    pub fn start_runtime() -> io::Result<Runtime> {
        crate::start_runtime()
    }

    /// Starts the log of this process, on standard error, as `FEEDLINE_LOG` says; by default it has warnings alone. Where the program
    /// has a log already, that stays.
    pub fn start_log() {
        // A filter that cannot be read is told, and a log that is there is none to complain of.
        if let Err(failure @ Failure::WrongUse(_)) = logging::start(logging::LogFormat::Text, "warn") {
            eprintln!("feedline: {failure}");
        }
    }

    /// The pipeline in `text`, its relative paths resolved against the present directory. `name` is what errors call it.
    ///
    /// # Errors
    /// One sentence with the line.
    pub fn pipeline(text: &str, name: &str) -> Result<Pipeline, Failure> {
        pipeline_file::resolved(Pipeline::from_yaml(text, name).map_err(Failure::wrong_use)?)
    }

    /// A consumer's session: larger than that of every earlier session, as far as clocks agree.
    pub fn session_id() -> SessionId {
        entropy::session_id()
    }

    /// The coordinator.
    pub fn coordinator(&self) -> Arc<dyn CoordinatorService> {
        Arc::clone(&self.cluster.coordinator)
    }

    /// How consumers find the workers.
    pub fn workers(&self) -> Arc<dyn WorkerDirectory> {
        self.cluster.directory()
    }

    /// Whether all roles are this process.
    pub fn is_embedded(&self) -> bool {
        self.cluster.is_embedded()
    }

    /// Ends what runs in this process; a cluster behind a URL goes on.
    pub async fn shutdown(self) {
        self.cluster.shutdown().await;
        if let Some(http) = self.http {
            http.shutdown().await;
        }
    }
}

/// What is wrong with the flags, without the usage of a command that nobody called.
fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_flags_are_one_sentence() {
        let refusal = |flags: &[&str]| first_line(&cli::parse::<ServiceArgs>(flags).err().unwrap());
        assert_eq!(
            refusal(&["--memory", "lots"]),
            "invalid value 'lots' for '--memory <SIZE>': invalid size `lots`: expected a number with a unit (KB, MB, GB, TB, KiB, MiB, GiB, TiB), such as 4GiB"
        );
        assert!(refusal(&["--coordinator", "http://h:1", "--cores", "2"]).contains("cannot be used with"));
        assert!(cli::parse::<ServiceArgs>(["--cores", "2", "--memory", "1GiB"]).is_ok());
    }
}
