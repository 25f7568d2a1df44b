//! The addresses of the coordinators of a cluster, and the one that receives the requests of a client. It does not send
//! requests.
//!
//! A client outside of the network of the coordinators may reach them only through a load balancer. The addresses that
//! coordinators name are then unreachable, and only a new connection to the balancer leads to another coordinator.

use std::sync::Arc;
use std::time::{Duration, Instant};

use feedline_access::Credentials;
use feedline_data::messages::{ServiceError, ServiceErrorKind};

use crate::grpc::coordinator_client::connect_coordinator;
use crate::rpc::CoordinatorService;

/// Time for which a client avoids an unreachable address that a coordinator has named. Each attempt to connect may take a
/// second.
const AVOIDANCE: Duration = Duration::from_secs(30);
/// Minimum age of a connection to the only known address before another one replaces it. During an election, thousands of
/// clients must not connect again for each retry.
const MIN_CONNECTION_AGE: Duration = Duration::from_secs(2);

/// The addresses of the coordinators.
pub(super) struct CoordinatorDirectory {
    addresses: Vec<CoordinatorAddress>,
    /// Index of the address that receives the requests.
    current: usize,
    /// Whether the current coordinator has been asked for the addresses of all members.
    pub(super) has_learned_members: bool,
    credentials: Credentials,
}

/// The address of a coordinator, or of a load balancer in front of several.
struct CoordinatorAddress {
    url: String,
    /// Whether the user has set the address. Otherwise, a coordinator has named it.
    is_configured: bool,
    /// `None` until the next request, which connects.
    client: Option<Arc<dyn CoordinatorService>>,
    connected_at: Instant,
    /// Whether the last request was answered.
    has_answered: bool,
    /// When the last request found a named address unreachable.
    unreachable_since: Option<Instant>,
}

/// The coordinator that receives a request.
pub(super) struct RequestTarget {
    pub(super) url: String,
    pub(super) client: Arc<dyn CoordinatorService>,
    pub(super) other_coordinators: usize,
    has_answered: bool,
}

/// Where a request goes after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NextTarget {
    /// To another address.
    OtherAddress,
    /// To a configured address over a new connection, for which a load balancer may select another coordinator.
    NewConnection,
    /// Nowhere: no other coordinator is known.
    Nowhere,
}

impl CoordinatorDirectory {
    /// Creates the directory of the addresses that the user has set.
    pub(super) fn new(urls: &[String], credentials: &Credentials) -> Result<Self, ServiceError> {
        if urls.is_empty() {
            return Err(ServiceError::new(
                ServiceErrorKind::Invalid,
                "the list of coordinators is empty; add at least one address, such as http://HOST:PORT",
            ));
        }
        let mut addresses = Vec::new();
        for url in urls {
            let client = connect_coordinator(url, credentials)?;
            let address = CoordinatorAddress::new(url);
            addresses.push(CoordinatorAddress { is_configured: true, client: Some(client), ..address });
        }
        Ok(Self { addresses, current: 0, has_learned_members: false, credentials: credentials.clone() })
    }

    /// Number of addresses.
    pub(super) fn len(&self) -> usize {
        self.addresses.len()
    }

    /// Returns the coordinator that receives the next request.
    pub(super) fn current_target(&mut self) -> Result<RequestTarget, ServiceError> {
        self.target_at(self.current)
    }

    /// Returns the coordinator at an address that a coordinator has named, even if it is avoided; `None` for an address that
    /// cannot be used.
    pub(super) fn target_of(&mut self, url: &str) -> Option<RequestTarget> {
        let index = self.add_named(url)?;
        self.target_at(index).ok()
    }

    fn target_at(&mut self, index: usize) -> Result<RequestTarget, ServiceError> {
        let other_coordinators = self.addresses.len() - 1;
        let address = &mut self.addresses[index];
        let client = match &address.client {
            Some(client) => Arc::clone(client),
            None => {
                let client = connect_coordinator(&address.url, &self.credentials)?;
                address.client = Some(Arc::clone(&client));
                address.connected_at = Instant::now();
                client
            }
        };
        let has_answered = address.has_answered;
        Ok(RequestTarget { url: address.url.clone(), client, other_coordinators, has_answered })
    }

    /// Records whether a request was answered.
    pub(super) fn record(&mut self, url: &str, is_unreachable: bool, now: Instant) {
        let Some(address) = self.addresses.iter_mut().find(|address| address.url == url) else { return };
        address.has_answered = !is_unreachable;
        let is_avoided = is_unreachable && !address.is_configured;
        if is_avoided && address.unreachable_since.is_none() {
            tracing::debug!(%url, "this address of a coordinator is unreachable; requests avoid it");
        }
        address.unreachable_since = is_avoided.then_some(now);
    }

