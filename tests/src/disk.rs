//! A small disk that can be full.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::data::skip;

/// A small disk, mounted in a directory until it is dropped.
#[derive(Debug)]
pub struct SmallDisk {
    folder: PathBuf,
    bytes: usize,
}

impl SmallDisk {
    /// Mounts a disk of this size in a new directory. If the process may not mount a disk, prints a message and returns
    /// `None`.
    pub fn mount(folder: &Path, kib: u32) -> Option<Self> {
        fs::create_dir_all(folder).expect("the directory can be made");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={kib}k"), "tmpfs"])
            .arg(folder)
            .output()
            .is_ok_and(|output| output.status.success());
        if !mounted {
            skip("a full disk needs the right to mount a tmpfs");
            return None;
        }
        Some(Self { folder: folder.to_owned(), bytes: (kib as usize) << 10 })
    }

    /// Fills the disk.
    pub fn fill(&self) {
        // The write fills the disk and fails with the error that roles will receive.
        let _ = fs::write(self.filler(), vec![0u8; self.bytes]);
    }

    /// Frees space on the disk.
    pub fn free(&self) {
        // The file exists only after a fill.
        let _ = fs::remove_file(self.filler());
    }

    fn filler(&self) -> PathBuf {
        self.folder.join("filler")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("-l").arg(&self.folder).status();
        // If this fails, removing the directory fails too.
        if !unmounted.is_ok_and(|status| status.success()) {
            eprintln!("{} could not be unmounted", self.folder.display());
        }
    }
}
