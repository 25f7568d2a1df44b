//! The state of a thread that runs targets: a Tokio runtime, and a temporary directory, in memory if possible.

use std::cell::{OnceCell, RefCell};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};

use feedline_contained::is_contained;
use tempfile::TempDir;
use tokio::runtime::Runtime;

struct ThreadState {
    runtime: Runtime,
    /// Whether a thread of the runtime panicked.
    panicked: Arc<AtomicBool>,
    folder: TempDir,
}

thread_local! {
    static STATE: OnceCell<ThreadState> = const { OnceCell::new() };
    /// The field `panicked` of the state whose runtime started this thread.
    static PANICKED: RefCell<Arc<AtomicBool>> = RefCell::default();
}

/// Completes a future on the runtime of the thread.
///
/// # Panics
/// Panics if a thread of the runtime panics, although the future only receives an error.
pub fn block_on(work: impl Future<Output = ()>) {
    STATE.with(|cell| {
        let state = cell.get_or_init(ThreadState::new);
        state.runtime.block_on(work);
        assert!(!state.panicked.swap(false, Ordering::Relaxed), "a thread of the runtime panicked");
    });
}

/// Calls `call` with a directory that exists until the thread ends.
pub(crate) fn with_folder(call: impl FnOnce(&Path)) {
    STATE.with(|cell| call(cell.get_or_init(ThreadState::new).folder.path()));
}

/// Sets a panic hook that ignores panics that `feedline_contained` converts into errors. The hook of a fuzzer would end the
/// process.
pub(crate) fn ignore_contained_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let earlier = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !is_contained() {
                // A thread that ends has no flag any more.
                let _ = PANICKED.try_with(|flag| flag.borrow().store(true, Ordering::Relaxed));
                earlier(panic);
            }
        }));
    });
}

impl ThreadState {
    fn new() -> Self {
        ignore_contained_panics();
        let panicked = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&panicked);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .on_thread_start(move || PANICKED.set(Arc::clone(&flag)))
            .build()
            .expect("the runtime starts");
        let memory = Path::new("/dev/shm");
        // `make test` sets a directory in memory, which it removes.
        let is_set = std::env::temp_dir() != Path::new("/tmp");
        let folder = if memory.is_dir() && !is_set { TempDir::new_in(memory) } else { TempDir::new() };
        let folder = folder.expect("the temporary directory can be created");
        Self { runtime, panicked, folder }
    }
}
