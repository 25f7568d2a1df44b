//! How each method is called, and what whoever calls hears.

use std::fmt::Debug;

use feedline_access::Credentials;
use feedline_data::graph::description::GraphHash;
use feedline_data::ids::JobId;
use feedline_data::layout::SplitRef;
use feedline_data::messages::{ServiceError, ServiceErrorKind, WorkerAddress};
use feedline_proto::local::Transport;
use feedline_proto::{FetchOpen, FetchRequest, GatherRequest, MemberInfo, PROTOCOL_VERSION, grpc};
use futures::{StreamExt, stream};
use serde_json::json;
use tonic::client::Grpc;
use tonic::transport::Endpoint;
use tonic::{Code, Request, Response, Status, Streaming};

use super::Gets::{self, Denied, Nothing, Unknown, Yes};
use super::raw::{Raw, field};
use super::scene::{Scene, consumer_report, leaving_worker};
use super::{MARK, NOWHERE, PATIENCE, Who};

/// What a caller heard.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) gets: Gets,
    pub(crate) text: String,
}

impl<T: Debug> From<Result<T, ServiceError>> for Answer {
    fn from(answer: Result<T, ServiceError>) -> Self {
        match answer {
            Ok(value) => Self { gets: Yes, text: format!("{value:?}") },
            Err(refusal) => {
                let gets = match refusal.kind {
                    ServiceErrorKind::Denied => Denied,
                    ServiceErrorKind::NotFound => Unknown,
                    _ => Gets::Refused,
                };
                Self { gets, text: refusal.message }
            }
        }
    }
}

impl Scene {
    /// Calls a method about the job of `b`, or as whoever it is would.
    pub(crate) async fn ask(&self, method: &str, who: Who) -> Answer {
        let (service, name) = method.rsplit_once('/').expect("methods have a service");
        match service.rsplit('.').next() {
            Some("Coordinator") => self.ask_coordinator(name, who).await,
            Some("Peer") => self.ask_peer(name, who).await,
            Some("Members") => self.ask_members(name, who).await,
            Some("Worker") => self.ask_worker(name, who).await,
            Some("LocalTransport") => self.send(&self.worker.url(), method, who, Vec::new()).await,
            Some("FlightService") => self.ask_flight(method, name, who).await,
            _ => panic!("say how {method} is called"),
        }
    }

    async fn ask_coordinator(&self, name: &str, who: Who) -> Answer {
        let (service, job) = (self.coordinator(who), self.job);
        let own = if matches!(who, Who::B | Who::ObserverOfB) { MARK } else { "ants" };
        match name {
            "OpenJob" => service.open_job(self.spec(own)).await.into(),
            "CancelJob" => service.cancel_job(job).await.into(),
            "SetWeights" => service.set_weights(job, vec![1.0]).await.into(),
            "GetJobDetails" => service.job_details(job).await.into(),
            "GetJobStatus" => service.job_status(job).await.into(),
            "ListJobs" => service.list_jobs().await.into(),
            "GetCluster" => service.cluster().await.into(),
            "GetManifest" => service.manifest(job).await.into(),
            "SyncWorker" => service.sync_worker(leaving_worker()).await.into(),
            "GetPositions" => {
                service.positions(job, feedline_data::checkpoint::StepId::default()).await.into()
            }
            "SyncConsumer" => service.sync_consumer(consumer_report(job, 2)).await.into(),
            _ => panic!("say how {name} is called"),
        }
    }

    async fn ask_peer(&self, name: &str, who: Who) -> Answer {
        let url = self.coordinator.url();
        let peer = grpc::connect_peer(&url, &self.credentials(who)).expect("it has an address");
        let (key, fingerprint) = ("00", "none");
        let method = format!("feedline.v1.Peer/{name}");
        match name {
            "Introduce" => peer.introduce(stranger()).await.into(),
            "Join" => peer.join(stranger()).await.into(),
            "Deliver" => peer.deliver(stranger(), Vec::new()).await.into(),
            "GetIndex" => peer.load_index(key, fingerprint).await.into(),
            "HasIndex" => {
                let index = [field(1, key.as_bytes()), field(2, fingerprint.as_bytes())].concat();
                self.send(&url, &method, who, index).await
            }
            "StoreIndex" => self.send(&url, &method, who, field(1, key.as_bytes())).await,
            _ => panic!("say how {name} is called"),
        }
    }

    async fn ask_members(&self, name: &str, who: Who) -> Answer {
        let members = grpc::connect_coordinator(&self.coordinator.url(), &self.credentials(who));
        let members = members.expect("it has an address");
        match name {
            "ListMembers" => members.members().await.into(),
            "AddMember" => members.add_member(NOWHERE).await.into(),
            "RemoveMember" => members.remove_member(NOWHERE).await.into(),
            "SyncMembers" => members.sync_members([NOWHERE.to_owned()]).await.into(),
            "TransferLeader" => members.transfer_leader("1").await.into(),
            _ => panic!("say how {name} is called"),
        }
    }

