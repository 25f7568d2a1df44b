//! Measures the memory of a process and its descendants.

use std::fs;

/// Whether a process and its descendants use more than `limit_bytes` of private memory. Returns `false` if the system does
/// not provide this information.
pub(crate) fn exceeds_limit(process: u32, limit_bytes: u64) -> bool {
    let own = memory_field(process, "status", "RssAnon:").unwrap_or_default();
    let descendants = descendants(process);
    let all = |file: &str, name: &str| -> u64 {
        descendants.iter().filter_map(|one| memory_field(*one, file, name)).sum()
    };
    if own + all("status", "RssAnon:") <= limit_bytes {
        return false;
    }
    // A forked process shares unmodified pages with its parent. The proportional size is expensive, so read it only now.
    let file = "smaps_rollup";
    descendants.is_empty()
        || memory_field(process, file, "Pss_Anon:")
            .is_none_or(|own| own + all(file, "Pss_Anon:") > limit_bytes)
}

/// Returns all descendants of a process.
fn descendants(process: u32) -> Vec<u32> {
    let mut found = children(process);
    let mut visited = 0;
    while let Some(next) = found.get(visited) {
        found.extend(children(*next));
        visited += 1;
    }
    found
}

/// Returns the children of a process, which the system lists per thread.
fn children(process: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|one| one.parse().ok()).collect::<Vec<u32>>())
        .collect()
}

/// Reads a field such as `RssAnon:  1024 kB` in bytes.
fn memory_field(process: u32, file: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/{file}")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}
