//! A small disk that can be full.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A small disk, mounted in a folder until it is dropped.
#[derive(Debug)]
pub struct SmallDisk {
    folder: PathBuf,
    bytes: usize,
}

impl SmallDisk {
    /// A disk of so many KiB in a new folder; `None`, with a line that says so, without the right to mount one.
    pub fn mount(folder: &Path, kib: u32) -> Option<Self> {
        fs::create_dir_all(folder).expect("the folder can be made");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={kib}k"), "tmpfs"])
            .arg(folder)
            .output()
            .is_ok_and(|output| output.status.success());
        if !mounted {
            eprintln!("skipped: a full disk needs the right to mount a tmpfs");
            return None;
        }
        Some(Self { folder: folder.to_owned(), bytes: (kib as usize) << 10 })
    }

    /// Leaves no room on it.
    pub fn fill(&self) {
        // Takes all the room there is; the write ends with the error that others will see.
        let _ = fs::write(self.filler(), vec![0u8; self.bytes]);
    }

    /// Makes room on it.
    pub fn free(&self) {
        // There is nothing to remove unless it was filled.
        let _ = fs::remove_file(self.filler());
    }

    fn filler(&self) -> PathBuf {
        self.folder.join("filler")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("-l").arg(&self.folder).status();
        // What is left of it is seen when the folder is removed.
        if !unmounted.is_ok_and(|status| status.success()) {
            eprintln!("{} could not be unmounted", self.folder.display());
        }
    }
}
