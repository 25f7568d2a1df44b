//! Settings of gRPC connections: timeouts, windows and sizes that client and server share.

use std::time::Duration;

/// Time to connect to a remote process before it counts as unreachable.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval between keepalive pings, also on idle connections.
pub(super) const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
/// A remote process that does not answer a ping for this long is considered dead.
pub(super) const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(4);
/// Flow-control window of a stream and of a connection. tonic's default halves the throughput.
pub(super) const WINDOW_BYTES: u32 = 16 << 20;
/// Maximum size of an HTTP/2 frame that a process accepts. Senders respect the receiver's value.
pub(super) const MAX_FRAME_BYTES: u32 = 1 << 20;
/// Maximum number of open connections of a listener. A coordinator may have 50,000 consumers and 10,000 workers.
pub(super) const MAX_CONNECTIONS: usize = 65_536;
/// Maximum number of concurrent streams on a connection. A consumer fetches a few splits at a time, and a node sends a few control
/// requests.
pub(super) const MAX_STREAMS: u32 = 1024;
/// Maximum size of a chunk of a batch. A chunk of this size stays in the CPU cache while it is sent.
pub(super) const MAX_CHUNK_BYTES: usize = 512 << 10;
/// Maximum size of a chunk of a manifest.
pub(super) const MANIFEST_CHUNK_BYTES: usize = 1 << 20;
