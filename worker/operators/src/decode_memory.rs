//! Room for images that take much memory while they are decoded or resized: a thread that comes to one waits until those
//! of other threads are done, so that not every thread has a huge one at a time.
//!
//! Only what an image takes beyond a usual one counts. One may always go on, whatever it takes, and a thread that has a
//! place waits for no further one: so those that wait always wait for one that does not.

use std::cell::RefCell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// What an image may take without asking: each thread is taken to have as much.
const USUAL_BYTES: u64 = 64 << 20;

thread_local! {
    static HERE: RefCell<Here> = const { RefCell::new(Here { room: None, places: 0 }) };
}

/// What a thread knows.
struct Here {
    room: Option<Arc<DecodeMemory>>,
    /// Places that it has now.
    places: u32,
}

/// Memory beside that of usual images, for all threads that joined it.
#[derive(Debug)]
pub struct DecodeMemory {
    room_bytes: u64,
    taken: Mutex<Taken>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct Taken {
    bytes: u64,
    places: u32,
}

impl DecodeMemory {
    /// Room for so many bytes.
    pub fn new(room_bytes: u64) -> Arc<Self> {
        Arc::new(Self { room_bytes, taken: Mutex::default(), freed: Condvar::new() })
    }

    /// Images that this thread decodes take their room here from now on. Threads that joined none wait for nobody.
    pub fn join(self: &Arc<Self>) {
        HERE.with_borrow_mut(|here| here.room = Some(Arc::clone(self)));
    }

    /// Bytes that are taken now.
    pub fn taken_bytes(&self) -> u64 {
        self.lock().bytes
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, bytes: u64, may_wait: bool) {
        let mut taken = self.lock();
        while may_wait && taken.places > 0 && taken.bytes.saturating_add(bytes) > self.room_bytes {
            taken = self.freed.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
        taken.places += 1;
        taken.bytes = taken.bytes.saturating_add(bytes);
    }

    fn give_back(&self, bytes: u64) {
        let mut taken = self.lock();
        taken.places -= 1;
        taken.bytes = taken.bytes.saturating_sub(bytes);
        drop(taken);
        // Those that wait may want different amounts.
        self.freed.notify_all();
    }
}

/// What an image takes beyond a usual one, until it is dropped.
#[derive(Debug)]
pub(crate) struct DecodeReservation {
    room: Arc<DecodeMemory>,
    bytes: u64,
}

/// Takes room for an image that takes so many bytes while it is worked on, and waits for it. `None` for a usual one.
pub(crate) fn take(bytes: u64) -> Option<DecodeReservation> {
    let beyond = bytes.saturating_sub(USUAL_BYTES);
    if beyond == 0 {
        return None;
    }
    let (room, places) = HERE.with_borrow(|here| (here.room.clone(), here.places));
    let room = room?;
    room.take(beyond, places == 0);
    HERE.with_borrow_mut(|here| here.places += 1);
    Some(DecodeReservation { room, bytes: beyond })
}

impl Drop for DecodeReservation {
    fn drop(&mut self) {
        HERE.with_borrow_mut(|here| here.places = here.places.saturating_sub(1));
        self.room.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    /// A thread that joins the room and takes and gives back as it is told.
    struct Worker {
        orders: mpsc::SyncSender<Option<u64>>,
        done: mpsc::Receiver<()>,
        thread: thread::JoinHandle<()>,
    }

    impl Worker {
        fn start(room: &Arc<DecodeMemory>) -> Self {
            let (orders, told) = mpsc::sync_channel::<Option<u64>>(1);
            let (says, done) = mpsc::sync_channel(1);
            let room = Arc::clone(room);
            let thread = thread::spawn(move || {
                room.join();
                let mut places = Vec::new();
                for order in told {
                    match order {
                        Some(bytes) => places.push(take(bytes)),
                        None => places.clear(),
                    }
                    says.send(()).unwrap();
                }
            });
            Self { orders, done, thread }
        }

        fn order(&self, order: Option<u64>) {
            self.orders.send(order).unwrap();
        }

        fn takes(&self, bytes: u64) {
            self.order(Some(bytes));
            self.done.recv().unwrap();
        }

        fn end(self) {
            drop(self.orders);
            self.thread.join().unwrap();
        }
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_large_image_waits_for_others_and_usual_ones_and_the_first_do_not() {
        let room = DecodeMemory::new(100 * MIB);
        let [one, other] = [Worker::start(&room), Worker::start(&room)];
        one.takes(1_000 * MIB);
        assert_eq!(room.taken_bytes(), 936 * MIB, "one may go on whatever it takes");
        one.takes(500 * MIB);
        assert_eq!(room.taken_bytes(), 1_372 * MIB, "who has a place waits for no further one");
        other.takes(64 * MIB);
        assert_eq!(room.taken_bytes(), 1_372 * MIB, "a usual one takes no room");
        other.order(Some(65 * MIB));
        assert_eq!(other.done.try_recv(), Err(mpsc::TryRecvError::Empty));
        one.order(None);
        other.done.recv().unwrap();
        assert_eq!(room.taken_bytes(), MIB);
        [one, other].into_iter().for_each(Worker::end);
        assert_eq!(room.taken_bytes(), 0);
    }

    #[test]
    fn many_threads_never_have_more_than_the_room_and_all_end() {
        let room = DecodeMemory::new(100 * MIB);
        let threads = (0..8u64).map(|number| {
            let room = Arc::clone(&room);
            thread::spawn(move || {
                room.join();
                for round in 0..200 {
                    let _place = take((65 + (number * 7 + round * 13) % 90) * MIB);
                    // Each takes less than the room, so that no exception is made for any.
                    thread::yield_now();
                    assert!(room.taken_bytes() <= 100 * MIB);
                }
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(room.taken_bytes(), 0);
    }

    #[test]
    fn a_thread_that_joined_no_room_takes_none() {
        assert!(thread::spawn(|| take(1 << 40).is_none()).join().unwrap());
    }
}
