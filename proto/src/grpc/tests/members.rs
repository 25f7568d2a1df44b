//! Tests of the peer service, the administration of members, and failover to the leader.

mod balancer;

use std::collections::BTreeMap;
use std::sync::Mutex;

use async_trait::async_trait;
use feedline_data::manifest::Manifest;
use tokio::sync::Notify;

use super::super::manifest_stream::index_id;
use super::*;
use crate::services::{CoordinatorReply, CoordinatorRequest, MemberInfo, MemberStatus};

/// A coordinator with a configurable leader and list of members.
#[derive(Default)]
pub(super) struct FakeMember {
    leader: Mutex<Option<String>>,
    members: Mutex<Vec<MemberStatus>>,
    delivered: Mutex<Vec<Bytes>>,
    /// The coordinators that have delivered messages.
    senders: Mutex<Vec<MemberInfo>>,
    /// Indexes by key and id.
    indexes: Mutex<BTreeMap<(String, String), Arc<Manifest>>>,
    /// Number of indexes that clients have sent.
    sent: Mutex<usize>,
    /// Delays the list of jobs.
    gate: Mutex<Option<Arc<Gate>>>,
}

/// Delays a request.
#[derive(Debug, Default)]
struct Gate {
    /// The request has arrived.
    arrived: Notify,
    /// The request may be answered.
    opened: Notify,
}

fn refused() -> ServiceError {
    ServiceError::new(ServiceErrorKind::Unavailable, "the fake does not serve this request")
}

impl FakeMember {
    fn check(&self) -> Result<(), ServiceError> {
        self.leader.lock().unwrap().as_deref().map_or(Ok(()), |leader| Err(ServiceError::not_leader(leader)))
    }

    fn routes(self: &Arc<Self>) -> Routes {
        member_routes(Authenticators::allow_all(Arc::clone(self) as _, Arc::clone(self) as _))
    }
}

#[async_trait]
impl CoordinatorService for FakeMember {
    async fn call(&self, request: CoordinatorRequest) -> Result<CoordinatorReply, ServiceError> {
        use {CoordinatorReply as Reply, CoordinatorRequest as Request};
        if matches!(request, Request::SyncWorker { .. }) {
            return Err(refused());
        }
        self.check()?;
        let gate = self.gate.lock().unwrap().clone().filter(|_| matches!(request, Request::ListJobs {}));
        if let Some(gate) = gate {
            gate.arrived.notify_one();
            gate.opened.notified().await;
        }
        let mut members = self.members.lock().unwrap();
        Ok(match request {
            Request::OpenJob { .. } => Reply::OpenJob(JobId(5)),
            Request::CancelJob { .. } => Reply::CancelJob(()),
            Request::ListJobs {} => Reply::ListJobs(Vec::new()),
            Request::ListMembers {} => Reply::ListMembers(members.clone()),
            Request::AddMember { url } => {
                members.push(member(&url));
                Reply::AddMember(members.clone())
            }
            Request::RemoveMember { url } => {
                members.retain(|member| member.url != url);
                Reply::RemoveMember(members.clone())
            }
            Request::SyncMembers { urls } => {
                members.retain(|member| urls.contains(&member.url));
                Reply::SyncMembers(members.clone())
            }
            Request::TransferLeader { id } => {
                members.iter_mut().for_each(|member| member.is_leader = member.id == id);
                Reply::TransferLeader(members.clone())
            }
            _ => return Err(refused()),
        })
    }
}

#[async_trait]
impl PeerService for FakeMember {
    async fn introduce(&self, from: MemberInfo) -> Result<MemberInfo, ServiceError> {
        Ok(MemberInfo { id: from.id + 1, has_state: !from.has_state, ..from })
    }

    async fn join(&self, from: MemberInfo) -> Result<(), ServiceError> {
        self.check()?;
        self.senders.lock().unwrap().push(from);
        Ok(())
    }

    async fn deliver(&self, sender: MemberInfo, messages: Vec<Bytes>) -> Result<(), ServiceError> {
        self.senders.lock().unwrap().push(sender);
        self.delivered.lock().unwrap().extend(messages);
        Ok(())
    }

    async fn store_index(
        &self,
        key: &str,
        manifest: Arc<Manifest>,
        in_use: &[String],
    ) -> Result<(), ServiceError> {
        assert_eq!(in_use, ["one", "two"]);
        *self.sent.lock().unwrap() += 1;
        let id = id_of(&manifest).await;
        self.indexes.lock().unwrap().insert((key.to_owned(), id), manifest);
        Ok(())
    }

