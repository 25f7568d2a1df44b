//! Injects faults while a job runs on three coordinators, four workers and four consumers, which are processes
//! connected by links that can be cut. The seed determines the faults; their times within the run depend on the
//! machine.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use feedline_data::random::mix64;
use rustix::process::Signal;
use serde_json::Value;

use crate::disk::SmallDisk;
use crate::http::{free_port, free_ports, try_metric};
use crate::link::{Link, State};
use crate::process::{Role, signal};
use crate::running::Running;
use crate::store::{Store, StoreFault};
use crate::{Scratch, call, data};

const COORDINATORS: usize = 3;
const WORKERS: usize = 4;
const CONSUMERS: &str = "4";
/// Interval between faults.
const FAULT_INTERVAL: Duration = Duration::from_secs(3);
/// Maximum duration of a fault. The cluster then has time to recover before the next fault.
const MAX_FAULT_MS: u64 = 2_000;
/// Interval between measurements of stalls.
const STALL_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Milliseconds that a consumer spends on a batch.
const STEP_MS: u64 = 400;
const BATCH_ROWS: u64 = 16;
/// Size of a coordinator's disk.
const DISK_KIB: u32 = 16 << 10;
/// During a store fault, one in this many responses is faulty.
const FAULTY_ANSWER_INTERVAL: u64 = 2;

const PIPELINE: &str = r#"
name: chaos
source: { url: "DATA/*.tfrecord", format: tfrecord, features: { image: image/encoded, label: image/class/label } }
seed: 11
shuffle: { window: 256 }
operators:
  - random_resized_crop: { column: image, size: [96, 96] }
  - random_horizontal_flip: { column: image }
  - batch: { size: 16 }
"#;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The leader is killed and restarted.
    KillLeader,
    /// A follower is killed and restarted.
    KillFollower,
    /// A worker is killed and replaced.
    KillWorker,
    /// The leader is suspended.
    StopLeader,
    /// A worker is suspended.
    StopWorker,
    /// The link to the leader is cut in both directions.
    CutLeader,
    /// The leader's responses are lost.
    CutLeaderBack,
    /// The link to a follower is cut.
    CutFollower,
    /// The link to a worker is cut.
    CutWorker,
    /// The links to one coordinator and one worker are slow.
    Slow,
    /// The leader's disk is full.
    FullDisk,
    /// Some responses from the store are errors, arrive late, are truncated, or contain a wrong size.
    Store(StoreFault),
}

const FAULTS: [Fault; 19] = [
    // The repetitions set the share of this fault.
    Fault::KillLeader,
    Fault::KillLeader,
    Fault::KillLeader,
    Fault::KillLeader,
    Fault::KillLeader,
    Fault::KillFollower,
    Fault::KillWorker,
    Fault::StopLeader,
    Fault::StopWorker,
    Fault::CutLeader,
    Fault::CutLeaderBack,
    Fault::CutFollower,
    Fault::CutWorker,
    Fault::Slow,
    Fault::FullDisk,
    Fault::Store(StoreFault::Refused),
    Fault::Store(StoreFault::Late),
    Fault::Store(StoreFault::Truncated),
    Fault::Store(StoreFault::WrongSize),
];

/// The outcome of a run.
#[derive(Debug)]
pub struct Outcome {
    /// Faults by kind.
    pub faults: BTreeMap<Fault, u32>,
    /// The report of the run.
    pub report: Value,
    /// The report of the same run without faults.
    pub report_without_faults: Value,
    /// Mean stall of the consumers in seconds between each kill of a leader and the next fault.
    pub stalls_s: Vec<f64>,
}

/// A role that is reached over a link.
struct Node {
    role: Role,
    link: Link,
    arguments: Vec<String>,
    environment: Vec<(&'static str, String)>,
}

impl Node {
    fn start(link: Link, arguments: Vec<String>, store: &Store) -> Self {
        let environment: Vec<_> = store.environment().map(|(name, value)| (name, value.to_owned())).into();
        let role = start(&arguments, &environment);
        Self { role, link, arguments, environment }
    }

    fn kill(&mut self) {
        self.role.kill();
    }

