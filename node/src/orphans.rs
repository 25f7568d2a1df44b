//! Reaps orphans, if this process is their new parent because its process id is 1 or because it is a subreaper.
//!
//! A Python function can start processes that outlive it. Without an init process in the container, each of them would
//! remain in the process table after its exit.

use std::convert::Infallible;
use std::fs;
use std::path::Path;
use std::time::Duration;

use feedline_common::child_processes::reap_orphans;
use rustix::process::{Pid, WaitOptions, child_subreaper, getpid, waitpid};
use tokio::signal::unix::{SignalKind, signal};

/// Pause between two searches, in which further exits are collected.
const SEARCH_PAUSE: Duration = Duration::from_millis(200);

/// Whether this process is the new parent of orphans.
pub(crate) fn adopts_orphans() -> bool {
    getpid().is_init() || child_subreaper().is_ok_and(|subreaper| subreaper.is_some())
}

/// Reaps orphans until the future is dropped.
pub(crate) async fn reap() -> Infallible {
    let mut exits = match signal(SignalKind::child()) {
        Ok(exits) => exits,
        Err(error) => {
            tracing::warn!(%error, "cannot install the SIGCHLD handler; exited orphans remain in the process table");
            return std::future::pending().await;
        }
    };
    loop {
        let search = || reap_orphans(|| exited_children(Path::new("/proc"), std::process::id()), reap_one);
        if let Err(error) = tokio::task::spawn_blocking(search).await {
            tracing::warn!(%error, "the search for orphans failed");
        }
        exits.recv().await;
        tokio::time::sleep(SEARCH_PAUSE).await;
    }
}

/// Returns the children of a process that have exited, and whose exit status nobody has read.
fn exited_children(proc: &Path, parent: u32) -> Vec<u32> {
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let has_exited = |id: &u32| {
        let stat = fs::read_to_string(proc.join(id.to_string()).join("stat")).unwrap_or_default();
        is_exited_child(&stat, parent)
    };
    processes.filter(has_exited).collect()
}

/// Whether a line of `/proc/PID/stat` describes a zombie with this parent.
fn is_exited_child(stat: &str, parent: u32) -> bool {
    // The name of the program is in parentheses, and may contain spaces and parentheses.
    let Some((_, fields)) = stat.rsplit_once(')') else { return false };
    let mut fields = fields.split_whitespace();
    fields.next() == Some("Z") && fields.next().is_some_and(|field| field.parse::<u32>() == Ok(parent))
}

fn reap_one(id: u32) {
    let Some(child) = Pid::from_raw(id as i32) else { return };
    match waitpid(Some(child), WaitOptions::NOHANG) {
        Ok(_) => tracing::debug!(process = id, "reaped an orphan"),
        Err(error) => tracing::debug!(process = id, %error, "cannot reap an orphan"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_exited_children_are_found() {
        let proc = tempfile::tempdir().unwrap();
        for (id, stat) in [
            ("7", "7 (python3) Z 1 6 6 0 -1 4228300"),
            ("8", "8 (python3) S 1 8 8 0 -1 4194304"),
            ("9", "9 (a) Z 2) Z 1 6 6 0 -1 4228300"),
            ("10", "10 (python3) Z 7 6 6 0 -1 4228300"),
            ("11", ""),
            ("self", "12 (feedline) Z 1 6 6 0 -1 4228300"),
        ] {
            let folder = proc.path().join(id);
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("stat"), stat).unwrap();
        }
        let mut exited = exited_children(proc.path(), 1);
        exited.sort_unstable();
        assert_eq!(exited, [7, 9]);
        assert!(exited_children(&proc.path().join("absent"), 1).is_empty());
    }
}
