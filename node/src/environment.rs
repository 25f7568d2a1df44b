//! What the environment and the machine say: the only place in Feedline that asks them.
#![expect(clippy::disallowed_methods, reason = "node reads the environment and passes down what it found")]

use std::env;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::failure::{Failure, reason};

/// Memory for batches where nobody says how much: this, or a quarter of the machine's where that is less.
const DEFAULT_MEMORY_BYTES: u64 = 1 << 30;
/// Variables whose names begin so are options of object stores.
const STORE_PREFIXES: [&str; 3] = ["AWS_", "GOOGLE_", "AZURE_"];

/// The filter of log lines, if the user set one.
pub(crate) fn log_filter() -> Option<String> {
    env::var("FEEDLINE_LOG").ok().filter(|filter| !filter.trim().is_empty())
}

/// The token that a cluster asks for, if the user set one.
pub(crate) fn token() -> Option<String> {
    env::var("FEEDLINE_TOKEN").ok().filter(|token| !token.trim().is_empty())
}

/// The file of the token that a cluster asks for, if the user set one.
pub(crate) fn token_file() -> Option<PathBuf> {
    env::var_os("FEEDLINE_TOKEN_FILE").filter(|file| !file.is_empty()).map(PathBuf::from)
}

/// Options of object stores, such as credentials: `AWS_*`, `GOOGLE_*` and `AZURE_*`.
pub(crate) fn store_options() -> Vec<(String, String)> {
    let named = env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    named.filter(|(name, _)| STORE_PREFIXES.iter().any(|prefix| name.starts_with(prefix))).collect()
}

/// What a Python function sees of the environment: where programs, libraries and modules are, in which language, and which
/// devices are to be used. Nothing else, since keys may be among it.
pub(crate) fn for_functions() -> Vec<(String, String)> {
    const NAMES: [&str; 17] = [
        "PATH",
        "HOME",
        "USER",
        "LANG",
        "LC_ALL",
        "LC_CTYPE",
        "TZ",
        "TMPDIR",
        "LD_LIBRARY_PATH",
        "VIRTUAL_ENV",
        "PYTHONPATH",
        "PYTHONHOME",
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "HF_HOME",
        "CUDA_VISIBLE_DEVICES",
    ];
    NAMES.iter().filter_map(|name| Some(((*name).to_owned(), env::var(name).ok()?))).collect()
}

/// `feedline` in the user's cache directory; for a user without a home a folder of its own in the temporary directory, which is
/// made now.
pub(crate) fn cache_dir() -> Result<PathBuf, Failure> {
    let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
    match cache {
        Some(cache) => Ok(cache.join("feedline")),
        None => private_folder(&env::temp_dir(), rustix::process::geteuid().as_raw()),
    }
}

/// A folder of this user in one in which others may make folders, too: what they could write in would not be its own.
fn private_folder(parent: &Path, user: u32) -> Result<PathBuf, Failure> {
    let folder = parent.join(format!("feedline-{user}"));
    let refused = |why: &str| {
        Failure::failed(format!(
            "without HOME caches would lie in {}, and {why}: give --index-dir and --cache-dir, or set XDG_CACHE_HOME",
            folder.display()
        ))
    };
    let cannot = |error: &io::Error| refused(&format!("that cannot be used: {}", reason(error)));
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(cannot(&error)),
        _ => {}
    }
    let found = fs::symlink_metadata(&folder).map_err(|error| cannot(&error))?;
    if !found.is_dir() {
        return Err(refused("that is no folder"));
    }
    if found.uid() != user {
        return Err(refused("that is another user's"));
    }
    if found.mode() & 0o022 != 0 {
        return Err(refused("others can write in it"));
    }
    Ok(folder)
}

/// Cores that this process may use.
pub(crate) fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32)
}

/// The model of the CPU; nothing where the system does not tell.
pub(crate) fn machine() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    model.map(|(_, name)| name.trim().to_owned()).unwrap_or_default()
}

/// Bandwidth in bytes per second and direction of the fastest network card that is up; 0 where none tells.
pub(crate) fn nic_bytes_per_s() -> u64 {
    let cards = fs::read_dir("/sys/class/net").into_iter().flatten().filter_map(Result::ok);
    // What is no device, such as a bridge, carries what a card carries.
    let speeds =
        cards.map(|card| card.path()).filter(|card| card.join("device").exists()).filter_map(|card| {
            let is_up = fs::read_to_string(card.join("operstate")).ok()?.trim() == "up";
            // Megabits; cards of virtual machines say -1.
            let megabits: i64 = fs::read_to_string(card.join("speed")).ok()?.trim().parse().ok()?;
            u64::try_from(megabits).ok().filter(|_| is_up)
        });
    speeds.max().unwrap_or(0) * 1_000_000 / 8
}

/// Memory for batches where nobody says how much.
pub(crate) fn default_memory_bytes() -> u64 {
    memory_bytes().map_or(DEFAULT_MEMORY_BYTES, |all| DEFAULT_MEMORY_BYTES.min(all / 4))
}

/// Memory of the machine, or of the container where that has less; `None` where the system does not tell.
fn memory_bytes() -> Option<u64> {
    let info = fs::read_to_string("/proc/meminfo").ok();
    let machine =
        info.as_deref().and_then(|info| info.lines().find_map(|line| line.strip_prefix("MemTotal:")));
    let machine: Option<u64> = machine.and_then(|line| line.split_whitespace().next()?.parse().ok());
    let container = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let container =
        container.iter().filter_map(|path| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok()).min();
    machine.map(|kib| kib * 1024).into_iter().chain(container).min()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn without_a_home_caches_lie_in_a_folder_that_only_its_user_writes_in() {
        let temporary = tempfile::tempdir().unwrap();
        let user = rustix::process::geteuid().as_raw();
        let folder = temporary.path().join(format!("feedline-{user}"));
        let refusal = |user: u32| private_folder(temporary.path(), user).unwrap_err().to_string();
        assert_eq!(private_folder(temporary.path(), user).unwrap(), folder);
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o077, 0);
        assert_eq!(private_folder(temporary.path(), user).unwrap(), folder, "it is there already");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(refusal(user).contains("others can write in it"));
        fs::remove_dir(&folder).unwrap();
        let planted = temporary.path().join("planted");
        fs::create_dir(&planted).unwrap();
        symlink(&planted, &folder).unwrap();
        let refused = refusal(user);
        for said in ["that is no folder", "--index-dir", "--cache-dir", "XDG_CACHE_HOME"] {
            assert!(refused.contains(said), "{refused}");
        }
        fs::remove_file(&folder).unwrap();
        fs::write(&folder, "").unwrap();
        assert!(refusal(user).contains("that is no folder"));
        // Whoever made it, it is not that user's.
        assert!(refusal(user.wrapping_add(1)).contains("another user's"));
        assert!(private_folder(&folder, user).unwrap_err().to_string().contains("cannot be used"));
    }
}
