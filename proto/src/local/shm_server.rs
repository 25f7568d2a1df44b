//! The worker side of shared memory: copies finished pieces into regions, and leases them to clients.
//!
//! A region belongs to one link, which belongs to one client, so no client can read the rows of another. A lease covers one
//! piece. The worker reuses the region after the client has released the lease, and frees all regions of a link when the
//! link ends. Nothing waits for memory: a piece without a free region is sent through the socket.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use feedline_memory::WritableRegion;
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Notify;
use tokio::task::{JoinSet, block_in_place};

use super::link_id::{LinkId, PeerProcess};
use super::message::{ShmClientMessage, ShmServerMessage, receive, send};
use super::shm_bytes::ShmBytes;
use crate::wire;

/// Minimum size of a piece in shared memory. Sending a smaller piece through the socket takes less time.
const MIN_PIECE_BYTES: usize = 64 << 10;
/// Granularity of region sizes. Pieces of similar size reuse the same regions.
const ROUNDING_BYTES: usize = 256 << 10;
/// Maximum number of fetches in each of the two states that only one side knows: ended by the client before the worker has
/// opened them, and finished by the worker.
const MAX_HALF_CLOSED_FETCHES: usize = 1024;
/// Size of a piece that takes milliseconds to copy, such as a sampled graph.
const LARGE_PIECE_BYTES: usize = 16 << 20;
/// Pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Shares memory with clients.
#[derive(Debug)]
pub(crate) struct ShmServer {
    limit_bytes: u64,
    shared_bytes: Arc<ShmBytes>,
    links: Mutex<BTreeMap<LinkId, Arc<Link>>>,
}

impl ShmServer {
    /// Shares at most `limit_bytes` at a time.
    pub(crate) fn new(limit_bytes: u64) -> Arc<Self> {
        Arc::new(Self { limit_bytes, shared_bytes: Arc::default(), links: Mutex::default() })
    }

    /// Counter of the bytes of all regions.
    pub(crate) fn shared_bytes(&self) -> Arc<ShmBytes> {
        Arc::clone(&self.shared_bytes)
    }

    /// Returns the sender of a fetch; `None` if the link has ended or belongs to another process.
    pub(crate) fn open_fetch(&self, id: LinkId, process: PeerProcess, fetch: u64) -> Option<ShmFetchSender> {
        let link = self.links().get(&id).filter(|link| link.process == process).cloned()?;
        let mut state = link.lock();
        if state.fetches.get(&fetch) != Some(&FetchState::Ended) {
            state.fetches.insert(fetch, FetchState::Running);
        }
        drop(state);
        Some(ShmFetchSender { link, fetch })
    }

    /// Accepts clients until the future is dropped, which also ends all links.
    pub(crate) async fn serve(self: Arc<Self>, listener: UnixListener) -> Infallible {
        let mut clients = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => drop(clients.spawn(Arc::clone(&self).serve_client(stream))),
                    // For example, the process has no free file descriptors. Existing links continue, and a later attempt
                    // may succeed.
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a local client that requests shared memory");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(_) = clients.join_next() => {}
            }
        }
    }

    async fn serve_client(self: Arc<Self>, stream: UnixStream) {
        let (Some(id), Some(process)) = (LinkId::random(), PeerProcess::of(&stream)) else {
            tracing::warn!(
                "cannot share memory with a client: cannot generate random numbers or read the peer credentials"
            );
            return;
        };
        let link = Arc::new(Link {
            process,
            limit_bytes: self.limit_bytes,
            shared_bytes: Arc::clone(&self.shared_bytes),
            state: Mutex::default(),
            outbox_changed: Notify::new(),
        });
        self.links().insert(id, Arc::clone(&link));
        let _remove = RemoveLink { server: &self, id };
        if send(&stream, ShmServerMessage::Welcome(id), None).await.is_err() {
            return;
        }
        // Both run until the client disconnects.
        tokio::select! {
            _ = link.receive_messages(&stream) => {}
            _ = link.send_messages(&stream) => {}
        }
    }

    fn links(&self) -> MutexGuard<'_, BTreeMap<LinkId, Arc<Link>>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes a link when its client disconnects.
struct RemoveLink<'a> {
    server: &'a ShmServer,
    id: LinkId,
}

