//! Roles as processes: starts them, waits for the line that reports their address, and kills them.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use tempfile::TempDir;

use crate::http::free_ports;
use crate::{CACHE_HOME, build_directory, cache_home, call, feedline};

/// Timeout for the start of a process. It is long enough for a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// A running role, which is killed when this value is dropped. Its log is a file, which a failing test names.
#[derive(Debug)]
pub struct Role {
    child: Child,
    /// The address that the role listens on, such as `127.0.0.1:4711`.
    pub address: String,
    /// The address of its HTTP server, if it has one.
    http: Option<String>,
    /// The address of its server for probes, if it has one.
    health: Option<String>,
    cache: TempDir,
    log: PathBuf,
}

impl Role {
    /// Starts a role and waits until it listens. It has a separate cache directory unless `environment` sets one.
    pub fn start(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let (mut command, cache) = (Command::new(feedline()), cache_home());
        command.args(arguments).env(CACHE_HOME, cache.path()).envs(environment.iter().copied());
        let (log, log_file) = create_log(arguments.first().copied().unwrap_or("feedline"));
        command.stdout(Stdio::piped()).stderr(log_file).stdin(Stdio::null());
        let mut child = command.spawn().expect("the binary starts");
        let stdout = child.stdout.take().expect("piped above");
        let [has_http, has_health] = ["--http", "--health"].map(|flag| arguments.contains(&flag));
        let (sender, said) = sync_channel(1);
        std::thread::spawn(move || {
            let mut reader = BufReader::new(stdout);
            let mut said = String::new();
            // A role that exits before it listens prints no line.
            for _ in 0..1 + usize::from(has_http) + usize::from(has_health) {
                let _ = reader.read_line(&mut said);
            }
            let _ = sender.send(said);
            let _ = reader.read_to_end(&mut Vec::new());
        });
        let said = said.recv_timeout(START_TIMEOUT);
        let said = said.unwrap_or_else(|_| {
            let _ = child.kill();
            let _ = child.wait();
            panic!("the role does not listen; its log is {}", log.display())
        });
        let place =
            |what: &str| said.lines().find_map(|line| Some(line.split_once(what)?.1.trim().to_owned()));
        let (address, http, health) = (place(" listening on "), place(" http on "), place(" health on "));
        let is_complete = http.is_some() == has_http && health.is_some() == has_health;
        let (Some(address), true) = (address, is_complete) else {
            let stderr = std::fs::read_to_string(&log).unwrap_or_default();
            panic!("`feedline {}` said: {said:?}\n{stderr}", arguments.join(" "));
        };
        Self { child, address, http, health, cache, log }
    }

    /// Returns the address of its HTTP server, such as `127.0.0.1:4711`.
    pub fn http(&self) -> &str {
        self.http.as_deref().expect("the role was started with --http")
    }

    /// Returns the address of its server for probes, such as `127.0.0.1:4711`.
    pub fn health(&self) -> &str {
        self.health.as_deref().expect("the role was started with --health")
    }