    fn restart(&mut self) {
        self.role = start(&self.arguments, &self.environment);
    }
}

fn start(arguments: &[String], environment: &[(&str, String)]) -> Role {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let environment: Vec<_> = environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
    Role::start(&arguments, &environment)
}

struct Fleet {
    // The roles are dropped before the disks that they write to.
    coordinators: Vec<Node>,
    workers: Vec<Node>,
    urls: String,
    /// Disks of the coordinators; empty without the permission to mount.
    disks: Vec<SmallDisk>,
    store: Store,
}

impl Fleet {
    /// Starts all roles, with the data in the bucket `bucket` of the scratch directory's `store`.
    fn start(scratch: &Scratch) -> Self {
        let folder = |place: usize| scratch.file(&format!("coordinator-{place}"));
        let disks = (0..COORDINATORS).map_while(|place| SmallDisk::mount(folder(place).as_ref(), DISK_KIB));
        let (disks, store) = (disks.collect(), Store::serve(&scratch.path().join("store")));
        let addresses = free_ports(COORDINATORS);
        let links: Vec<Link> = addresses.iter().map(|address| Link::to(address)).collect();
        let urls: Vec<String> = links.iter().map(|link| format!("http://{}", link.address)).collect();
        let urls = urls.join(",");
        let coordinators = addresses.iter().zip(links).enumerate().map(|(place, (address, link))| {
            let (url, folder) = (format!("http://{}", link.address), folder(place));
            let arguments = [
                "coordinator",
                "--listen",
                address,
                "--advertise",
                &url,
                "--peers",
                &urls,
                "--data-dir",
                &folder,
                // With caches, workers would not read from the store after the first pass, so store faults would have
                // no effect.
                "--auto-cache",
                "off",
            ];
            Node::start(link, arguments.map(str::to_owned).to_vec(), &store)
        });
        let coordinators: Vec<Node> = coordinators.collect();
        let workers = free_ports(WORKERS).into_iter().map(|address| {
            let link = Link::to(&address);
            let url = format!("http://{}", link.address);
            let arguments = [
                "worker",
                "--listen",
                &address,
                "--advertise",
                &url,
                "--coordinator",
                &urls,
                "--cores",
                "1",
                "--memory",
                "256MiB",
                "--transport",
                "tcp",
            ];
            Node::start(link, arguments.map(str::to_owned).to_vec(), &store)
        });
        Self { workers: workers.collect(), coordinators, urls, disks, store }
    }

    /// Returns the index of the leader.
    fn leader(&self) -> Option<usize> {
        let members = call(&["members", "list", "--json", "--coordinator", &self.urls]);
        let members: Value = serde_json::from_str(&members.stdout).ok()?;
        let leads = |member: &&Value| member["leads"] == true;
        let url = members.as_array()?.iter().find(leads)?["url"].as_str()?.to_owned();
        self.coordinators.iter().position(|node| url.ends_with(&node.link.address))
    }

    /// Starts a fault, and returns how to end it.
    fn begin(&mut self, fault: Fault, draw: u64) -> Box<dyn FnOnce(&mut Self)> {
        let leader = self.leader().unwrap_or(draw as usize % COORDINATORS);
        let follower = (leader + 1 + (draw >> 8) as usize % (COORDINATORS - 1)) % COORDINATORS;
        let worker = (draw >> 16) as usize % WORKERS;
        let cut = State { is_cut_there: true, is_cut_back: true, ..State::default() };
        match fault {
            Fault::KillLeader | Fault::KillFollower => {
                let place = if fault == Fault::KillLeader { leader } else { follower };
                self.coordinators[place].kill();
                Box::new(move |fleet: &mut Self| fleet.coordinators[place].restart())
            }
            Fault::KillWorker => {
                self.workers[worker].kill();
                Box::new(move |fleet: &mut Self| fleet.workers[worker].restart())
            }
            Fault::StopLeader => stop(self.coordinators[leader].role.id()),
            Fault::StopWorker => stop(self.workers[worker].role.id()),
            Fault::CutLeader => self.set(leader, None, cut),
            Fault::CutLeaderBack => self.set(leader, None, State { is_cut_there: false, ..cut }),
            Fault::CutFollower => self.set(follower, None, cut),
            Fault::CutWorker => {
                self.workers[worker].link.set(cut);
                Box::new(move |fleet: &mut Self| fleet.workers[worker].link.set(State::default()))
            }
            Fault::Slow => {
                let delay = Duration::from_millis(20 + (draw >> 24) % 80);
                self.set(leader, Some(worker), State { delay, ..State::default() })
            }
            Fault::FullDisk => {
                self.disks.get(leader).into_iter().for_each(SmallDisk::fill);
                Box::new(move |fleet: &mut Self| {
                    fleet.disks.get(leader).into_iter().for_each(SmallDisk::free)
                })
            }
            Fault::Store(wrong) => {
                self.store.set(&[wrong], FAULTY_ANSWER_INTERVAL);
                Box::new(|fleet: &mut Self| fleet.store.set(&[], 1))
            }
        }
    }

