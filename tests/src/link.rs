//! A TCP link that a test can cut in one or both directions, and slow down. A cut link delays bytes until it is
//! restored, like a network that loses packets and resends them.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Starts a load balancer that passes connections to the targets in turn, and returns its address.
pub fn balance(targets: &[String]) -> String {
    let (listener, targets) =
        (TcpListener::bind("127.0.0.1:0").expect("there are free ports"), targets.to_vec());
    let address = listener.local_addr().expect("it listens").to_string();
    thread::spawn(move || {
        for (begun, target) in listener.incoming().flatten().zip(targets.iter().cycle()) {
            let target = target.clone();
            thread::spawn(move || join(begun, &target, &Arc::default()));
        }
    });
    address
}

/// The state of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct State {
    /// Whether bytes to the listener are delayed.
    pub is_cut_there: bool,
    /// Whether bytes from the listener are delayed.
    pub is_cut_back: bool,
    /// Whether new connections are closed at once. Existing connections stay.
    pub is_closed: bool,
    /// Delay in both directions.
    pub delay: Duration,
}

/// A link to a listener.
#[derive(Debug)]
pub struct Link {
    /// The address at which the link begins.
    pub address: String,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Link {
    /// Creates a link from a free port to `target`, which may start to listen later.
    pub fn to(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there are free ports");
        let address = listener.local_addr().expect("it listens").to_string();
        let shared = Arc::new(Shared::default());
        let (target, ends) = (target.to_owned(), Arc::clone(&shared));
        thread::spawn(move || {
            for begun in listener.incoming().flatten() {
                if ends.is_closed() {
                    continue;
                }
                let (target, shared) = (target.clone(), Arc::clone(&ends));
                // The task ends when either end closes.
                thread::spawn(move || join(begun, &target, &shared));
            }
        });
        Self { address, shared }
    }

    /// Changes the state.
    pub fn set(&self, state: State) {
        *self.shared.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn is_closed(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).is_closed
    }

    /// Waits until bytes may pass, and returns the delay.
    fn pass(&self, is_cut: fn(&State) -> bool) -> Duration {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = self.changed.wait_while(state, |state| is_cut(state));
        state.unwrap_or_else(PoisonError::into_inner).delay
    }
}

impl Shared {
    /// Waits for a delay.
    fn take(&self, delay: Duration) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_timeout_while(state, delay, |_| true));
    }
}

fn join(begun: TcpStream, target: &str, shared: &Arc<Shared>) {
    shared.pass(|state| state.is_cut_there);
    let Ok(end) = TcpStream::connect(target) else { return };
    // Messages are small and latency matters.
    let _ = (begun.set_nodelay(true), end.set_nodelay(true));
    let (Ok(begun_back), Ok(end_back)) = (begun.try_clone(), end.try_clone()) else { return };
    let back = Arc::clone(shared);
    thread::spawn(move || carry(end_back, begun_back, &back, |state| state.is_cut_back));
    carry(begun, end, shared, |state| state.is_cut_there);
}

/// Copies bytes until an end closes.
fn carry(mut from: TcpStream, mut to: TcpStream, shared: &Shared, is_cut: fn(&State) -> bool) {
    // Close the other end too.
    let _ = carry_on(&mut from, &mut to, shared, is_cut);
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

fn carry_on(
    from: &mut TcpStream,
    to: &mut TcpStream,
    shared: &Shared,
    is_cut: fn(&State) -> bool,
) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = from.read(&mut buffer)?;
        if read == 0 {
            return Ok(());
        }
        shared.take(shared.pass(is_cut));
        to.write_all(&buffer[..read])?;
    }
}
