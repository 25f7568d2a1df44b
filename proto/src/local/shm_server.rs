//! The worker's end of shared memory: copies finished pieces into regions that it lends to one client each.
//!
//! A region belongs to one link, that is to one client: no client sees what another one got. It is lent with one piece
//! and used again once the client has let go of it. When a link ends, because its client has gone, all of its regions go.
//! Where there is no room for a piece it travels through the socket: nothing ever waits for memory.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use feedline_memory::WritableRegion;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::link_id::{LinkId, PeerProcess};
use super::message::{ShmClientMessage, ShmServerMessage, receive, send};
use super::shm_bytes::ShmBytes;
use crate::wire;

/// A smaller piece costs less through the socket.
const LEAST_BYTES: usize = 64 << 10;
/// Sizes of regions are rounded up to this, so that pieces of nearly the same size use the same ones.
const ROUND_BYTES: usize = 256 << 10;
/// Fetches that are remembered of which one end has heard and the other has not: that they ended before they began, or
/// that nothing more is sent.
const FETCHES_KEPT: usize = 1024;
/// Time until clients are taken in again after one could not be.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Lends memory to clients.
#[derive(Debug)]
pub(crate) struct ShmServer {
    limit_bytes: u64,
    lent_bytes: Arc<ShmBytes>,
    links: Mutex<BTreeMap<LinkId, Arc<Link>>>,
}

impl ShmServer {
    /// Lends at most `limit_bytes` at a time.
    pub(crate) fn new(limit_bytes: u64) -> Arc<Self> {
        Arc::new(Self { limit_bytes, lent_bytes: Arc::default(), links: Mutex::default() })
    }

    /// Bytes of all regions, as they change.
    pub(crate) fn lent_bytes(&self) -> Arc<ShmBytes> {
        Arc::clone(&self.lent_bytes)
    }

    /// The fetch with this number on the link of a client that is this process; `None` when the link has ended, or is
    /// another's.
    pub(crate) fn fetch(&self, id: LinkId, process: PeerProcess, fetch: u64) -> Option<ShmFetchSender> {
        let link = self.links().get(&id).filter(|link| link.process == process).cloned()?;
        let mut state = link.lock();
        if state.fetches.get(&fetch) != Some(&FetchState::Ended) {
            state.fetches.insert(fetch, FetchState::Running);
        }
        drop(state);
        Some(ShmFetchSender { link, fetch })
    }

    /// Takes clients in, until dropped. Their links end with it.
    pub(crate) async fn serve(self: Arc<Self>, listener: UnixListener) {
        let mut clients = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => drop(clients.spawn(Arc::clone(&self).serve_client(stream))),
                    // Out of file descriptors, say: those who are in go on, and later there may be room again.
                    Err(error) => {
                        tracing::warn!(%error, "a client on this host could not be taken in to share memory");
                        tokio::time::sleep(ACCEPT_AGAIN).await;
                    }
                },
                Some(_) = clients.join_next() => {}
            }
        }
    }

    async fn serve_client(self: Arc<Self>, stream: UnixStream) {
        let (Some(id), Some(process)) = (LinkId::random(), PeerProcess::of(&stream)) else {
            tracing::warn!(
                "the system gives no random numbers, or does not tell who connects: no memory is lent"
            );
            return;
        };
        let link = Arc::new(Link {
            process,
            limit_bytes: self.limit_bytes,
            lent_bytes: Arc::clone(&self.lent_bytes),
            state: Mutex::default(),
            news: Notify::new(),
        });
        self.links().insert(id, Arc::clone(&link));
        let _gone = Gone { lender: &self, id };
        if send(&stream, ShmServerMessage::Welcome(id), None).await.is_err() {
            return;
        }
        // Both run until the client has gone, one way or the other.
        tokio::select! {
            _ = link.listen(&stream) => {}
            _ = link.tell(&stream) => {}
        }
    }

    fn links(&self) -> MutexGuard<'_, BTreeMap<LinkId, Arc<Link>>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Forgets a link when its client has gone.
