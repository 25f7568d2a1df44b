//! Limits the memory of threads that decode or resize large images concurrently. A thread that exceeds the limit waits until other
//! threads release their reservations.
//!
//! An image reserves only the memory above [`DECODE_BYTES_PER_THREAD`]. Deadlocks are impossible, because a reservation of
//! any size succeeds if there are no other reservations, and because a thread that has a reservation never waits for another
//! reservation.

use std::cell::RefCell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use feedline_data::memory::DECODE_BYTES_PER_THREAD;

thread_local! {
    static THREAD: RefCell<ThreadState> = const { RefCell::new(ThreadState { memory: None, reservations: 0 }) };
}

/// The decode memory that a thread uses, and the number of its reservations.
struct ThreadState {
    memory: Option<Arc<DecodeMemory>>,
    reservations: u32,
}

/// The memory for large images that several threads share.
#[derive(Debug)]
pub struct DecodeMemory {
    limit_bytes: u64,
    reserved: Mutex<Reserved>,
    released: Condvar,
}

#[derive(Debug, Default)]
struct Reserved {
    bytes: u64,
    reservations: u32,
}

impl DecodeMemory {
    /// Creates decode memory with a limit in bytes.
    pub fn new(limit_bytes: u64) -> Arc<Self> {
        Arc::new(Self { limit_bytes, reserved: Mutex::default(), released: Condvar::new() })
    }

    /// Makes the current thread reserve memory from this limit. Threads that are not attached need no reservations.
    pub fn attach_thread(self: &Arc<Self>) {
        THREAD.with_borrow_mut(|thread| thread.memory = Some(Arc::clone(self)));
    }

    /// The number of reserved bytes.
    pub fn reserved_bytes(&self) -> u64 {
        self.lock().bytes
    }

    fn lock(&self) -> MutexGuard<'_, Reserved> {
        self.reserved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn acquire(&self, bytes: u64, may_wait: bool) {
        let mut reserved = self.lock();
        while may_wait && reserved.reservations > 0 && reserved.bytes.saturating_add(bytes) > self.limit_bytes
        {
            reserved = self.released.wait(reserved).unwrap_or_else(PoisonError::into_inner);
        }
        reserved.reservations += 1;
        reserved.bytes = reserved.bytes.saturating_add(bytes);
    }

    fn release(&self, bytes: u64) {
        let mut reserved = self.lock();
        reserved.reservations -= 1;
        reserved.bytes = reserved.bytes.saturating_sub(bytes);
        drop(reserved);
        // Wake all waiting threads, because they may wait for different amounts.
        self.released.notify_all();
    }
}

/// Reserved memory for one image, which is released on drop.
#[derive(Debug)]
pub(crate) struct DecodeReservation {
    memory: Arc<DecodeMemory>,
    bytes: u64,
}

/// Reserves memory for an image. `bytes` is the memory that decoding or resizing the image needs. Waits until the memory is available.
/// Returns `None` if the image needs no reservation.
pub(crate) fn reserve(bytes: u64) -> Option<DecodeReservation> {
    let bytes = bytes.saturating_sub(DECODE_BYTES_PER_THREAD);
    if bytes == 0 {
        return None;
    }
    let (memory, reservations) = THREAD.with_borrow(|thread| (thread.memory.clone(), thread.reservations));
    let memory = memory?;
    memory.acquire(bytes, reservations == 0);
    THREAD.with_borrow_mut(|thread| thread.reservations += 1);
    Some(DecodeReservation { memory, bytes })
}

impl Drop for DecodeReservation {
    fn drop(&mut self) {
        THREAD.with_borrow_mut(|thread| thread.reservations = thread.reservations.saturating_sub(1));
        self.memory.release(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    /// A thread that makes reservations on command. `None` releases all of them.
    struct DecodeThread {
        commands: mpsc::SyncSender<Option<u64>>,
        done: mpsc::Receiver<()>,
        thread: thread::JoinHandle<()>,
    }

    impl DecodeThread {
        fn start(memory: &Arc<DecodeMemory>) -> Self {
            let (commands, received) = mpsc::sync_channel::<Option<u64>>(1);
            let (sender, done) = mpsc::sync_channel(1);
            let memory = Arc::clone(memory);
            let thread = thread::spawn(move || {
                memory.attach_thread();
                let mut reservations = Vec::new();
                for command in received {
                    match command {
                        Some(bytes) => reservations.push(reserve(bytes)),
                        None => reservations.clear(),
                    }
                    sender.send(()).unwrap();
                }
            });
            Self { commands, done, thread }
        }

        fn send(&self, command: Option<u64>) {
            self.commands.send(command).unwrap();
        }

        fn reserve(&self, bytes: u64) {
            self.send(Some(bytes));
            self.done.recv().unwrap();
        }

        fn stop(self) {
            drop(self.commands);
            self.thread.join().unwrap();
        }
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_second_large_image_waits_for_the_first() {
        let memory = DecodeMemory::new(100 * MIB);
        let [one, other] = [DecodeThread::start(&memory), DecodeThread::start(&memory)];
        one.reserve(1_000 * MIB);
        assert_eq!(memory.reserved_bytes(), 936 * MIB, "the first reservation may have any size");
        one.reserve(500 * MIB);
        assert_eq!(memory.reserved_bytes(), 1_372 * MIB, "a thread with a reservation does not wait");
        other.reserve(64 * MIB);
        assert_eq!(memory.reserved_bytes(), 1_372 * MIB, "a small image needs no reservation");
        other.send(Some(65 * MIB));
        assert_eq!(other.done.try_recv(), Err(mpsc::TryRecvError::Empty));
        one.send(None);
        other.done.recv().unwrap();
        assert_eq!(memory.reserved_bytes(), MIB);
        [one, other].into_iter().for_each(DecodeThread::stop);
        assert_eq!(memory.reserved_bytes(), 0);
    }

    #[test]
    fn many_threads_stay_within_the_limit_and_terminate() {
        let memory = DecodeMemory::new(100 * MIB);
        let threads = (0..8u64).map(|number| {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                memory.attach_thread();
                for round in 0..200 {
                    // Each reservation is below the limit.
                    let _reservation = reserve((65 + (number * 7 + round * 13) % 90) * MIB);
                    thread::yield_now();
                    assert!(memory.reserved_bytes() <= 100 * MIB);
                }
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(memory.reserved_bytes(), 0);
    }

    #[test]
    fn a_thread_without_decode_memory_needs_no_reservation() {
        assert!(thread::spawn(|| reserve(1 << 40).is_none()).join().unwrap());
    }
}
