//! Concurrency limits: the maximum number of concurrent requests, in total and for one client. A client with many requests
//! cannot take all permits.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The limit for one kind of request. `C` identifies a client.
#[derive(Debug)]
pub struct ConcurrencyLimit<C: Ord> {
    max_total: u32,
    max_per_client: u32,
    /// Receives the number of permits in use after each change.
    on_change: fn(u32),
    usage: Mutex<PermitUsage<C>>,
}

#[derive(Debug)]
struct PermitUsage<C> {
    total: u32,
    by_client: BTreeMap<C, u32>,
}

/// The right to serve one request, until the permit is dropped.
#[derive(Debug)]
pub struct ConcurrencyPermit<C: Ord> {
    limit: Arc<ConcurrencyLimit<C>>,
    client: Option<C>,
}

/// The limit that a request exceeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitReached {
    /// The number of permits in use has reached the limit of all clients.
    Total(u32),
    /// The number of permits of the client has reached the limit of one client.
    PerClient(u32),
}

impl<C: Ord + Clone> ConcurrencyLimit<C> {
    /// Creates a limit of `max_total` permits, with `max_per_client` for one client. `on_change` receives the number of
    /// permits in use after each change.
    pub fn new(max_total: u32, max_per_client: u32, on_change: fn(u32)) -> Arc<Self> {
        let usage = Mutex::new(PermitUsage { total: 0, by_client: BTreeMap::new() });
        Arc::new(Self { max_total, max_per_client, on_change, usage })
    }

    /// Acquires a permit for a client.
    ///
    /// # Errors
    /// Returns the limit that the request exceeds.
    pub fn acquire(self: &Arc<Self>, client: C) -> Result<ConcurrencyPermit<C>, LimitReached> {
        let mut usage = self.usage();
        if usage.total >= self.max_total {
            return Err(LimitReached::Total(self.max_total));
        }
        let held = usage.by_client.get(&client).copied().unwrap_or(0);
        if held >= self.max_per_client {
            return Err(LimitReached::PerClient(self.max_per_client));
        }
        usage.by_client.insert(client.clone(), held + 1);
        Ok(self.permit(&mut usage, Some(client)))
    }

    /// Acquires a permit for a request that is never rejected. The permit counts towards the total.
    pub fn acquire_always(self: &Arc<Self>) -> ConcurrencyPermit<C> {
        self.permit(&mut self.usage(), None)
    }

    fn permit(self: &Arc<Self>, usage: &mut PermitUsage<C>, client: Option<C>) -> ConcurrencyPermit<C> {
        usage.total += 1;
        (self.on_change)(usage.total);
        ConcurrencyPermit { limit: Arc::clone(self), client }
    }
}

impl<C: Ord> ConcurrencyLimit<C> {
    fn usage(&self) -> MutexGuard<'_, PermitUsage<C>> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Ord> Drop for ConcurrencyPermit<C> {
    fn drop(&mut self) {
        let mut usage = self.limit.usage();
        usage.total = usage.total.saturating_sub(1);
        (self.limit.on_change)(usage.total);
        let Some(client) = &self.client else { return };
        if let Some(held) = usage.by_client.get_mut(client) {
            *held -= 1;
            if *held == 0 {
                usage.by_client.remove(client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    static IN_USE: AtomicU32 = AtomicU32::new(0);

    #[test]
    fn one_client_leaves_permits_for_others_and_the_total_is_limited() {
        let limit = ConcurrencyLimit::new(3, 2, |in_use| IN_USE.store(in_use, Ordering::Relaxed));
        let mut permits = vec![limit.acquire("greedy").unwrap(), limit.acquire("greedy").unwrap()];
        assert_eq!(limit.acquire("greedy").unwrap_err(), LimitReached::PerClient(2));
        permits.push(limit.acquire("other").unwrap());
        assert_eq!(limit.acquire("other").unwrap_err(), LimitReached::Total(3));
        permits.push(limit.acquire_always());
        assert_eq!(IN_USE.load(Ordering::Relaxed), 4);
        permits.truncate(1);
        assert!(limit.acquire("other").is_ok(), "a released permit is available again");
        drop(permits);
        assert_eq!(IN_USE.load(Ordering::Relaxed), 0);
        assert!(limit.usage().by_client.is_empty(), "clients without permits are forgotten");
    }
}