    fn set(&mut self, coordinator: usize, worker: Option<usize>, state: State) -> Box<dyn FnOnce(&mut Self)> {
        let all = move |fleet: &mut Self, state| {
            fleet.coordinators[coordinator].link.set(state);
            if let Some(worker) = worker {
                fleet.workers[worker].link.set(state);
            }
        };
        all(self, state);
        Box::new(move |fleet: &mut Self| all(fleet, State::default()))
    }
}

fn stop(id: u32) -> Box<dyn FnOnce(&mut Fleet)> {
    signal(id, Signal::STOP);
    Box::new(move |_| signal(id, Signal::CONT))
}

/// Runs a job for about `time`, with a fault every three seconds and with `buffer` as the receive buffer size of each
/// consumer. Returns `None` if the photographs are not available.
pub fn run(time: Duration, seed: u64, buffer: Option<&str>) -> Option<Outcome> {
    let photos = data::photographs("chaos")?;
    let scratch = Scratch::new();
    let photos = photos.to_str().expect("the path is text");
    let (data, bucket) = (scratch.file("store/bucket/data"), "s3://bucket/data");
    std::fs::create_dir_all(scratch.path().join("store/bucket")).expect("the scratch directory is writable");
    scratch.make_data(
        "images",
        "store/bucket/data",
        &["--format", "tfrecord", "--from", photos, "--shards", "8"],
    );
    let local = scratch.write("local.yaml", &PIPELINE.replace("DATA", &data));
    let file = scratch.write("chaos.yaml", &PIPELINE.replace("DATA", bucket));
    let batches = time.as_millis() as u64 / STEP_MS;
    let consumers: u64 = CONSUMERS.parse().expect("it is a number");
    let epochs = (batches * BATCH_ROWS * consumers / 400).max(1).to_string();
    let shape = ["--epochs", &epochs, "--consumers", CONSUMERS];
    let report_without_faults = scratch.run(&local, &shape);
    let mut fleet = Fleet::start(&scratch);
    let (http, step, urls) = (free_port(), STEP_MS.to_string(), fleet.urls.clone());
    let mut arguments = vec!["run", &file, "--coordinator", &urls, "--audit", "--report", "json"];
    arguments.extend(["--http", &http, "--step-ms", &step]);
    arguments.extend(shape);
    arguments.extend(buffer.into_iter().flat_map(|buffer| ["--buffer", buffer]));
    let run = Running::start_for(&arguments, time * 10 + Duration::from_secs(300));
    let is_possible = |fault: &&Fault| **fault != Fault::FullDisk || !fleet.disks.is_empty();
    let possible: Vec<Fault> = FAULTS.iter().filter(is_possible).copied().collect();
    let (mut faults, mut stalls_s, mut drawn) = (BTreeMap::new(), Vec::new(), 0);
    while !run.has_ended() {
        drawn += 1;
        let draw = mix64(mix64(seed) ^ drawn);
        let fault = possible[draw as usize % possible.len()];
        let (begun, before) = (Instant::now(), stall(&http));
        let lasts = Duration::from_millis(200 + (draw >> 32) % (MAX_FAULT_MS - 200));
        let end = fleet.begin(fault, draw >> 40);
        *faults.entry(fault).or_default() += 1;
        run.ends_within(lasts);
        end(&mut fleet);
        while begun.elapsed() < FAULT_INTERVAL && !run.ends_within(STALL_POLL_INTERVAL) {}
        if let (Fault::KillLeader, Some(before), Some(after)) = (fault, before, stall(&http)) {
            stalls_s.push((after - before) / consumers as f64);
        }
    }
    Some(Outcome { faults, report: run.wait().report(), report_without_faults, stalls_s })
}

/// Returns the total stall of all consumers in seconds; `None` after the run has exited.
fn stall(http: &str) -> Option<f64> {
    try_metric(http, "feedline_client_stall_seconds_total")
}

impl Outcome {
    /// Returns one message for each violated expectation.
    pub fn defects(&self) -> Vec<String> {
        let mut defects = Vec::new();
        for name in ["missing", "repeated"] {
            if self.report["audit"][name] != 0 {
                defects.push(format!("{} rows are {name}", self.report["audit"][name]));
            }
        }
        for name in ["digest", "content_digest", "rows"] {
            if self.report[name] != self.report_without_faults[name] {
                defects.push(format!(
                    "{name} is {}, without faults it is {}",
                    self.report[name], self.report_without_faults[name]
                ));
            }
        }
        defects
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (fault, count) in &self.faults {
            writeln!(out, "{:<18} {count}", format!("{fault:?}"))?;
        }
        writeln!(out, "{:<18} {}", "all", self.faults.values().sum::<u32>())?;
        let audit = &self.report["audit"];
        writeln!(
            out,
            "rows {} in {} s, missing {}, repeated {}, digest {} ({} without faults)",
            self.report["rows"],
            self.report["seconds"],
            audit["missing"],
            audit["repeated"],
            self.report["digest"],
            self.report_without_faults["digest"]
        )?;
        let mut stalls = self.stalls_s.clone();
        stalls.sort_by(f64::total_cmp);
        if let (Some(median), Some(worst)) = (stalls.get(stalls.len() / 2), stalls.last()) {
            writeln!(
                out,
                "stall of a consumer after a killed leader: median {median:.2} s, worst {worst:.2} s"
            )?;
        }
        self.defects().iter().try_for_each(|defect| writeln!(out, "WRONG: {defect}"))
    }
}
