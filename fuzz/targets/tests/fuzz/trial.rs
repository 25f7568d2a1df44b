//! Calls of a target. A failure names the input and how to repeat the call: the input is saved in
//! `target/fuzz-failures/TARGET-INPUT`.

use std::fs;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use feedline_fuzz_targets::Target;

/// Maximum duration of a call. A call takes milliseconds if the machine is idle.
const MAX_DURATION: Duration = Duration::from_secs(60);
/// Maximum increase of the peak memory of the process during a call.
const MAX_MEMORY_BYTES: u64 = 256 << 20;

/// Only one call at a time runs, because the memory of the process is measured.
static MEASURED: Mutex<()> = Mutex::new(());

/// An input of a target.
pub(super) struct Input {
    /// The name of the file in the corpus or of the seed, or the seed of the mutation.
    pub(super) name: String,
    pub(super) bytes: Vec<u8>,
}

/// Calls the target with each input.
///
/// # Errors
/// Returns a description of the first panic, or of the first call that uses too much memory. A call that takes too long
/// ends the process.
pub(super) fn run_inputs(target: &Target, inputs: impl Iterator<Item = Input>) -> Result<(), String> {
    // The bound is one input, because the watchdog receives an input before the call ends.
    let (started, calls) = sync_channel::<Option<Arc<Input>>>(1);
    std::thread::scope(|scope| {
        scope.spawn(move || abort_on_hang(target, &calls));
        for input in inputs.map(Arc::new) {
            let _measured = MEASURED.lock().unwrap_or_else(PoisonError::into_inner);
            let tell = |call| started.send(call).expect("the watchdog runs until the sender is dropped");
            tell(Some(Arc::clone(&input)));
            let before_bytes = reset_peak_memory();
            if catch_unwind(AssertUnwindSafe(|| (target.run)(&input.bytes))).is_err() {
                return Err(describe(target, &input, "panicked"));
            }
            // The thread may wait for the next call for longer than a call may take.
            tell(None);
            let peak_bytes = peak_memory_bytes();
            if peak_bytes.saturating_sub(before_bytes) > MAX_MEMORY_BYTES {
                let used = format!("used {} MiB of memory", (peak_bytes - before_bytes) >> 20);
                return Err(describe(target, &input, &used));
            }
        }
        drop(started);
        Ok(())
    })
}

/// Ends the process if a call takes too long, because a thread cannot be stopped.
fn abort_on_hang(target: &Target, calls: &Receiver<Option<Arc<Input>>>) {
    let mut current = None;
    loop {
        match calls.recv_timeout(MAX_DURATION) {
            Ok(input) => current = input,
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                let Some(input) = &current else { continue };
                let failure = describe(target, input, &format!("took more than {MAX_DURATION:?}"));
                // Written directly, because the output of an unfinished test is not printed.
                let _ = writeln!(std::io::stderr(), "{failure}");
                std::process::abort();
            }
        }
    }
}

/// Saves the input of a failed call, and describes the failure.
fn describe(target: &Target, input: &Input, failure: &str) -> String {
    let (target, name) = (target.name, &input.name);
    let path = failure_path(target, name);
    let folder = path.parent().expect("the file is in a directory");
    let saved = fs::create_dir_all(folder).and_then(|()| fs::write(&path, &input.bytes));
    let path = path.display();
    let saved = match saved {
        Ok(()) => format!("the input is in {path}"),
        Err(error) => format!("the input cannot be written to {path}: {error}"),
    };
    format!(
        "fuzz target `{target}` {failure} on input `{name}`; {saved}\n\
         to repeat the call first, copy the file to fuzz/corpus/{target} and run \
         `cargo test --workspace --test fuzz {target}`"
    )
}

fn failure_path(target: &str, input: &str) -> PathBuf {
    let temporary = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let build = temporary.parent().expect("the directory is in the build directory");
    build.join("fuzz-failures").join(format!("{target}-{input}"))
}

/// Starts a new measurement of the peak memory of the process, and returns the current memory.
fn reset_peak_memory() -> u64 {
    // Without this file of Linux, the peak only rises, and a call is charged for less than it uses.
    let _ = fs::write("/proc/self/clear_refs", "5");
    peak_memory_bytes()
}

/// Returns the peak memory of the process, or 0 if the system does not report it.
fn peak_memory_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    peak.and_then(|peak| peak.trim().strip_suffix(" kB")?.parse::<u64>().ok()).map_or(0, |kib| kib << 10)
}

fn run_one(name: &'static str, run: fn(&[u8]), bytes: &[u8]) -> Result<(), String> {
    let input = Input { name: "1".to_owned(), bytes: bytes.to_vec() };
    run_inputs(&Target { name, run }, [input].into_iter())
}

#[test]
fn the_input_of_a_panic_is_saved() {
    let run = |bytes: &[u8]| assert_ne!(bytes, b"bad", "expected by this test");
    assert_eq!(run_one("test-panic", run, b"good"), Ok(()));
    let failure = run_one("test-panic", run, b"bad").unwrap_err();
    let path = failure_path("test-panic", "1");
    assert!(failure.starts_with("fuzz target `test-panic` panicked on input `1`"), "{failure}");
    assert!(failure.contains(&format!("the input is in {}\n", path.display())), "{failure}");
    assert_eq!(fs::read(&path).unwrap(), b"bad");
    fs::remove_file(path).unwrap();
}

#[test]
fn a_panic_on_a_thread_of_the_runtime_is_a_failure() {
    let run = |_: &[u8]| {
        feedline_fuzz_targets::block_on(async {
            let joined = tokio::task::spawn_blocking(|| panic!("expected by this test")).await;
            assert!(joined.is_err());
        });
    };
    let failure = run_one("test-thread", run, b"").unwrap_err();
    assert!(failure.starts_with("fuzz target `test-thread` panicked"), "{failure}");
    fs::remove_file(failure_path("test-thread", "1")).unwrap();
}
