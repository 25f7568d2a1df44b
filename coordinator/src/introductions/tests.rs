//! Tests of requests to join.

use async_trait::async_trait;
use bytes::Bytes;
use feedline_data::manifest::Manifest;
use feedline_raft::MemberId;

use super::*;
use crate::identity::OwnIdentity;
use crate::peers::PeerDirectory;

/// A leader, or a follower that names a malformed address of the leader.
struct Fake {
    leads: bool,
}

fn refusal() -> ServiceError {
    ServiceError::new(ServiceErrorKind::Unavailable, "the fake does not serve this request")
}

#[async_trait]
impl PeerService for Fake {
    async fn introduce(&self, _from: MemberInfo) -> Result<MemberInfo, ServiceError> {
        Err(refusal())
    }

    async fn join(&self, _from: MemberInfo) -> Result<(), ServiceError> {
        if self.leads { Ok(()) } else { Err(ServiceError::not_leader("malformed")) }
    }

    async fn deliver(&self, _sender: MemberInfo, _messages: Vec<Bytes>) -> Result<(), ServiceError> {
        Err(refusal())
    }

    async fn store_index(&self, _: &str, _: Arc<Manifest>, _: &[String]) -> Result<(), ServiceError> {
        Err(refusal())
    }

    async fn load_index(&self, _key: &str, _reference: &str) -> Result<Arc<Manifest>, ServiceError> {
        Err(refusal())
    }
}

struct Directory;

impl PeerDirectory for Directory {
    fn peer(&self, url: &str) -> Result<Arc<dyn PeerService>, ServiceError> {
        if url == "malformed" {
            return Err(ServiceError::new(ServiceErrorKind::Invalid, "the address is malformed"));
        }
        Ok(Arc::new(Fake { leads: url == "leader" }))
    }
}

#[tokio::test]
async fn a_malformed_address_of_the_leader_does_not_end_a_request_to_join() {
    let own = Arc::new(OwnIdentity::new(MemberId::from_random(8), String::new(), 1, false));
    let (peers, _outcomes) = Peers::new(own, Arc::new(Directory));
    let (events, _inbox) = mpsc::channel(1);
    let mut introductions = Introductions::new(Arc::new(peers), Vec::new(), events);
    // The follower is asked first.
    for url in ["follower", "leader"] {
        introductions.clients.insert(url.to_owned(), Directory.peer(url).unwrap());
    }
    assert_eq!(introductions.join().await, Ok(()));
}
