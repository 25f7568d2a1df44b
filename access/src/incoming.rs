//! Connections as they come, once they have proved who they are.

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

use crate::{Protocol, Tls};

/// What clients that are to prove who they are may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HandshakeLimits {
    /// Clients that do so at once. Of more the oldest of the network with the most gives way, since who is honest is done soon.
    pub(crate) most: usize,
    /// Time that each has.
    pub(crate) timeout: Duration,
}

impl Default for HandshakeLimits {
    fn default() -> Self {
        Self { most: 1024, timeout: Duration::from_secs(2) }
    }
}

/// Pause after the system could accept none, such as for want of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// Groups of an IPv6 address that tell networks apart: whoever has one address has all of its network.
const NETWORK_GROUPS: usize = 4;

/// Connections over which `protocol` can be spoken. Those that do not prove what they have to are closed without an
/// answer, and hold nobody up.
pub fn incoming(
    listener: TcpListener,
    tls: Arc<Tls>,
    protocol: Protocol,
) -> BoxStream<'static, TlsStream<TcpStream>> {
    incoming_with(listener, tls, protocol, HandshakeLimits::default())
}

/// As [`incoming`], within other limits.
pub(crate) fn incoming_with(
    listener: TcpListener,
    tls: Arc<Tls>,
    protocol: Protocol,
    limits: HandshakeLimits,
) -> BoxStream<'static, TlsStream<TcpStream>> {
    let handshakes = Handshakes { tls, protocol, limits, tasks: JoinSet::new(), open: VecDeque::new() };
    stream::unfold((listener, handshakes), |(listener, mut handshakes)| async move {
        let proved = handshakes.next(&listener).await;
        Some((proved, (listener, handshakes)))
    })
    .boxed()
}

/// Handshakes under way, each a task of its own. They end with this.
struct Handshakes {
    tls: Arc<Tls>,
    protocol: Protocol,
    limits: HandshakeLimits,
    tasks: JoinSet<io::Result<TlsStream<TcpStream>>>,
    /// The oldest first.
    open: VecDeque<Open>,
}

/// One of them.
struct Open {
    from: IpAddr,
    task: AbortHandle,
}

impl Handshakes {
    /// Accepts connections until one has proved what it has to.
    async fn next(&mut self, listener: &TcpListener) -> TlsStream<TcpStream> {
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, from)) => self.begin(stream, from.ip()),
                    Err(error) => {
                        tracing::warn!(%error, "a connection cannot be accepted");
                        tokio::time::sleep(PAUSE).await;
                    }
                },
                Some(ended) = self.tasks.join_next_with_id() => {
                    if let Some(stream) = self.on_ended(ended) {
                        return stream;
                    }
                }
            }
        }
    }

    fn begin(&mut self, stream: TcpStream, from: IpAddr) {
        let from = network(from);
        let is_full = self.open.len() >= self.limits.most;
        let gives_way = is_full.then(|| oldest_of_most(self.open.iter().map(|open| open.from))).flatten();
        if let Some(oldest) = gives_way.and_then(|place| self.open.remove(place)) {
            oldest.task.abort();
        }
        let (tls, protocol, timeout) = (Arc::clone(&self.tls), self.protocol, self.limits.timeout);
        let task = self.tasks.spawn(async move {
            stream.set_nodelay(true)?;
            let late = |_| io::Error::from(io::ErrorKind::TimedOut);
            tokio::time::timeout(timeout, tls.accept(stream, protocol)).await.map_err(late)?
        });
        self.open.push_back(Open { from, task });
    }

    fn on_ended(
        &mut self,
        ended: Result<(Id, io::Result<TlsStream<TcpStream>>), JoinError>,
    ) -> Option<TlsStream<TcpStream>> {
        let (id, proved) = match ended {
            Ok(ended) => ended,
            Err(error) => (error.id(), Err(io::Error::other(error))),
        };
        // One that gave way is no longer there.
        self.open.retain(|open| open.task.id() != id);
        proved.inspect_err(|error| tracing::debug!(%error, "a connection did not prove who it is")).ok()
    }
}

/// The place of the first of those who are the most from one network; of networks with as many the one that came first.
fn oldest_of_most(open: impl Iterator<Item = IpAddr>) -> Option<usize> {
    let mut networks: HashMap<IpAddr, (usize, Reverse<usize>)> = HashMap::new();
    for (place, from) in open.enumerate() {
        networks.entry(from).or_insert((0, Reverse(place))).0 += 1;
    }
    networks.into_values().max().map(|(_, Reverse(oldest))| oldest)
}

/// Those who come from there may be one.
fn network(address: IpAddr) -> IpAddr {
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
    fn addresses_of_one_network_are_one() {
        let of = |text: &str| network(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), of("2001:db8:1:2::1"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.2"), of("10.0.0.1"));
    }

    #[test]
    fn the_network_with_the_most_gives_way_first() {
        let gives_way = |from: &[u8]| oldest_of_most(from.iter().map(|last| IpAddr::from([10, 0, 0, *last])));
        assert_eq!(gives_way(&[1, 2, 3, 2, 1, 2]), Some(1));
        assert_eq!(gives_way(&[3, 2, 1, 2, 1]), Some(1), "of two the one that came first");
        assert_eq!(gives_way(&[4, 5, 6]), Some(0));
        assert_eq!(gives_way(&[]), None);
    }
}
