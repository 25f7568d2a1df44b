//! How much is served at once: in all, and to one client, so that one that asks for very much leaves room for others.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Room for one kind of request. `C` tells clients apart.
#[derive(Debug)]
pub struct ConcurrencyLimit<C: Ord> {
    most: u32,
    of_one: u32,
    /// Hears how many places are taken when that changes.
    on_change: fn(u32),
    open: Mutex<Open<C>>,
}

#[derive(Debug)]
struct Open<C> {
    all: u32,
    by_client: BTreeMap<C, u32>,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub struct ConcurrencyPermit<C: Ord> {
    room: Arc<ConcurrencyLimit<C>>,
    client: Option<C>,
}

/// Why there is no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitReached {
    /// So many are taken, as many as there may be.
    OfAll(u32),
    /// The client has so many, as many as one may have.
    OfOne(u32),
}

impl<C: Ord + Clone> ConcurrencyLimit<C> {
    /// Room for `most` requests, `of_one` of them of one client. `on_change` hears how many places are taken when that
    /// changes.
    pub fn new(most: u32, of_one: u32, on_change: fn(u32)) -> Arc<Self> {
        let open = Mutex::new(Open { all: 0, by_client: BTreeMap::new() });
        Arc::new(Self { most, of_one, on_change, open })
    }

    /// Takes a place for a client.
    ///
    /// # Errors
    /// When there is none.
    pub fn enter(self: &Arc<Self>, client: C) -> Result<ConcurrencyPermit<C>, LimitReached> {
        let mut open = self.open();
        if open.all >= self.most {
            return Err(LimitReached::OfAll(self.most));
        }
        let own = open.by_client.get(&client).copied().unwrap_or(0);
        if own >= self.of_one {
            return Err(LimitReached::OfOne(self.of_one));
        }
        open.by_client.insert(client.clone(), own + 1);
        Ok(self.take(&mut open, Some(client)))
    }

    /// Takes a place for who is never refused, and counts among all.
    pub fn enter_anyway(self: &Arc<Self>) -> ConcurrencyPermit<C> {
        self.take(&mut self.open(), None)
    }

    fn take(self: &Arc<Self>, open: &mut Open<C>, client: Option<C>) -> ConcurrencyPermit<C> {
        open.all += 1;
        (self.on_change)(open.all);
        ConcurrencyPermit { room: Arc::clone(self), client }
    }
}

impl<C: Ord> ConcurrencyLimit<C> {
    fn open(&self) -> MutexGuard<'_, Open<C>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Ord> Drop for ConcurrencyPermit<C> {
    fn drop(&mut self) {
        let mut open = self.room.open();
        open.all = open.all.saturating_sub(1);
        (self.room.on_change)(open.all);
        let Some(client) = &self.client else { return };
        if let Some(own) = open.by_client.get_mut(client) {
            *own -= 1;
            if *own == 0 {
                open.by_client.remove(client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    static TAKEN: AtomicU32 = AtomicU32::new(0);

    #[test]
    fn one_client_leaves_room_for_others_and_all_have_an_end() {
        let room = ConcurrencyLimit::new(3, 2, |taken| TAKEN.store(taken, Ordering::Relaxed));
        let mut places = vec![room.enter("greedy").unwrap(), room.enter("greedy").unwrap()];
        assert_eq!(room.enter("greedy").unwrap_err(), LimitReached::OfOne(2));
        places.push(room.enter("other").unwrap());
        assert_eq!(room.enter("other").unwrap_err(), LimitReached::OfAll(3));
        places.push(room.enter_anyway());
        assert_eq!(TAKEN.load(Ordering::Relaxed), 4);
        places.truncate(1);
        assert!(room.enter("other").is_ok(), "who leaves makes room");
        drop(places);
        assert_eq!(TAKEN.load(Ordering::Relaxed), 0);
        assert!(room.open().by_client.is_empty(), "nobody is remembered");
    }
}
