//! The client side of shared memory: maps the regions of a worker, and releases the lease of a piece after its last use.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use feedline_memory::ReadableRegion;
use tokio::net::UnixStream;
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use super::link_id::LinkId;
use super::message::{ShmClientMessage, ShmServerMessage, receive, send};
use crate::wire;

/// Timeout for connecting and receiving the id of the link.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(1);
/// Timeout for the arrival of a region. The worker announces a region on another socket before it sends a piece in the
/// region, so both arrive at about the same time.
const REGION_TIMEOUT: Duration = Duration::from_secs(5);

/// A link to a worker that shares memory. Mapped pieces stay readable after the link has ended.
#[derive(Debug)]
pub(crate) struct ShmClient {
    id: LinkId,
    shared: Arc<Shared>,
    last_fetch: AtomicU64,
    _task: AbortOnDropHandle<()>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Notified when a region arrives or the link ends.
    region_changed: Notify,
    /// Notified when the outbox has a message.
    outbox_changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    regions: HashMap<u64, Arc<ReadableRegion>>,
    /// Messages to the worker. Bounded: at most one for each lease and each fetch.
    outbox: Vec<ShmClientMessage>,
    closed: bool,
}

impl ShmClient {
    /// Connects to the socket at `path`.
    ///
    /// # Errors
    /// Returns an error if no process answers in time.
    pub(crate) async fn connect(path: &Path) -> io::Result<Self> {
        let welcome = async {
            let stream = UnixStream::connect(path).await?;
            match receive(&stream).await? {
                Some((ShmServerMessage::Welcome(id), _)) => Ok((stream, id)),
                _ => Err(io::Error::from(io::ErrorKind::InvalidData)),
            }
        };
        let (stream, id) =
            tokio::time::timeout(WELCOME_TIMEOUT, welcome).await.map_err(|_| io::ErrorKind::TimedOut)??;
        let shared = Arc::new(Shared::default());
        let task = tokio::spawn(Arc::clone(&shared).run(stream));
        Ok(Self { id, shared, last_fetch: AtomicU64::new(0), _task: AbortOnDropHandle::new(task) })
    }

    /// Whether the link has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.shared.lock().closed
    }

    /// Opens a fetch. When it is dropped, the worker reclaims the leases that did not arrive.
    pub(crate) fn open_fetch(&self) -> ShmFetchReceiver {
        let fetch = self.last_fetch.fetch_add(1, Ordering::Relaxed) + 1;
        let LinkId { link, key } = self.id;
        let memory = wire::MemoryLink { link, fetch, key };
        ShmFetchReceiver { memory, last_lease: 0, shared: Arc::clone(&self.shared) }
    }
}

/// The receiver of pieces of one fetch.
#[derive(Debug)]
pub(crate) struct ShmFetchReceiver {
    /// Identifies the fetch to the worker.
    pub(crate) memory: wire::MemoryLink,
    last_lease: u64,
    shared: Arc<Shared>,
}

impl ShmFetchReceiver {
    /// Returns the bytes of a piece. Dropping the last reference releases the lease.
    ///
    /// # Errors
    /// Returns a message if the memory is unavailable.
    pub(crate) async fn map_piece(&mut self, piece: wire::SharedPiece) -> Result<Bytes, String> {
        self.last_lease = piece.lease;
        let lease = LeaseGuard { lease: piece.lease, shared: Arc::clone(&self.shared) };
        let region = tokio::time::timeout(REGION_TIMEOUT, self.shared.region(piece.region)).await;
        let region = region.ok().flatten().ok_or("the shared memory region is unavailable")?;
        let len = usize::try_from(piece.bytes).unwrap_or(usize::MAX);
        if region.bytes(len).is_none() {
            return Err(format!("a piece of {} bytes exceeds its shared memory region", piece.bytes));
        }
        Ok(Bytes::from_owner(MappedPiece { region, len, _lease: lease }))
    }
}

impl Drop for ShmFetchReceiver {
    fn drop(&mut self) {
        self.shared
            .send_later(ShmClientMessage::FetchEnded { fetch: self.memory.fetch, last: self.last_lease });
    }
}

/// A piece in shared memory.
struct MappedPiece {
    region: Arc<ReadableRegion>,
    len: usize,
    /// Released after the region, since fields are dropped in order.
    _lease: LeaseGuard,
}

impl AsRef<[u8]> for MappedPiece {
    fn as_ref(&self) -> &[u8] {
        self.region.bytes(self.len).unwrap_or_default()
    }
}

/// Releases a lease when dropped.
struct LeaseGuard {
    lease: u64,
    shared: Arc<Shared>,
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        self.shared.send_later(ShmClientMessage::Release { lease: self.lease });
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send_later(&self, message: ShmClientMessage) {
        let mut state = self.lock();
        if !state.closed {
            state.outbox.push(message);
            drop(state);
            self.outbox_changed.notify_one();
        }
    }

    /// Waits until the worker has announced a region; `None` if the link has ended.
    async fn region(&self, number: u64) -> Option<Arc<ReadableRegion>> {
        loop {
            let changed = self.region_changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let state = self.lock();
                if let Some(region) = state.regions.get(&number) {
                    return Some(Arc::clone(region));
                }
                if state.closed {
                    return None;
                }
            }
            changed.await;
        }
    }

    /// Receives and sends messages until the link ends.
    async fn run(self: Arc<Self>, stream: UnixStream) {
        let close = CloseGuard(&self);
        let result = tokio::select! {
            result = self.receive_messages(&stream) => result,
            result = self.send_messages(&stream) => result,
        };
        if let Err(error) = result {
            tracing::debug!(%error, "the shared memory connection was closed");
        }
        drop(close);
    }

    async fn receive_messages(&self, stream: &UnixStream) -> io::Result<()> {
        while let Some((message, descriptor)) = receive(stream).await? {
            match (message, descriptor) {
                (ShmServerMessage::RegionAdded { region }, Some(descriptor)) => {
                    let mapped = Arc::new(ReadableRegion::open(descriptor)?);
                    self.lock().regions.insert(region, mapped);
                    self.region_changed.notify_waiters();
                }
                (ShmServerMessage::RegionRemoved { region }, _) => drop(self.lock().regions.remove(&region)),
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        Ok(())
    }

    async fn send_messages(&self, stream: &UnixStream) -> io::Result<()> {
        loop {
            let messages = std::mem::take(&mut self.lock().outbox);
            if messages.is_empty() {
                self.outbox_changed.notified().await;
            }
            for message in messages {
                send(stream, message, None).await?;
            }
        }
    }
}

/// Closes the link, even if its task is aborted.
struct CloseGuard<'a>(&'a Shared);

impl Drop for CloseGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.closed = true;
        state.regions.clear();
        state.outbox.clear();
        drop(state);
        self.0.region_changed.notify_waiters();
    }
}