struct Gone<'a> {
    lender: &'a ShmServer,
    id: LinkId,
}

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        if let Some(link) = self.lender.links().remove(&self.id) {
            let mut state = link.lock();
            state.closed = true;
            state.slots.clear();
            state.outbox.clear();
        }
    }
}

/// What one client borrows.
#[derive(Debug)]
struct Link {
    process: PeerProcess,
    limit_bytes: u64,
    lent_bytes: Arc<ShmBytes>,
    state: Mutex<LinkState>,
    news: Notify,
}

#[derive(Debug, Default)]
struct LinkState {
    slots: Vec<Slot>,
    last_region: u64,
    last_lease: u64,
    fetches: BTreeMap<u64, FetchState>,
    /// What the client is to be told. Bounded by the regions that fit the limit.
    outbox: VecDeque<(ShmServerMessage, Option<OwnedFd>)>,
    closed: bool,
}

/// How a fetch stands; forgotten once both ends are done with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FetchState {
    Running,
    /// The client reads no more of it.
    Ended,
    /// Nothing more is sent.
    Finished,
}

/// A region and who has it.
#[derive(Debug)]
struct Slot {
    number: u64,
    bytes: usize,
    /// Out while it is being written.
    region: Option<WritableRegion>,
    lease: Option<Lease>,
    _counted: Counted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Lease {
    number: u64,
    fetch: u64,
}

/// Counts a region's bytes while it exists.
#[derive(Debug)]
struct Counted {
    bytes: u64,
    lent_bytes: Arc<ShmBytes>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.lent_bytes.give_back(self.bytes);
    }
}

/// A fetch whose pieces may lie in lent memory.
#[derive(Debug)]
pub(crate) struct ShmFetchSender {
    link: Arc<Link>,
    fetch: u64,
}

impl ShmFetchSender {
    /// Copies a whole piece to where the client can read it; `None` when it must go another way.
    pub(crate) fn lend(&self, data: &Bytes) -> Option<wire::Lent> {
        if data.len() < LEAST_BYTES {
            return None;
        }
        let (number, lease, mut region) = self.link.lock().take(&self.link, data.len(), self.fetch)?;
        let fits = region.write(data);
        self.link.lock().put_back(number, region);
        fits.then_some(wire::Lent { region: number, lease, bytes: data.len() as u64 })
    }
}

