//! Coordinators in one process, and a network between them that can be cut.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use feedline_coordinator::{
    CoordinatorContext, CoordinatorSettings, PeerDirectory, RunningCoordinator, start_in,
};
use feedline_data::ids::JobId;
use feedline_data::manifest::Manifest;
use feedline_data::messages::{JobSpec, ServiceError, ServiceErrorKind};
use feedline_proto::{CoordinatorService, MemberInfo, MemberStatus, PeerService};
use tempfile::TempDir;

/// A timeout far above the duration of each test.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(10);

/// The network between coordinators.
#[derive(Default)]
pub(crate) struct Network {
    reachable: Mutex<BTreeMap<String, Arc<dyn PeerService>>>,
    /// Coordinators without connections.
    pub(crate) cut: Mutex<BTreeSet<String>>,
}

/// The network of one coordinator.
struct End {
    network: Arc<Network>,
    own: String,
}

/// The connection between two coordinators.
struct Way {
    network: Arc<Network>,
    from: String,
    to: String,
}

impl Way {
    fn peer(&self) -> Result<Arc<dyn PeerService>, ServiceError> {
        let cut = self.network.cut.lock().expect("nobody panics while holding it");
        let is_cut = cut.contains(&self.from) || cut.contains(&self.to);
        let found =
            self.network.reachable.lock().expect("nobody panics while holding it").get(&self.to).cloned();
        found.filter(|_| !is_cut).ok_or_else(|| {
            ServiceError::new(ServiceErrorKind::Unavailable, format!("{} is not reached", self.to))
        })
    }
}

#[async_trait]
impl PeerService for Way {
    async fn introduce(&self, from: MemberInfo) -> Result<MemberInfo, ServiceError> {
        self.peer()?.introduce(from).await
    }

    async fn join(&self, from: MemberInfo) -> Result<(), ServiceError> {
        self.peer()?.join(from).await
    }

    async fn deliver(&self, sender: MemberInfo, messages: Vec<Bytes>) -> Result<(), ServiceError> {
        self.peer()?.deliver(sender, messages).await
    }

    async fn store_index(
        &self,
        key: &str,
        manifest: Arc<Manifest>,
        in_use: &[String],
    ) -> Result<(), ServiceError> {
        self.peer()?.store_index(key, manifest, in_use).await
    }

    async fn load_index(&self, key: &str, reference: &str) -> Result<Arc<Manifest>, ServiceError> {
        self.peer()?.load_index(key, reference).await
    }
}

impl PeerDirectory for End {
    fn peer(&self, url: &str) -> Result<Arc<dyn PeerService>, ServiceError> {
        let (from, to) = (self.own.clone(), url.to_owned());
        Ok(Arc::new(Way { network: Arc::clone(&self.network), from, to }))
    }
}

/// Coordinators by number, with their directories.
pub(crate) struct Bench {
    pub(crate) folder: TempDir,
    pub(crate) network: Arc<Network>,
    pub(crate) peers: Vec<String>,
    /// Addresses that differ from those of the first start.
    moved: BTreeMap<u32, String>,
    pub(crate) running: BTreeMap<u32, RunningCoordinator>,
    pub(crate) lives: u64,
}

pub(crate) fn url(number: u32) -> String {
    format!("http://c{number}")
}

impl Bench {
    pub(crate) async fn of(count: u32) -> Self {
        let peers = (0..count).map(url).collect();
        let (folder, network) = (TempDir::new().expect("a temporary directory can be made"), Arc::default());
        let (moved, running) = (BTreeMap::new(), BTreeMap::new());
        let mut bench = Self { folder, network, peers, moved, running, lives: 0 };
        for number in 0..count {
            bench.start(number).await;
        }
        bench
    }

    pub(crate) async fn start(&mut self, number: u32) {
        self.lives += 1;
        let folder = self.folder.path().join(number.to_string());
        let mut settings = CoordinatorSettings::durable(folder.join("log"), folder.join("index"));
        settings.url = self.url_of(number);
        settings.peers.clone_from(&self.peers);
        let peers: Arc<dyn PeerDirectory> =
            Arc::new(End { network: Arc::clone(&self.network), own: self.url_of(number) });
        let surroundings = CoordinatorContext { scaler: None, peers: Some(peers) };
        let running = start_in(settings, self.lives, surroundings).await.expect("it starts");
        self.network
            .reachable
            .lock()
            .expect("nobody panics while holding it")
            .insert(self.url_of(number), running.peer_service());
        self.running.insert(number, running);
    }

    /// Starts a coordinator of another cluster, which is not one of `running`.
    pub(crate) async fn start_alone(&mut self, number: u32) -> RunningCoordinator {
        let peers = std::mem::take(&mut self.peers);
        self.start(number).await;
        self.peers = peers;
        self.running.remove(&number).expect("it has just started")
    }

    /// The address of a coordinator at its next start.
    pub(crate) fn url_of(&self, number: u32) -> String {
        self.moved.get(&number).cloned().unwrap_or_else(|| url(number))
    }

    /// Gives a coordinator another address from its next start on.
    pub(crate) fn move_away(&mut self, number: u32) {
        self.moved.insert(number, format!("http://moved{number}"));
    }

    /// Takes a coordinator out of the network.
    fn take(&mut self, number: u32) -> RunningCoordinator {
        let url = self.url_of(number);
        self.network.reachable.lock().expect("nobody panics while holding it").remove(&url);
        self.running.remove(&number).expect("it runs")
    }

