//! The feedline binary.

use std::process::ExitCode;

use tikv_jemallocator::Jemalloc;

/// jemalloc returns freed memory to the system. glibc keeps freed memory in one arena per thread, which can add up to
/// four times a small memory budget.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

fn main() -> ExitCode {
    feedline_node::run_command()
}
