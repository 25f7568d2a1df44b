//! Utilities for all commands: exit status, standard output, tables, and parsing and formatting of sizes and durations.

pub mod failure;
pub mod output;
pub mod size;
pub mod table;

pub use self::failure::Failure;

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Returns the CPU time of all threads of this process.
pub fn process_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}