    /// Kills a coordinator.
    pub(crate) fn kill(&mut self, number: u32) {
        drop(self.take(number));
    }

    /// Stops a coordinator and waits until its directory is free.
    pub(crate) async fn stop(&mut self, number: u32) {
        self.take(number).shutdown().await.expect("its disk works");
    }

    /// Waits until the leader's membership contains these addresses.
    pub(crate) async fn has_members(&self, wanted: &[String]) {
        let wanted: BTreeSet<&String> = wanted.iter().collect();
        until(|| async {
            for coordinator in self.running.values() {
                let members = coordinator.service().members().await.unwrap_or_default();
                if members.iter().map(|member| &member.url).collect::<BTreeSet<_>>() == wanted {
                    return Some(());
                }
            }
            None
        })
        .await;
    }

    /// Waits until the leader has this number of members, which all vote, answer, and have other ids than this one.
    pub(crate) async fn has_voters(&self, count: usize, but: Option<&str>) {
        until(|| async {
            for coordinator in self.running.values() {
                let members = coordinator.service().members().await.unwrap_or_default();
                let is_wanted = |member: &MemberStatus| {
                    member.is_voter && member.is_reachable && Some(member.id.as_str()) != but
                };
                if members.len() == count && members.iter().all(is_wanted) {
                    return Some(());
                }
            }
            None
        })
        .await;
    }

    /// Repeats a request at all coordinators until the leader accepts it. The leader may change at any time, so no request
    /// is sent to a coordinator because it was the leader a moment ago.
    pub(crate) async fn accepted<T, F>(&self, request: impl Fn(Arc<dyn CoordinatorService>) -> F) -> T
    where
        F: Future<Output = Result<T, ServiceError>>,
    {
        until(|| async {
            for coordinator in self.running.values() {
                match request(coordinator.service()).await {
                    Ok(answer) => return Some(answer),
                    Err(refusal) => assert_eq!(refusal.kind, ServiceErrorKind::Unavailable, "{refusal}"),
                }
            }
            None
        })
        .await
    }

    /// Repeats a request at all coordinators until the leader rejects it with this text. No coordinator may accept it.
    pub(crate) async fn refused<T, F>(
        &self,
        text: &str,
        request: impl Fn(Arc<dyn CoordinatorService>) -> F,
    ) -> ServiceError
    where
        F: Future<Output = Result<T, ServiceError>>,
    {
        until(|| async {
            for coordinator in self.running.values() {
                let refusal = request(coordinator.service()).await.err().expect("no coordinator accepts it");
                if refusal.message.contains(text) {
                    return Some(refusal);
                }
            }
            None
        })
        .await
    }

    /// Opens a job. A repeated request joins the job.
    pub(crate) async fn open(&self, spec: JobSpec) -> JobId {
        self.accepted(|service| {
            let spec = spec.clone();
            async move { service.open_job(spec).await }
        })
        .await
    }

    /// Returns the ids and names of the leader's jobs.
    pub(crate) async fn jobs(&self) -> Vec<(JobId, String)> {
        let jobs = self.accepted(|service| async move { service.list_jobs().await }).await;
        jobs.into_iter().map(|job| (job.job, job.name)).collect()
    }

    /// Removes a member. An earlier attempt may have removed it without a reply.
    pub(crate) async fn remove(&self, url: &str) -> Vec<MemberStatus> {
        until(|| async {
            for coordinator in self.running.values() {
                let service = coordinator.service();
                match service.remove_member(url).await {
                    Ok(members) => return Some(members),
                    Err(refusal) if refusal.kind == ServiceErrorKind::NotFound => {
                        return service.members().await.ok();
                    }
                    Err(_) => {}
                }
            }
            None
        })
        .await
    }

    /// Removes the coordinators that are at none of these addresses.
    pub(crate) async fn sync(&self, urls: &[String]) -> Vec<MemberStatus> {
        until(|| async {
            for coordinator in self.running.values() {
                if let Ok(members) = coordinator.service().sync_members(urls).await {
                    return Some(members);
                }
            }
            None
        })
        .await
    }

    /// Waits for a leader.
    pub(crate) async fn leader(&self) -> u32 {
        self.leader_but(None).await
    }

    /// Waits until one coordinator leads and all others name it as the leader.
    pub(crate) async fn settled_leader(&self) -> u32 {
        until(|| async {
            let leader = self.leader().await;
            for (number, coordinator) in &self.running {
                match coordinator.service().list_jobs().await {
                    Ok(_) if *number == leader => {}
                    Err(refusal) if refusal.leader == Some(self.url_of(leader)) => {}
                    _ => return None,
                }
            }
            Some(leader)
        })
        .await
    }

    /// Waits for a leader other than this coordinator.
    pub(crate) async fn leader_but(&self, but: Option<u32>) -> u32 {
        until(|| async {
            for (number, coordinator) in self.running.iter().filter(|(number, _)| Some(**number) != but) {
                if coordinator.service().list_jobs().await.is_ok() {
                    return Some(*number);
                }
            }
            None
        })
        .await
    }

    pub(crate) fn service(&self, number: u32) -> Arc<dyn CoordinatorService> {
        self.running[&number].service()
    }
}

/// Repeats a check until it returns a value.
pub(crate) async fn until<T, F: Future<Output = Option<T>>>(look: impl Fn() -> F) -> T {
    let found = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::time::timeout(PATIENCE, found).await.expect("it comes in time")
}