    async fn load_index(&self, key: &str, reference: &str) -> Result<Arc<Manifest>, ServiceError> {
        let found = self.indexes.lock().unwrap().get(&(key.to_owned(), reference.to_owned())).cloned();
        found.ok_or_else(|| ServiceError::new(ServiceErrorKind::NotFound, "unknown index"))
    }
}

/// The id of an index. It is computed on another thread, so that connections whose pings are not answered in time do not close.
async fn id_of(manifest: &Arc<Manifest>) -> String {
    index_id(Arc::clone(manifest)).await.unwrap()
}

fn member(url: &str) -> MemberStatus {
    MemberStatus {
        id: "000000000000000f".to_owned(),
        url: url.to_owned(),
        is_leader: false,
        is_voter: true,
        is_reachable: true,
        unconfirmed_entries: 3,
    }
}

#[tokio::test]
async fn every_peer_request_reaches_the_service() {
    let fake = Arc::new(FakeMember::default());
    let server = start(fake.routes()).await;
    let peer = connect_peer(&server.url, &Credentials::default()).unwrap();
    let from = MemberInfo { id: 7, has_state: false, url: "http://c7:7070".to_owned(), incarnation: 3 };
    let answer = MemberInfo { id: 8, has_state: true, ..from.clone() };
    assert_eq!(peer.introduce(from.clone()).await, Ok(answer));
    let messages = vec![Bytes::from_static(b"one"), Bytes::new(), Bytes::from(vec![3; 3 << 20])];
    peer.deliver(from.clone(), messages.clone()).await.unwrap();
    assert_eq!(*fake.delivered.lock().unwrap(), messages);
    assert_eq!(*fake.senders.lock().unwrap(), std::slice::from_ref(&from));
    peer.join(from.clone()).await.unwrap();
    assert_eq!(*fake.senders.lock().unwrap(), [from.clone(), from.clone()]);
    *fake.leader.lock().unwrap() = Some("http://b".to_owned());
    assert_eq!(peer.join(from).await, Err(ServiceError::not_leader("http://b")));
    let manifest = Arc::new(fake::large_manifest());
    let id = id_of(&manifest).await;
    assert_eq!(peer.load_index("k", &id).await.unwrap_err().kind, ServiceErrorKind::NotFound);
    for _ in 0..2 {
        let in_use = ["one".to_owned(), "two".to_owned()];
        within(peer.store_index("k", Arc::clone(&manifest), &in_use)).await.unwrap();
    }
    assert_eq!(*fake.sent.lock().unwrap(), 1, "a stored index is not sent again");
    assert_eq!(within(peer.load_index("k", &id)).await.unwrap(), manifest);
}

#[tokio::test]
async fn members_are_listed_added_and_removed() {
    let fake = Arc::new(FakeMember::default());
    let server = start(fake.routes()).await;
    let members = connect_coordinator(&server.url, &Credentials::default()).unwrap();
    assert_eq!(members.add_member("http://a").await, Ok(vec![member("http://a")]));
    assert_eq!(members.members().await, Ok(vec![member("http://a")]));
    let leader = MemberStatus { is_leader: true, ..member("http://a") };
    assert_eq!(members.transfer_leader(&leader.id).await, Ok(vec![leader.clone()]));
    let kept = members.sync_members(["http://a".to_owned(), "http://c".to_owned()]).await;
    assert_eq!(kept, Ok(vec![leader]));
    assert_eq!(members.remove_member("http://a").await, Ok(Vec::new()));
    *fake.leader.lock().unwrap() = Some("http://b".to_owned());
    assert_eq!(members.members().await, Err(ServiceError::not_leader("http://b")));
}

