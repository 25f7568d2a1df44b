//! How much memory a process takes, with those that it has started.

use std::fs;

/// Whether a process and those below it have more than `limit_bytes` of memory that nobody else has. `false` where the system does not tell.
pub(crate) fn is_above(process: u32, limit_bytes: u64) -> bool {
    let own = bytes_of(process, "status", "RssAnon:").unwrap_or_default();
    let below = below(process);
    let all =
        |file: &str, name: &str| -> u64 { below.iter().filter_map(|one| bytes_of(*one, file, name)).sum() };
    if own + all("status", "RssAnon:") <= limit_bytes {
        return false;
    }
    // What a forked process has not written to is its parent's, too. To share it out the system walks all pages, so only now.
    let file = "smaps_rollup";
    below.is_empty()
        || bytes_of(process, file, "Pss_Anon:").is_none_or(|own| own + all(file, "Pss_Anon:") > limit_bytes)
}

/// The processes that it has started, those that these have, and so on.
fn below(process: u32) -> Vec<u32> {
    let mut found = children(process);
    let mut looked_at = 0;
    while let Some(next) = found.get(looked_at) {
        found.extend(children(*next));
        looked_at += 1;
    }
    found
}

/// Which threads have started them is told thread by thread.
fn children(process: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|one| one.parse().ok()).collect::<Vec<u32>>())
        .collect()
}

/// A line such as `RssAnon:  1024 kB`.
fn bytes_of(process: u32, file: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/{file}")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}