    /// Returns the directory that replaces the user's cache directory.
    pub fn cache(&self) -> &Path {
        self.cache.path()
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns its http:// URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns its https:// URL.
    pub fn secure_url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Whether the process has exited.
    pub fn has_exited(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    /// Kills the process with SIGKILL.
    pub fn kill(&mut self) {
        // The process may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Sends SIGTERM, waits for the exit, and returns the exit status.
    pub fn terminate(mut self) -> i32 {
        signal(self.child.id(), rustix::process::Signal::TERM);
        self.child.wait().expect("the process was started here").code().unwrap_or(-1)
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("the log of process {} is {}", self.id(), self.log.display());
        }
    }
}

/// Creates the log file of a role in `target/role-logs`. The names of the test and the role are part of its name.
fn create_log(role: &str) -> (PathBuf, File) {
    static ROLES: AtomicUsize = AtomicUsize::new(0);
    let folder = build_directory().join("../role-logs");
    std::fs::create_dir_all(&folder).expect("the directory of the build is writable");
    let test = std::thread::current().name().unwrap_or("test").replace("::", ".");
    let name = format!("{test}-{}-{}-{role}.log", std::process::id(), ROLES.fetch_add(1, Ordering::Relaxed));
    let path = folder.canonicalize().unwrap_or(folder).join(name);
    let file = File::create(&path).expect("the directory of the build is writable");
    (path, file)
}

/// Sends a signal to a process.
pub fn signal(id: u32, signal: rustix::process::Signal) {
    let id = rustix::process::Pid::from_raw(id as i32).expect("process ids are not 0");
    // The process may have exited already.
    let _ = rustix::process::kill_process(id, signal);
}

/// Coordinators and workers as processes.
#[derive(Debug)]
pub struct Processes {
    /// The coordinators.
    pub coordinators: Vec<Role>,
    /// The workers.
    pub workers: Vec<Role>,
    directory: PathBuf,
    /// URLs of all coordinators, if there are several.
    peers: Vec<String>,
    /// Flags of each coordinator.
    flags: Vec<String>,
}

impl Processes {
    /// Starts one coordinator and workers with their data in `directory`.
    pub fn start(directory: PathBuf, workers: usize) -> Self {
        Self::start_several(directory, 1, workers, &[])
    }

    /// Starts a cluster of several coordinators with these flags, and workers.
    pub fn start_several(directory: PathBuf, coordinators: usize, workers: usize, flags: &[&str]) -> Self {
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let mut processes =
            Self { coordinators: Vec::new(), workers: Vec::new(), directory, peers: Vec::new(), flags };
        let addresses = free_ports(coordinators);
        if coordinators > 1 {
            processes.peers = addresses.iter().map(|address| format!("http://{address}")).collect();
        }
        for (place, address) in addresses.iter().enumerate() {
            let role = processes.start_coordinator(place, address, &[]);
            processes.coordinators.push(role);
        }
        for _ in 0..workers {
            processes.add_worker();
        }
        processes
    }

    /// Returns the URLs of the coordinators.
    pub fn url(&self) -> String {
        let urls: Vec<String> = self.coordinators.iter().map(Role::url).collect();
        urls.join(",")
    }

    /// Returns the index of the leader; `None` without a leader.
    pub fn leader(&self) -> Option<usize> {
        let call = call(&["members", "list", "--json", "--coordinator", &self.url()]);
        let members: serde_json::Value = serde_json::from_str(&call.stdout).ok()?;
        let leads = |member: &&serde_json::Value| member["leads"] == true;
        let url = members.as_array()?.iter().find(leads)?["url"].as_str()?.to_owned();
        self.coordinators.iter().position(|coordinator| coordinator.url() == url)
    }

    /// Starts one more worker.
    pub fn add_worker(&mut self) {
        let url = self.url();
        let cache = self.directory.join("cache");
        let cache = cache.to_str().expect("temporary paths are text");
        self.workers.push(Role::start(
            &[
                "worker",
                "--coordinator",
                &url,
                "--listen",
                "127.0.0.1:0",
                "--cores",
                "1",
                "--memory",
                "256MiB",
                "--cache-dir",
                cache,
            ],
            &[],
        ));
    }

    /// Kills a worker and starts a new one.
    pub fn replace_worker(&mut self, place: usize) {
        self.workers.remove(place).kill();
        self.add_worker();
    }

    /// Returns a coordinator's data directory.
    pub fn coordinator_data(&self, place: usize) -> PathBuf {
        self.directory.join(format!("coordinator-{place}"))
    }

    /// Kills a coordinator, and restarts it with the same port and data.
    pub fn restart_coordinator(&mut self, place: usize) {
        self.restart_coordinator_with(place, &[]);
    }

    /// Like [`Self::restart_coordinator`], with further flags.
    pub fn restart_coordinator_with(&mut self, place: usize, flags: &[String]) {
        let address = self.coordinators[place].address.clone();
        self.coordinators[place].kill();
        self.coordinators[place] = self.start_coordinator(place, &address, flags);
    }

    fn start_coordinator(&self, place: usize, listen: &str, flags: &[String]) -> Role {
        let data = self.coordinator_data(place);
        let data = data.to_str().expect("temporary paths are text");
        let mut arguments = vec!["coordinator", "--listen", listen, "--data-dir", data];
        let peers = self.peers.join(",");
        if !self.peers.is_empty() {
            arguments.extend(["--peers", &peers]);
        }
        arguments.extend(self.flags.iter().chain(flags).map(String::as_str));
        Role::start(&arguments, &[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_of_a_role_are_in_a_directory_that_is_removed_with_it() {
        let arguments = ["up", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--workers", "1"];
        let up = Role::start(&arguments, &[]);
        assert_ne!(up.http(), up.address);
        let cache = up.cache().to_owned();
        assert!(cache.join("feedline/index").is_dir(), "nothing is in {}", cache.display());
        assert_eq!(up.terminate(), 0);
        assert!(!cache.exists());
    }
}
