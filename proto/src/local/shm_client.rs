//! The client's end of shared memory: maps the regions that a worker lends, and says when it has let go of a piece.

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

/// Time to connect and to be welcomed.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(1);
/// A region is announced before a piece that lies in it, on another socket: it arrives at about the same time.
const REGION_TIMEOUT: Duration = Duration::from_secs(5);

/// A client's link to a worker that lends memory. Pieces that were borrowed stay readable when it is gone.
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
    /// Woken when a region came, or the link has ended.
    arrived: Notify,
    /// Woken when there is something to say.
    news: Notify,
}

#[derive(Debug, Default)]
struct State {
    regions: HashMap<u64, Arc<ReadableRegion>>,
    /// What the worker is to be told: at most one message for each lease and each fetch.
    outbox: Vec<ShmClientMessage>,
    closed: bool,
}

impl ShmClient {
    /// Connects to the socket at `path`.
    ///
    /// # Errors
    /// When nobody answers there in time.
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

    /// Whether the worker has gone.
    pub(crate) fn is_closed(&self) -> bool {
        self.shared.lock().closed
    }

    /// Begins a fetch: what it borrows goes back when it ends before it arrived.
    pub(crate) fn begin(&self) -> ShmFetchReceiver {
        let fetch = self.last_fetch.fetch_add(1, Ordering::Relaxed) + 1;
        let LinkId { link, key } = self.id;
        let memory = wire::MemoryLink { link, fetch, key };
        ShmFetchReceiver { memory, last_lease: 0, shared: Arc::clone(&self.shared) }
    }
}

/// One fetch's view of the link.
#[derive(Debug)]
pub(crate) struct ShmFetchReceiver {
    /// What the worker is told when the fetch is opened.
    pub(crate) memory: wire::MemoryLink,
    last_lease: u64,
    shared: Arc<Shared>,
}

impl ShmFetchReceiver {
    /// The bytes of a piece that was lent. The worker hears when the last reader has let go of them.
    ///
    /// # Errors
    /// One clause, when the memory cannot be reached.
    pub(crate) async fn take(&mut self, lent: wire::Lent) -> Result<Bytes, String> {
        self.last_lease = lent.lease;
        let lease = Leased { lease: lent.lease, shared: Arc::clone(&self.shared) };
        let region = tokio::time::timeout(REGION_TIMEOUT, self.shared.region(lent.region)).await;
        let region = region.ok().flatten().ok_or("the worker's shared memory is gone")?;
        let len = usize::try_from(lent.bytes).unwrap_or(usize::MAX);
        if region.bytes(len).is_none() {
            return Err(format!("{} bytes do not lie in the worker's shared memory", lent.bytes));
        }
        Ok(Bytes::from_owner(View { region, len, _lease: lease }))
    }
}

impl Drop for ShmFetchReceiver {
    fn drop(&mut self) {
        self.shared.say(ShmClientMessage::Ended { fetch: self.memory.fetch, last: self.last_lease });
    }
}

/// A piece in shared memory.
struct View {
    region: Arc<ReadableRegion>,
    len: usize,
    /// Goes back after the last use of the region.
    _lease: Leased,
}

impl AsRef<[u8]> for View {
    fn as_ref(&self) -> &[u8] {
        self.region.bytes(self.len).unwrap_or_default()
    }
}

struct Leased {
    lease: u64,
    shared: Arc<Shared>,
}

impl Drop for Leased {
    fn drop(&mut self) {
        self.shared.say(ShmClientMessage::Release { lease: self.lease });
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, message: ShmClientMessage) {
        let mut state = self.lock();
        if !state.closed {
            state.outbox.push(message);
            drop(state);
            self.news.notify_one();
        }
    }

    /// The region, once it has been announced; `None` when the link has ended.
    async fn region(&self, number: u64) -> Option<Arc<ReadableRegion>> {
        loop {
            let arrived = self.arrived.notified();
            tokio::pin!(arrived);
            arrived.as_mut().enable();
            {
                let state = self.lock();
                if let Some(region) = state.regions.get(&number) {
                    return Some(Arc::clone(region));
                }
                if state.closed {
                    return None;
                }
            }
            arrived.await;
        }
    }

    /// Hears and tells until the worker has gone.
    async fn run(self: Arc<Self>, stream: UnixStream) {
        let ended = Ended(&self);
        let result = tokio::select! {
            result = self.listen(&stream) => result,
            result = self.tell(&stream) => result,
        };
        if let Err(error) = result {
            tracing::debug!(%error, "the link to a worker's shared memory ended");
        }
        drop(ended);
    }

    async fn listen(&self, stream: &UnixStream) -> io::Result<()> {
        while let Some((message, descriptor)) = receive(stream).await? {
            match (message, descriptor) {
                (ShmServerMessage::Region { region }, Some(descriptor)) => {
                    let mapped = Arc::new(ReadableRegion::open(descriptor)?);
                    self.lock().regions.insert(region, mapped);
                    self.arrived.notify_waiters();
                }
                (ShmServerMessage::Gone { region }, _) => drop(self.lock().regions.remove(&region)),
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        Ok(())
    }

    async fn tell(&self, stream: &UnixStream) -> io::Result<()> {
        loop {
            let messages = std::mem::take(&mut self.lock().outbox);
            if messages.is_empty() {
                self.news.notified().await;
            }
            for message in messages {
                send(stream, message, None).await?;
            }
        }
    }
}

/// Marks the link as closed, also when its task is aborted.
struct Ended<'a>(&'a Shared);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.closed = true;
        state.regions.clear();
        state.outbox.clear();
        drop(state);
        self.0.arrived.notify_waiters();
    }
}