    /// Sends later requests to this address.
    pub(super) fn select(&mut self, url: &str) {
        self.current = self.add_named(url).unwrap_or(self.current);
        self.has_learned_members = false;
    }

    /// After a failed request to `target`, selects the leader, or the next coordinator if the leader is unknown. If their
    /// addresses are unreachable, selects a configured address over a new connection. Selects nothing if another request has
    /// already switched away from `target`.
    pub(super) fn switch_from(
        &mut self,
        target: &RequestTarget,
        leader: Option<&str>,
        now: Instant,
    ) -> NextTarget {
        let current = &self.addresses[self.current];
        if current.url != target.url {
            return NextTarget::OtherAddress;
        }
        if !current.client.as_ref().is_some_and(|client| Arc::ptr_eq(client, &target.client)) {
            return NextTarget::NewConnection;
        }
        self.has_learned_members = false;
        let next = match leader.and_then(|leader| self.add_named(leader)) {
            Some(index) if index == self.current => return NextTarget::Nowhere,
            Some(index) => Some(index).filter(|index| !self.addresses[*index].is_avoided(now)),
            None if self.addresses.len() == 1 => {
                self.replace_old_connection(now);
                return NextTarget::Nowhere;
            }
            None => self.following().find(|index| !self.addresses[*index].is_avoided(now)),
        };
        match next {
            Some(index) => {
                self.current = index;
                NextTarget::OtherAddress
            }
            None => {
                self.reconnect();
                NextTarget::NewConnection
            }
        }
    }

    /// Returns the indexes of the other addresses in turn.
    fn following(&self) -> impl Iterator<Item = usize> + use<> {
        let (current, count) = (self.current, self.addresses.len());
        (1..count).map(move |step| (current + step) % count)
    }

    /// Selects the next configured address, and lets the next request connect again. Requests in progress keep the old
    /// connection until their responses arrive.
    fn reconnect(&mut self) {
        let current = self.current;
        let configured = self.following().chain([current]).find(|index| self.addresses[*index].is_configured);
        self.current = configured.unwrap_or(current);
        self.addresses[self.current].client = None;
    }

    /// Lets the next request connect again, unless the connection is new.
    fn replace_old_connection(&mut self, now: Instant) {
        let address = &mut self.addresses[self.current];
        if now.saturating_duration_since(address.connected_at) >= MIN_CONNECTION_AGE {
            address.client = None;
        }
    }

    /// Adds the addresses of the members. Removes other named addresses that are unreachable, so that a client that runs for
    /// months does not try each address that a coordinator has ever had.
    pub(super) fn set_members(&mut self, urls: &[&str]) {
        let current = self.addresses[self.current].url.clone();
        self.addresses.retain(|address| {
            address.unreachable_since.is_none()
                || address.url == current
                || urls.contains(&address.url.as_str())
        });
        self.current = self.index_of(&current).unwrap_or_default();
        urls.iter().for_each(|url| {
            self.add_named(url);
        });
    }

    fn index_of(&self, url: &str) -> Option<usize> {
        self.addresses.iter().position(|known| known.url == url)
    }

    /// Returns the index of an address that a coordinator has named. Adds the address if it is new. Returns `None` for an
    /// address that cannot be used, so that a coordinator with a wrong `--advertise` does not fail the client's requests.
    fn add_named(&mut self, url: &str) -> Option<usize> {
        if let Some(index) = self.index_of(url) {
            return Some(index);
        }
        let connected = connect_coordinator(url, &self.credentials);
        let ignored = |error: &ServiceError| {
            tracing::debug!(%url, %error, "ignoring this address of a coordinator");
        };
        let client = Some(connected.inspect_err(ignored).ok()?);
        self.addresses.push(CoordinatorAddress { client, ..CoordinatorAddress::new(url) });
        Some(self.addresses.len() - 1)
    }
}

impl CoordinatorAddress {
    /// Creates an address that a coordinator has named.
    fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            is_configured: false,
            client: None,
            connected_at: Instant::now(),
            has_answered: false,
            unreachable_since: None,
        }
    }

    fn is_avoided(&self, now: Instant) -> bool {
        self.unreachable_since.is_some_and(|since| now.saturating_duration_since(since) < AVOIDANCE)
    }
}

impl RequestTarget {
    /// The error of a request without a response. An address that has answered before is slow, not unreachable.
    pub(super) fn not_responding(&self) -> ServiceError {
        let message = format!("the coordinator at {} is not responding", self.url);
        let error = ServiceError::unreachable(message);
        ServiceError { is_unreachable: !self.has_answered, ..error }
    }
}

