//! The feedline binary.

use std::process::ExitCode;

use tikv_jemallocator::Jemalloc;

/// Freed memory goes back to the system: glibc keeps it in an arena for each thread, four times a small budget.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

fn main() -> ExitCode {
    feedline_node::run_command()
}