    /// Requests rows of the job, or of a feature, with the ticket or the token of the caller.
    async fn ask_worker(&self, name: &str, who: Who) -> Answer {
        let shown = match who {
            Who::A => self.ticket_of_a.clone(),
            Who::B => self.ticket.clone(),
            _ => self.tokens.get(&who).cloned().unwrap_or_default(),
        };
        match name {
            "Fetch" => self.fetch((self.job, self.split), &shown, Transport::Tcp).await.into(),
            "Gather" => self.gather(&shown).await.into(),
            _ => panic!("say how {name} is called"),
        }
    }

    /// Requests a row of a feature of the job.
    async fn gather(&self, ticket: &str) -> Result<usize, ServiceError> {
        let worker = grpc::connect_worker(&self.worker.url(), &Credentials::default())?;
        let (job, feature, ticket) = (self.job, GraphHash(1), ticket.to_owned());
        let rows = worker.gather(GatherRequest { job, feature, row_bytes: 4, rows: vec![0], ticket }).await?;
        Ok(rows.len())
    }

    async fn ask_flight(&self, method: &str, name: &str, who: Who) -> Answer {
        let message = match name {
            "GetFlightInfo" | "GetSchema" => {
                let command = json!({ "pipeline": self.pipeline_text("ants"), "job": "wasps" }).to_string();
                // A descriptor of the kind CMD.
                [vec![0x08, 2], field(2, command.as_bytes())].concat()
            }
            "DoGet" => {
                let place = json!({ "job": self.job.0, "consumer": 0 }).to_string();
                field(1, place.as_bytes())
            }
            _ => Vec::new(),
        };
        self.send(&self.coordinator.url(), method, who, message).await
    }

    /// The first frame of a split.
    pub(crate) async fn fetch(
        &self,
        (job, split): (JobId, SplitRef),
        ticket: &str,
        way: Transport,
    ) -> Result<String, ServiceError> {
        let worker = grpc::connect_worker_over(
            &WorkerAddress::new(self.worker.url()),
            &Credentials::default(),
            way,
            |_, _| {},
        )?;
        let open = FetchOpen {
            job,
            split,
            start_offset: 0,
            credit_bytes: 1 << 20,
            ticket: ticket.to_owned(),
            cached_features: Vec::new(),
        };
        let requests = stream::once(async { FetchRequest::Open(open) }).boxed();
        let mut frames = worker.fetch(requests).await?;
        let first = tokio::time::timeout(PATIENCE, frames.next()).await.expect("it answers");
        first.unwrap_or_else(|| panic!("a split has rows, by {way:?}")).map(|frame| format!("{frame:?}"))
    }

    /// Sends one message as it is.
    pub(crate) async fn call(
        &self,
        url: &str,
        method: &str,
        token: Option<&String>,
        message: Vec<u8>,
    ) -> Result<Streaming<Vec<u8>>, Status> {
        let endpoint = Endpoint::from_shared(url.to_owned()).expect("it is an address").timeout(PATIENCE);
        let mut client = Grpc::new(endpoint.connect_lazy());
        client.ready().await.expect("it listens");
        let mut request = Request::new(stream::once(async { message }));
        request.metadata_mut().insert("feedline-protocol", PROTOCOL_VERSION.into());
        if let Some(token) = token {
            let shown = format!("Bearer {token}").parse().expect("tokens are fit for headers");
            request.metadata_mut().insert("authorization", shown);
        }
        let path = format!("/{method}").parse().expect("methods make paths");
        client.streaming(request, path, Raw).await.map(Response::into_inner)
    }

    /// Sends one message as it is, and reads at most two of the answer.
    async fn send(&self, url: &str, method: &str, who: Who, message: Vec<u8>) -> Answer {
        let mut heard: Vec<Vec<u8>> = Vec::new();
        let refused = match self.call(url, method, self.tokens.get(&who), message).await {
            Err(status) => Some(status),
            Ok(mut messages) => loop {
                match messages.message().await {
                    Ok(Some(message)) => heard.push(message),
                    Ok(None) => break None,
                    Err(status) => break Some(status),
                }
                if heard.len() == 2 {
                    break None;
                }
            },
        };
        let text = String::from_utf8_lossy(&heard.concat()).into_owned();
        match refused {
            None if heard.is_empty() => Answer { gets: Nothing, text },
            None => Answer { gets: Yes, text },
            Some(status) => Answer { gets: of_status(&status), text: text + status.message() },
        }
    }
}

/// The identity of a coordinator that is not a member.
fn stranger() -> MemberInfo {
    MemberInfo { id: 7, ..MemberInfo::default() }
}

fn of_status(status: &Status) -> Gets {
    match status.code() {
        Code::PermissionDenied | Code::Unauthenticated => Denied,
        // The error that a consumer inside the coordinator received.
        Code::FailedPrecondition if status.message().contains("use a token with the scope") => Denied,
        Code::NotFound => Unknown,
        Code::Unimplemented => Nothing,
        _ => Gets::Refused,
    }
}