impl Drop for RemoveLink<'_> {
    fn drop(&mut self) {
        if let Some(link) = self.server.links().remove(&self.id) {
            let mut state = link.lock();
            state.closed = true;
            state.regions.clear();
            state.outbox.clear();
        }
    }
}

/// The connection of one client.
#[derive(Debug)]
struct Link {
    process: PeerProcess,
    limit_bytes: u64,
    shared_bytes: Arc<ShmBytes>,
    state: Mutex<LinkState>,
    outbox_changed: Notify,
}

#[derive(Debug, Default)]
struct LinkState {
    regions: Vec<SharedRegion>,
    last_region: u64,
    last_lease: u64,
    fetches: BTreeMap<u64, FetchState>,
    /// Messages to the client. Bounded by the number of regions within the limit.
    outbox: VecDeque<(ShmServerMessage, Option<OwnedFd>)>,
    closed: bool,
}

/// State of a fetch. The entry is removed when both sides have ended the fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FetchState {
    Running,
    /// The client has ended the fetch.
    Ended,
    /// The worker has sent everything.
    Finished,
}

/// A region and its lease.
#[derive(Debug)]
struct SharedRegion {
    number: u64,
    bytes: usize,
    /// `None` while a piece is being written.
    memory: Option<WritableRegion>,
    lease: Option<RegionLease>,
    _reservation: RegionReservation,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RegionLease {
    number: u64,
    fetch: u64,
}

/// Bytes of a region in the counter of shared memory, until the region is dropped.
#[derive(Debug)]
struct RegionReservation {
    bytes: u64,
    shared_bytes: Arc<ShmBytes>,
}

impl Drop for RegionReservation {
    fn drop(&mut self) {
        self.shared_bytes.subtract(self.bytes);
    }
}

/// The sender of pieces of one fetch.
#[derive(Debug)]
pub(crate) struct ShmFetchSender {
    link: Arc<Link>,
    fetch: u64,
}

impl ShmFetchSender {
    /// Copies a piece into shared memory and leases it to the client; `None` if the piece must be sent through the socket.
    pub(crate) fn share(&self, data: &Bytes) -> Option<wire::SharedPiece> {
        if data.len() < MIN_PIECE_BYTES {
            return None;
        }
        let (number, lease, mut memory) = self.link.lock().lease(&self.link, data.len(), self.fetch)?;
        let fits = run_copy(data.len(), || memory.write(data));
        self.link.lock().finish_write(number, memory);
        fits.then_some(wire::SharedPiece { region: number, lease, bytes: data.len() as u64 })
    }
}

/// Copies a piece. Other tasks continue on another thread while a large piece is copied, if the runtime has several threads.
fn run_copy<T>(bytes: usize, copy: impl FnOnce() -> T) -> T {
    let has_threads =
        || Handle::try_current().is_ok_and(|handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread);
    if bytes >= LARGE_PIECE_BYTES && has_threads() { block_in_place(copy) } else { copy() }
}

impl Drop for ShmFetchSender {
    fn drop(&mut self) {
        let mut state = self.link.lock();
        match state.fetches.get_mut(&self.fetch) {
            Some(fetch @ FetchState::Running) => {
                *fetch = FetchState::Finished;
                state.remove_excess(FetchState::Finished);
            }
            Some(FetchState::Ended) => drop(state.fetches.remove(&self.fetch)),
            Some(FetchState::Finished) | None => {}
        }
    }
}

impl Link {
    fn lock(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Receives messages until the client disconnects.
    async fn receive_messages(&self, stream: &UnixStream) -> std::io::Result<()> {
        while let Some((message, _)) = receive(stream).await? {
            match message {
                ShmClientMessage::Release { lease } => self.lock().release(lease),
                ShmClientMessage::FetchEnded { fetch, last } => self.lock().on_fetch_ended(fetch, last),
            }
        }
        Ok(())
    }

    /// Sends the messages of the outbox.
    async fn send_messages(&self, stream: &UnixStream) -> std::io::Result<()> {
        loop {
            let next = self.lock().outbox.pop_front();
            match next {
                Some((message, descriptor)) => {
                    send(stream, message, descriptor.as_ref().map(AsFd::as_fd)).await?;
                }
                None => self.outbox_changed.notified().await,
            }
        }
    }
}

impl LinkState {
    /// Leases a region for `len` bytes. Returns its number, the number of the lease, and the memory to write.
    fn lease(&mut self, link: &Link, len: usize, fetch: u64) -> Option<(u64, u64, WritableRegion)> {
        if self.closed || self.fetches.get(&fetch) == Some(&FetchState::Ended) {
            return None;
        }
        let index = match self.find_idle(len) {
            Some(index) => index,
            None => self.create(link, len)?,
        };
        self.last_lease += 1;
        let region = &mut self.regions[index];
        region.lease = Some(RegionLease { number: self.last_lease, fetch });
        Some((region.number, self.last_lease, region.memory.take()?))
    }

