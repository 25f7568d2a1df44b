//! Roles as processes: started, watched for the line that says they are ready, killed.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use crate::feedline;

/// Long enough for a process to start on a busy machine.
const START: Duration = Duration::from_secs(30);

/// A role that runs; killed when dropped.
#[derive(Debug)]
pub struct Role {
    child: Child,
    /// Address that it listens on, such as `127.0.0.1:4711`.
    pub address: String,
}

impl Role {
    /// Starts a role and waits until it listens.
    pub fn start(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut command = Command::new(feedline());
        command.args(arguments).envs(environment.iter().copied());
        command.stdout(Stdio::piped()).stderr(Stdio::inherit()).stdin(Stdio::null());
        let mut child = command.spawn().expect("the binary starts");
        let stdout = child.stdout.take().expect("piped above");
        let (sender, line) = sync_channel(1);
        std::thread::spawn(move || {
            let mut reader = BufReader::new(stdout);
            let mut line = String::new();
            // A role that ends before it listens gives an empty line.
            let _ = reader.read_line(&mut line);
            let _ = sender.send(line);
            let _ = reader.read_to_end(&mut Vec::new());
        });
        let line = line.recv_timeout(START).expect("the role says within the time that it listens");
        let address = line.trim().rsplit(' ').next().unwrap_or_default().to_owned();
        assert!(line.contains("listening on"), "`feedline {}` said: {line:?}", arguments.join(" "));
        Self { child, address }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its address as a URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        // It may have ended by itself; what matters is that it is gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Sends SIGTERM and waits for the end; returns the exit status.
    pub fn terminate(mut self) -> i32 {
        signal(self.child.id(), rustix::process::Signal::TERM);
        self.child.wait().expect("it was started here").code().unwrap_or(-1)
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Sends a signal to a process.
pub fn signal(id: u32, signal: rustix::process::Signal) {
    let id = rustix::process::Pid::from_raw(id as i32).expect("process ids are not 0");
    // It may have ended already.
    let _ = rustix::process::kill_process(id, signal);
}

/// A coordinator and workers as processes.
#[derive(Debug)]
pub struct Processes {
    /// The coordinator.
    pub coordinator: Role,
    /// The workers.
    pub workers: Vec<Role>,
    directory: PathBuf,
}

impl Processes {
    /// Starts them with their data in `directory`.
    pub fn start(directory: PathBuf, workers: usize) -> Self {
        let coordinator = start_coordinator(&directory.join("coordinator"), "127.0.0.1:0");
        let mut processes = Self { coordinator, workers: Vec::new(), directory };
        for _ in 0..workers {
            processes.add_worker();
        }
        processes
    }

    /// Where consumers reach the coordinator.
    pub fn url(&self) -> String {
        self.coordinator.url()
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

    /// Kills a worker and starts another.
    pub fn replace_worker(&mut self, place: usize) {
        self.workers.remove(place).kill();
        self.add_worker();
    }

    /// Its data directory.
    pub fn coordinator_data(&self) -> PathBuf {
        self.directory.join("coordinator")
    }

    /// Kills the coordinator and starts it again on the same port and data.
    pub fn restart_coordinator(&mut self) {
        let address = self.coordinator.address.clone();
        self.coordinator.kill();
        self.coordinator = start_coordinator(&self.coordinator_data(), &address);
    }
}

fn start_coordinator(data: &Path, listen: &str) -> Role {
    let data = data.to_str().expect("temporary paths are text");
    Role::start(&["coordinator", "--listen", listen, "--data-dir", data], &[])
}