impl Drop for ShmFetchSender {
    fn drop(&mut self) {
        let mut state = self.link.lock();
        match state.fetches.get_mut(&self.fetch) {
            Some(fetch @ FetchState::Running) => {
                *fetch = FetchState::Finished;
                state.forget(FetchState::Finished);
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

    /// Hears what the client lets go of, until it has gone.
    async fn listen(&self, stream: &UnixStream) -> std::io::Result<()> {
        while let Some((message, _)) = receive(stream).await? {
            match message {
                ShmClientMessage::Release { lease } => self.lock().release(lease),
                ShmClientMessage::Ended { fetch, last } => self.lock().on_ended(fetch, last),
            }
        }
        Ok(())
    }

    /// Tells the client of regions as they come and go.
    async fn tell(&self, stream: &UnixStream) -> std::io::Result<()> {
        loop {
            let next = self.lock().outbox.pop_front();
            match next {
                Some((message, descriptor)) => {
                    send(stream, message, descriptor.as_ref().map(AsFd::as_fd)).await?;
                }
                None => self.news.notified().await,
            }
        }
    }
}

impl LinkState {
    /// Takes a region for `len` bytes out, to be written: its number, the number of its lease, and the region.
    fn take(&mut self, link: &Link, len: usize, fetch: u64) -> Option<(u64, u64, WritableRegion)> {
        if self.closed || self.fetches.get(&fetch) == Some(&FetchState::Ended) {
            return None;
        }
        let place = match self.idle(len) {
            Some(place) => place,
            None => self.make(link, len)?,
        };
        self.last_lease += 1;
        let slot = &mut self.slots[place];
        slot.lease = Some(Lease { number: self.last_lease, fetch });
        Some((slot.number, self.last_lease, slot.region.take()?))
    }

    /// The smallest idle region that fits and is not much too large.
    fn idle(&self, len: usize) -> Option<usize> {
        let fits = |slot: &Slot| slot.is_idle() && (len..=2 * len.max(ROUND_BYTES)).contains(&slot.bytes);
        let found = self.slots.iter().enumerate().filter(|(_, slot)| fits(slot));
        found.min_by_key(|(_, slot)| slot.bytes).map(|(place, _)| place)
    }

    /// Makes a region for `len` bytes, in the room of idle ones where there is no other.
    fn make(&mut self, link: &Link, len: usize) -> Option<usize> {
        let bytes = len.next_multiple_of(ROUND_BYTES);
        let counted = loop {
            if let Some(counted) = link.count(bytes as u64) {
                break counted;
            }
            let place = self.slots.iter().position(Slot::is_idle)?;
            let gone = self.slots.swap_remove(place);
            self.outbox.push_back((ShmServerMessage::Gone { region: gone.number }, None));
            link.news.notify_one();
        };
        let region = WritableRegion::create(bytes);
        let made = region.and_then(|region| Ok((region.as_fd().try_clone_to_owned()?, region)));
        let (descriptor, region) = match made {
            Ok(made) => made,
            Err(error) => {
                tracing::debug!(%error, "a region of shared memory could not be made");
                return None;
            }
        };
        self.last_region += 1;
        let number = self.last_region;
        self.outbox.push_back((ShmServerMessage::Region { region: number }, Some(descriptor)));
        self.slots.push(Slot { number, bytes, region: Some(region), lease: None, _counted: counted });
        link.news.notify_one();
        Some(self.slots.len() - 1)
    }

    fn put_back(&mut self, number: u64, region: WritableRegion) {
        if let Some(slot) = self.slots.iter_mut().find(|slot| slot.number == number) {
            slot.region = Some(region);
        }
    }

    fn release(&mut self, lease: u64) {
        for slot in &mut self.slots {
            slot.lease = slot.lease.filter(|held| held.number != lease);
        }
    }

    /// Nobody reads the fetch any more: what is lent to it beyond `last` never arrived.
    fn on_ended(&mut self, fetch: u64, last: u64) {
        for slot in &mut self.slots {
            slot.lease = slot.lease.filter(|held| held.fetch != fetch || held.number <= last);
        }
        if self.fetches.get(&fetch) == Some(&FetchState::Finished) {
            self.fetches.remove(&fetch);
            return;
        }
        self.fetches.insert(fetch, FetchState::Ended);
        self.forget(FetchState::Ended);
    }

    /// Forgets the oldest fetch in this state, where there are more than are kept.
    fn forget(&mut self, state: FetchState) {
        let alike = self.fetches.iter().filter(|(_, other)| **other == state);
        let (count, oldest) =
            alike.fold((0, None), |(count, oldest), (fetch, _)| (count + 1, oldest.or(Some(*fetch))));
        if count > FETCHES_KEPT
            && let Some(oldest) = oldest
        {
            self.fetches.remove(&oldest);
        }
    }
}

impl Slot {
    fn is_idle(&self) -> bool {
        self.lease.is_none() && self.region.is_some()
    }
}

impl Link {
    /// Counts bytes of a new region; `None` when they would exceed the limit.
    fn count(&self, bytes: u64) -> Option<Counted> {
        if !self.lent_bytes.add(bytes, self.limit_bytes) {
            return None;
        }
        Some(Counted { bytes, lent_bytes: Arc::clone(&self.lent_bytes) })
    }
}
