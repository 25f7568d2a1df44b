//! The child processes whose exit status a part of this program reads.
//!
//! A process with the id 1, as in a container, also becomes the parent of orphans: processes whose parent has exited. It
//! must wait for orphans, because they otherwise occupy the process table, but not for the processes in this registry.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, PoisonError, RwLock};

/// Locked for reading while a process starts, because a process that exits at once is not registered yet.
static STARTS: RwLock<()> = RwLock::new(());
/// The number of registrations of each process id. It exceeds 1 if the system has reused the id of a process whose
/// registration has not ended yet.
static REGISTERED: Mutex<BTreeMap<u32, usize>> = Mutex::new(BTreeMap::new());

/// The registration of a child process. Drop it after reading the exit status.
#[derive(Debug)]
pub struct RegisteredChild {
    id: u32,
}

impl Drop for RegisteredChild {
    fn drop(&mut self) {
        let mut registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
        match registered.get_mut(&self.id) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(registered.remove(&self.id)),
        }
    }
}

/// Starts and registers a process. `start` returns the process and its id.
///
/// # Errors
/// Returns the error of `start`.
pub fn start_child<P>(start: impl FnOnce() -> io::Result<(P, u32)>) -> io::Result<(P, RegisteredChild)> {
    let _starts = STARTS.read().unwrap_or_else(PoisonError::into_inner);
    let (process, id) = start()?;
    *REGISTERED.lock().unwrap_or_else(PoisonError::into_inner).entry(id).or_default() += 1;
    Ok((process, RegisteredChild { id }))
}

/// Calls `reap` with the id of each orphan among the child processes that `exited` returns. Meanwhile, no process starts.
pub fn reap_orphans(exited: impl FnOnce() -> Vec<u32>, reap: impl FnMut(u32)) {
    let _no_starts = STARTS.write().unwrap_or_else(PoisonError::into_inner);
    let is_orphan = |id: &u32| {
        let registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
        !registered.contains_key(id)
    };
    exited().into_iter().filter(is_orphan).for_each(reap);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn orphans(exited: &[u32]) -> Vec<u32> {
        let mut reaped = Vec::new();
        reap_orphans(|| exited.to_vec(), |id| reaped.push(id));
        reaped
    }

    #[test]
    fn only_unregistered_processes_are_orphans() {
        let id = u32::MAX;
        let start = || start_child(|| Ok(((), id))).unwrap().1;
        let first = start();
        assert_eq!(orphans(&[id - 1, id]), [id - 1]);
        let second = start();
        drop(first);
        assert!(orphans(&[id]).is_empty(), "the id was reused");
        drop(second);
        assert_eq!(orphans(&[id]), [id]);
        assert!(start_child(|| Err::<((), u32), _>(io::Error::other("no"))).is_err());
    }
}