#[tokio::test]
async fn a_client_switches_to_the_leader_and_learns_all_members() {
    let (first, second, third) = (FakeMember::default(), FakeMember::default(), FakeMember::default());
    let fakes = [Arc::new(first), Arc::new(second), Arc::new(third)];
    let mut servers = Vec::new();
    for fake in &fakes {
        servers.push(start(fake.routes()).await);
    }
    let urls: Vec<String> = servers.iter().map(|server| server.url.clone()).collect();
    for fake in &fakes {
        *fake.members.lock().unwrap() = urls.iter().map(|url| member(url)).collect();
    }
    *fakes[0].leader.lock().unwrap() = Some(urls[1].clone());
    let failover = Arc::new(failover::FailoverCoordinator::new(&urls[..1], &Credentials::default()).unwrap());
    let client: Arc<dyn CoordinatorService> = failover.clone();
    assert_eq!(
        client.open_job(samples::spec()).await,
        Ok(JobId(5)),
        "the first coordinator names the second as leader"
    );
    let learned = async {
        while failover.urls().len() < 3 {
            tokio::task::yield_now().await;
        }
    };
    within(learned).await;
    servers[0].task.abort();
    servers[1].task.abort();
    let found = async {
        while client.cancel_job(JobId(1)).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    within(found).await;
}

#[tokio::test]
async fn a_client_of_coordinators_that_name_each_other_as_leader_gets_an_error() {
    let fakes = [Arc::new(FakeMember::default()), Arc::new(FakeMember::default())];
    let servers = [start(fakes[0].routes()).await, start(fakes[1].routes()).await];
    for (fake, other) in fakes.iter().zip(servers.iter().rev()) {
        *fake.leader.lock().unwrap() = Some(other.url.clone());
    }
    let client =
        connect_coordinators(&[servers[0].url.clone(), servers[1].url.clone()], &Credentials::default())
            .unwrap();
    let error = within(client.cancel_job(JobId(1))).await.unwrap_err();
    assert_eq!(error.kind, ServiceErrorKind::Unavailable);
}

#[tokio::test]
async fn a_client_ignores_the_malformed_address_of_a_leader() {
    let fakes = [Arc::new(FakeMember::default()), Arc::new(FakeMember::default())];
    let servers = [start(fakes[0].routes()).await, start(fakes[1].routes()).await];
    let urls = [servers[0].url.clone(), servers[1].url.clone()];
    for named in ["", "no address"] {
        *fakes[0].leader.lock().unwrap() = Some(named.to_owned());
        let client = connect_coordinators(&urls, &Credentials::default()).unwrap();
        assert_eq!(within(client.cancel_job(JobId(1))).await, Ok(()), "the second coordinator leads");
        let client = connect_coordinators(&urls[..1], &Credentials::default()).unwrap();
        let error = within(client.cancel_job(JobId(1))).await.unwrap_err();
        assert_eq!(error.kind, ServiceErrorKind::Unavailable, "{error}");
        *fakes[0].leader.lock().unwrap() = None;
        assert_eq!(within(client.cancel_job(JobId(1))).await, Ok(()), "the first coordinator leads");
    }
}

#[tokio::test]
async fn a_client_skips_coordinators_with_another_protocol_version() {
    let (other, own) = (Arc::new(FakeMember::default()), Arc::new(FakeMember::default()));
    let authenticators = Authenticators::allow_all(Arc::clone(&other) as _, Arc::clone(&other) as _);
    let other_server = start(member_routes_with_version(authenticators, PROTOCOL_VERSION + 1)).await;
    let own_server = start(own.routes()).await;
    let urls = [other_server.url.clone(), own_server.url.clone()];
    for urls in [urls.clone(), [urls[1].clone(), urls[0].clone()]] {
        let client = connect_coordinators(&urls, &Credentials::default()).unwrap();
        assert_eq!(within(client.cancel_job(JobId(1))).await, Ok(()));
    }
    // A coordinator of the same version names a leader that has another version.
    *own.leader.lock().unwrap() = Some(other_server.url.clone());
    let client = connect_coordinators(&urls, &Credentials::default()).unwrap();
    let error = within(client.cancel_job(JobId(1))).await.unwrap_err();
    assert!(error.is_version_mismatch, "{error}");
    let versions = [PROTOCOL_VERSION, PROTOCOL_VERSION + 1].map(|version| format!("version {version}"));
    assert!(versions.iter().all(|version| error.message.contains(version)), "{error}");
    let peer = connect_peer(&other_server.url, &Credentials::default()).unwrap();
    assert!(peer.deliver(MemberInfo::default(), Vec::new()).await.unwrap_err().is_version_mismatch);
    let peer = connect_peer_with_version(&other_server.url, &Credentials::default(), PROTOCOL_VERSION + 1);
    assert_eq!(peer.unwrap().deliver(MemberInfo::default(), Vec::new()).await, Ok(()));
}
