//! Accepts TLS connections. The number of concurrent handshakes is limited.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio_rustls::server::TlsStream;

use crate::accept::accept_next;
use crate::{Protocol, Tls};

/// Limits on TLS handshakes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HandshakeLimits {
    /// Maximum number of concurrent handshakes. If there are more, the oldest handshake of the network with the most
    /// handshakes is aborted, because an honest client finishes soon.
    pub(crate) max_concurrent: usize,
    /// Timeout of a handshake.
    pub(crate) timeout: Duration,
}

impl Default for HandshakeLimits {
    fn default() -> Self {
        Self { max_concurrent: 1024, timeout: Duration::from_secs(2) }
    }
}

/// Number of 16-bit groups of an IPv6 address that identify its network. A client usually controls all addresses of its
/// network.
const NETWORK_GROUPS: usize = 4;

/// Returns the accepted connections for `protocol`. A connection whose handshake fails is closed without a response, and
/// does not delay others.
pub fn incoming_connections(
    listener: TcpListener,
    tls: Arc<Tls>,
    protocol: Protocol,
) -> BoxStream<'static, TlsStream<TcpStream>> {
    incoming_connections_within(listener, tls, protocol, HandshakeLimits::default())
}

/// Like [`incoming_connections`], with other limits.
pub(crate) fn incoming_connections_within(
    listener: TcpListener,
    tls: Arc<Tls>,
    protocol: Protocol,
    limits: HandshakeLimits,
) -> BoxStream<'static, TlsStream<TcpStream>> {
    let handshakes = Handshakes { tls, protocol, limits, tasks: JoinSet::new(), open: VecDeque::new() };
    stream::unfold((listener, handshakes), |(listener, mut handshakes)| async move {
        let connection = handshakes.accept(&listener).await;
        Some((connection, (listener, handshakes)))
    })
    .boxed()
}

/// Running handshakes, one task each. Dropping the struct aborts them.
struct Handshakes {
    tls: Arc<Tls>,
    protocol: Protocol,
    limits: HandshakeLimits,
    tasks: JoinSet<io::Result<TlsStream<TcpStream>>>,
    /// Running handshakes, oldest first.
    open: VecDeque<OpenHandshake>,
}

/// A running handshake.
struct OpenHandshake {
    network: IpAddr,
    task: AbortHandle,
}

impl Handshakes {
    /// Accepts connections until a handshake succeeds.
    async fn accept(&mut self, listener: &TcpListener) -> TlsStream<TcpStream> {
        loop {
            tokio::select! {
                (stream, address) = accept_next(|cx| listener.poll_accept(cx)) => self.start(stream, address.ip()),
                Some(ended) = self.tasks.join_next_with_id() => {
                    if let Some(stream) = self.on_ended(ended) {
                        return stream;
                    }
                }
            }
        }
    }

    fn start(&mut self, stream: TcpStream, address: IpAddr) {
        let is_full = self.open.len() >= self.limits.max_concurrent;
        let networks = self.open.iter().map(|handshake| handshake.network);
        let evicted = is_full.then(|| oldest_of_largest_network(networks)).flatten();
        if let Some(evicted) = evicted.and_then(|index| self.open.remove(index)) {
            evicted.task.abort();
        }
        let (tls, protocol, timeout) = (Arc::clone(&self.tls), self.protocol, self.limits.timeout);
        let task = self.tasks.spawn(async move {
            stream.set_nodelay(true)?;
            let late = |_| io::Error::from(io::ErrorKind::TimedOut);
            tokio::time::timeout(timeout, tls.accept(stream, protocol)).await.map_err(late)?
        });
        self.open.push_back(OpenHandshake { network: network_of(address), task });
    }

    fn on_ended(
        &mut self,
        ended: Result<(Id, io::Result<TlsStream<TcpStream>>), JoinError>,
    ) -> Option<TlsStream<TcpStream>> {
        let (id, result) = match ended {
            Ok(ended) => ended,
            Err(error) => (error.id(), Err(io::Error::other(error))),
        };
        // An evicted handshake is no longer in the list.
        self.open.retain(|handshake| handshake.task.id() != id);
        result.inspect_err(|error| tracing::debug!(%error, "TLS handshake failed")).ok()
    }
}

/// Returns the index of the oldest handshake of the network with the most handshakes. If several networks have
/// the most handshakes, selects the network with the oldest handshake.
fn oldest_of_largest_network(networks: impl Iterator<Item = IpAddr>) -> Option<usize> {
    let mut counts: HashMap<IpAddr, (usize, Reverse<usize>)> = HashMap::new();
    for (index, network) in networks.enumerate() {
        counts.entry(network).or_insert((0, Reverse(index))).0 += 1;
    }
    counts.into_values().max().map(|(_, Reverse(oldest))| oldest)
}

/// Returns the network of an address. Clients of one network may be one user.
fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let mut groups = address.segments();
            groups[NETWORK_GROUPS..].fill(0);
            Ipv6Addr::from(groups).into()
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_network_are_equal() {
        let of = |text: &str| network_of(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), of("2001:db8:1:2::1"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.2"), of("10.0.0.1"));
    }

    #[test]
    fn the_largest_network_is_evicted_first() {
        let evicted = |hosts: &[u8]| {
            oldest_of_largest_network(hosts.iter().map(|host| IpAddr::from([10, 0, 0, *host])))
        };
        assert_eq!(evicted(&[1, 2, 3, 2, 1, 2]), Some(1));
        assert_eq!(evicted(&[3, 2, 1, 2, 1]), Some(1), "the network with the oldest handshake");
        assert_eq!(evicted(&[4, 5, 6]), Some(0));
        assert_eq!(evicted(&[]), None);
    }
}