#[cfg(test)]
impl CoordinatorDirectory {
    /// All addresses.
    pub(super) fn urls(&self) -> Vec<String> {
        self.addresses.iter().map(|address| address.url.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_unreachable_address_that_a_coordinator_has_named_is_avoided_for_a_while() {
        let (configured, leader) = ("http://127.0.0.1:1".to_owned(), "http://127.0.0.1:2");
        let mut directory =
            CoordinatorDirectory::new(std::slice::from_ref(&configured), &Credentials::default()).unwrap();
        let now = Instant::now();
        let follower = directory.current_target().unwrap();
        assert_eq!(directory.switch_from(&follower, Some(leader), now), NextTarget::OtherAddress);
        let named = directory.current_target().unwrap();
        assert_eq!(named.url, leader);
        directory.record(leader, true, now);
        assert_eq!(directory.switch_from(&named, None, now), NextTarget::OtherAddress);
        let follower = directory.current_target().unwrap();
        assert_eq!(follower.url, configured);
        assert_eq!(directory.switch_from(&follower, Some(leader), now), NextTarget::NewConnection);
        let connected = directory.current_target().unwrap();
        assert_eq!(connected.url, configured);
        assert!(!Arc::ptr_eq(&connected.client, &follower.client), "the connection is new");
        // Another request that failed over the old connection uses the new one, too.
        assert_eq!(directory.switch_from(&follower, Some(leader), now), NextTarget::NewConnection);
        assert!(Arc::ptr_eq(&directory.current_target().unwrap().client, &connected.client));
        assert_eq!(
            directory.switch_from(&connected, Some(leader), now + AVOIDANCE),
            NextTarget::OtherAddress
        );
    }

    #[tokio::test]
    async fn an_address_that_cannot_be_used_is_ignored() {
        let urls = [1, 2].map(|port| format!("http://127.0.0.1:{port}"));
        let mut directory = CoordinatorDirectory::new(&urls, &Credentials::default()).unwrap();
        let now = Instant::now();
        for wrong in ["", "http://", "coordinator 3", "http://[::1"] {
            let target = directory.current_target().unwrap();
            assert_eq!(directory.switch_from(&target, Some(wrong), now), NextTarget::OtherAddress);
            assert_ne!(directory.current_target().unwrap().url, target.url, "as without a known leader");
            assert!(directory.target_of(wrong).is_none());
            directory.set_members(&[wrong]);
        }
        assert_eq!(directory.urls(), urls);
    }

    #[tokio::test]
    async fn an_unreachable_address_of_no_member_is_removed() {
        let urls = [1, 2].map(|port| format!("http://127.0.0.1:{port}"));
        let mut directory = CoordinatorDirectory::new(&urls, &Credentials::default()).unwrap();
        let [member, silent, lost] = ["http://127.0.0.1:3", "http://127.0.0.1:4", "http://127.0.0.1:5"];
        directory.set_members(&[lost, silent, member]);
        directory.select(member);
        for url in [urls[0].as_str(), silent, lost] {
            directory.record(url, true, Instant::now());
        }
        directory.set_members(&[member, silent]);
        assert_eq!(directory.urls(), [urls[0].as_str(), urls[1].as_str(), silent, member]);
        assert_eq!(directory.current_target().unwrap().url, member);
    }

    #[tokio::test]
    async fn an_address_that_has_answered_is_slow_rather_than_unreachable() {
        let mut directory =
            CoordinatorDirectory::new(&["http://127.0.0.1:1".to_owned()], &Credentials::default()).unwrap();
        assert!(directory.current_target().unwrap().not_responding().is_unreachable);
        directory.record("http://127.0.0.1:1", false, Instant::now());
        assert!(!directory.current_target().unwrap().not_responding().is_unreachable);
    }

    #[tokio::test]
    async fn the_only_address_is_connected_again_at_intervals() {
        let mut directory =
            CoordinatorDirectory::new(&["http://127.0.0.1:1".to_owned()], &Credentials::default()).unwrap();
        let first = directory.current_target().unwrap();
        let now = Instant::now();
        assert_eq!(directory.switch_from(&first, None, now), NextTarget::Nowhere);
        assert!(Arc::ptr_eq(&directory.current_target().unwrap().client, &first.client));
        assert_eq!(directory.switch_from(&first, None, now + MIN_CONNECTION_AGE), NextTarget::Nowhere);
        assert!(!Arc::ptr_eq(&directory.current_target().unwrap().client, &first.client));
    }
}