    /// Returns the index of the smallest idle region that fits without wasting more than half of its size.
    fn find_idle(&self, len: usize) -> Option<usize> {
        let sizes = len..=2 * len.max(ROUNDING_BYTES);
        let fits = |region: &SharedRegion| region.is_idle() && sizes.contains(&region.bytes);
        let fitting = self.regions.iter().enumerate().filter(|(_, region)| fits(region));
        fitting.min_by_key(|(_, region)| region.bytes).map(|(index, _)| index)
    }

    /// Creates a region for `len` bytes. Frees idle regions if the limit requires it.
    fn create(&mut self, link: &Link, len: usize) -> Option<usize> {
        let bytes = len.next_multiple_of(ROUNDING_BYTES);
        let reservation = loop {
            if let Some(reservation) = link.reserve(bytes as u64) {
                break reservation;
            }
            let index = self.regions.iter().position(SharedRegion::is_idle)?;
            let freed = self.regions.swap_remove(index);
            self.outbox.push_back((ShmServerMessage::RegionRemoved { region: freed.number }, None));
            link.outbox_changed.notify_one();
        };
        let memory = WritableRegion::create(bytes);
        let created = memory.and_then(|memory| Ok((memory.as_fd().try_clone_to_owned()?, memory)));
        let (descriptor, memory) = created
            .inspect_err(|error| tracing::debug!(%error, "cannot create a shared memory region"))
            .ok()?;
        self.last_region += 1;
        let number = self.last_region;
        self.outbox.push_back((ShmServerMessage::RegionAdded { region: number }, Some(descriptor)));
        let region =
            SharedRegion { number, bytes, memory: Some(memory), lease: None, _reservation: reservation };
        self.regions.push(region);
        link.outbox_changed.notify_one();
        Some(self.regions.len() - 1)
    }

    fn finish_write(&mut self, number: u64, memory: WritableRegion) {
        if let Some(region) = self.regions.iter_mut().find(|region| region.number == number) {
            region.memory = Some(memory);
        }
    }

    fn release(&mut self, lease: u64) {
        for region in &mut self.regions {
            region.lease = region.lease.filter(|held| held.number != lease);
        }
    }

    /// Handles the end of a fetch at the client. Leases of the fetch after `last` never arrived, so they are released.
    fn on_fetch_ended(&mut self, fetch: u64, last: u64) {
        for region in &mut self.regions {
            region.lease = region.lease.filter(|held| held.fetch != fetch || held.number <= last);
        }
        if self.fetches.get(&fetch) == Some(&FetchState::Finished) {
            self.fetches.remove(&fetch);
            return;
        }
        self.fetches.insert(fetch, FetchState::Ended);
        self.remove_excess(FetchState::Ended);
    }

    /// Removes the oldest fetch in this state if there are too many.
    fn remove_excess(&mut self, state: FetchState) {
        let in_state = self.fetches.iter().filter(|(_, other)| **other == state);
        let (count, oldest) =
            in_state.fold((0, None), |(count, oldest), (fetch, _)| (count + 1, oldest.or(Some(*fetch))));
        if count > MAX_HALF_CLOSED_FETCHES
            && let Some(oldest) = oldest
        {
            self.fetches.remove(&oldest);
        }
    }
}

impl SharedRegion {
    fn is_idle(&self) -> bool {
        self.lease.is_none() && self.memory.is_some()
    }
}

impl Link {
    /// Reserves the bytes of a new region; `None` if they would exceed the limit.
    fn reserve(&self, bytes: u64) -> Option<RegionReservation> {
        if !self.shared_bytes.add(bytes, self.limit_bytes) {
            return None;
        }
        Some(RegionReservation { bytes, shared_bytes: Arc::clone(&self.shared_bytes) })
    }
}
