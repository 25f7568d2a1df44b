//! Reads the environment and the properties of the machine. Only this file and `container.rs`, which it calls, read them.
#![expect(clippy::disallowed_methods, reason = "node reads the environment and passes the values down")]

use std::env;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use feedline_data::memory::MemoryLimits;

use crate::container::{self, ContainerResources, CoreBound};
use crate::failure::{Failure, reason};
use crate::memory_size::MemorySize;

/// Prefixes of environment variables that contain options of object stores.
const STORE_PREFIXES: [&str; 3] = ["AWS_", "GOOGLE_", "AZURE_"];
/// The address and the token of the Hugging Face Hub, as in the library `huggingface_hub`.
const HUB_VARIABLES: [&str; 2] = ["HF_ENDPOINT", "HF_TOKEN"];

/// Returns the log filter, if the user set it.
pub(crate) fn log_filter() -> Option<String> {
    env::var("FEEDLINE_LOG").ok().filter(|filter| !filter.trim().is_empty())
}

/// Returns the token for the cluster, if the user set it.
pub(crate) fn token() -> Option<String> {
    env::var("FEEDLINE_TOKEN").ok().filter(|token| !token.trim().is_empty())
}

/// Returns the path of the file with the token for the cluster, if the user set it.
pub(crate) fn token_file() -> Option<PathBuf> {
    env::var_os("FEEDLINE_TOKEN_FILE").filter(|file| !file.is_empty()).map(PathBuf::from)
}

/// Returns whether this process runs in a pod of Kubernetes.
pub(crate) fn is_in_kubernetes() -> bool {
    env::var_os("KUBERNETES_SERVICE_HOST").is_some()
}

/// Returns the options of object stores, such as credentials: `AWS_*`, `GOOGLE_*`, `AZURE_*`, `HF_ENDPOINT` and `HF_TOKEN`, and the
/// paths of the shared files of AWS.
pub(crate) fn store_options() -> Vec<(String, String)> {
    let named = env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let is_option = |name: &str| {
        STORE_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) || HUB_VARIABLES.contains(&name)
    };
    let set = named.filter(|(name, _)| is_option(name));
    // Later options take precedence.
    aws_files().into_iter().chain(set).collect()
}

/// Returns the options with the paths of the shared files of AWS: those of the environment, otherwise those in the user's
/// home directory.
pub(crate) fn aws_files() -> Vec<(String, String)> {
    let home = env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
    let file = |(option, name): (&str, &str)| {
        let set = env::var(option).ok().filter(|path| !path.is_empty());
        let path = set.or_else(|| home.as_ref()?.join(".aws").join(name).into_os_string().into_string().ok());
        Some((option.to_owned(), path?))
    };
    [("AWS_CONFIG_FILE", "config"), ("AWS_SHARED_CREDENTIALS_FILE", "credentials")]
        .into_iter()
        .filter_map(file)
        .collect()
}

/// Returns the environment variables that Python functions receive: paths, language and devices. All other variables
/// are excluded, because they may contain credentials.
pub(crate) fn function_environment() -> Vec<(String, String)> {
    const FUNCTION_VARIABLES: [&str; 17] = [
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
    FUNCTION_VARIABLES.iter().filter_map(|name| Some(((*name).to_owned(), env::var(name).ok()?))).collect()
}

/// Returns `feedline` in the user's cache directory. If `HOME` is not set, creates a private directory in the temporary
/// directory instead.
pub(crate) fn cache_dir() -> Result<PathBuf, Failure> {
    let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
    match cache {
        Some(cache) => Ok(cache.join("feedline")),
        None => private_folder(&env::temp_dir(), rustix::process::geteuid().as_raw()),
    }
}

/// Creates a private directory in `parent`, where other users may also create directories. Rejects an existing
/// directory that other users can write to.
fn private_folder(parent: &Path, user: u32) -> Result<PathBuf, Failure> {
    let folder = parent.join(format!("feedline-{user}"));
    let rejected = |why: &str| {
        Failure::failed(format!(
            "HOME is not set, and the cache directory {} {why}: pass --index-dir and --cache-dir, or set XDG_CACHE_HOME",
            folder.display()
        ))
    };
    let cannot = |error: &io::Error| rejected(&format!("cannot be used: {}", reason(error)));
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(cannot(&error)),
        _ => {}
    }
    let found = fs::symlink_metadata(&folder).map_err(|error| cannot(&error))?;
    if !found.is_dir() {
        return Err(rejected("is not a directory"));
    }
    if found.uid() != user {
        return Err(rejected("belongs to another user"));
    }
    if found.mode() & 0o022 != 0 {
        return Err(rejected("is writable by other users"));
    }
    Ok(folder)
}

/// The resources of the container of this process.
static CONTAINER: LazyLock<ContainerResources> = LazyLock::new(|| container::read(Path::new("/")));

/// Returns the number of cores on which the scheduler may run this process.
pub(crate) fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32)
}

/// Returns the default of `--cores`: the cores on which the scheduler may run this process, but at most the CPU limit of
/// the container, or its CPU request in Kubernetes. Logs a number that the user may not expect.
pub(crate) fn default_cores() -> u32 {
    static CORES: LazyLock<u32> = LazyLock::new(|| {
        let (cores, bound) = CONTAINER.cores(cores());
        log_core_bound(cores, bound);
        cores
    });
    *CORES
}

/// Logs why the container determines the number of cores.
fn log_core_bound(cores: u32, bound: CoreBound) {
    match bound {
        CoreBound::Machine | CoreBound::Limit => {}
        CoreBound::Request => {
            tracing::info!(cores, "the container has no CPU limit; --cores defaults to its CPU request");
        }
        CoreBound::NoRequest => tracing::warn!(
            cores,
            "the container has neither a CPU limit nor a CPU request; set a CPU limit, or pass --cores"
        ),
        CoreBound::Unreadable => tracing::warn!(
            cores,
            "cannot read the CPU limit of the container in /sys/fs/cgroup; --cores defaults to all cores of the node; pass --cores"
        ),
    }
}

/// Returns the CPU model, or an empty string if the system does not report it.
pub(crate) fn cpu_model() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    model.map(|(_, name)| name.trim().to_owned()).unwrap_or_default()
}

/// Returns the bandwidth of the fastest network card that is up, in bytes per second in each direction; 0 if unknown.
pub(crate) fn nic_bytes_per_s() -> u64 {
    let cards = fs::read_dir("/sys/class/net").into_iter().flatten().filter_map(Result::ok);
    // Skip virtual interfaces such as bridges: their traffic passes through a card.
    let speeds =
        cards.map(|card| card.path()).filter(|card| card.join("device").exists()).filter_map(|card| {
            let is_up = fs::read_to_string(card.join("operstate")).ok()?.trim() == "up";
            // The speed is in megabits per second; network cards of virtual machines report -1.
            let megabits: i64 = fs::read_to_string(card.join("speed")).ok()?.trim().parse().ok()?;
            u64::try_from(megabits).ok().filter(|_| is_up)
        });
    speeds.max().unwrap_or(0) * 1_000_000 / 8
}

/// Returns the memory budget for `--memory`, or its default.
pub(crate) fn memory_budget_bytes(memory: Option<MemorySize>) -> Result<u64, Failure> {
    match memory {
        None => Ok(MemoryLimits::default_budget_bytes(memory_bytes())),
        Some(MemorySize::Bytes(bytes)) => Ok(bytes),
        Some(MemorySize::Percent(percent)) => {
            let memory = memory_bytes().ok_or_else(|| {
                Failure::failed(format!(
                    "cannot use {percent}% of the memory, because the memory of this machine is unknown: pass a size, such as 4GiB"
                ))
            })?;
            Ok((memory / 100 * u64::from(percent)).max(1))
        }
    }
}

/// Returns the memory for graphs, for `--graph-memory`, or its default: half of the memory budget.
pub(crate) fn graph_memory_bytes(graphs: Option<MemorySize>, budget_bytes: u64) -> Result<u64, Failure> {
    let Some(graphs) = graphs else { return Ok(MemoryLimits::new(budget_bytes).graph_bytes()) };
    let bytes = memory_budget_bytes(Some(graphs))?;
    if bytes <= budget_bytes {
        return Ok(bytes);
    }
    Err(Failure::invalid_usage(format!(
        "--graph-memory is {bytes} bytes, but --memory, which includes it, is {budget_bytes} bytes: raise --memory or lower --graph-memory"
    )))
}

/// Returns the memory of the machine, or the memory limit of the container if it is lower; `None` if unknown.
fn memory_bytes() -> Option<u64> {
    let info = fs::read_to_string("/proc/meminfo").ok();
    let machine =
        info.as_deref().and_then(|info| info.lines().find_map(|line| line.strip_prefix("MemTotal:")));
    let machine: Option<u64> = machine.and_then(|line| line.split_whitespace().next()?.parse().ok());
    machine.map(|kib| kib * 1024).into_iter().chain(CONTAINER.memory_limit_bytes).min()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_percentage_of_memory_is_of_the_container_or_the_machine() {
        let all = memory_bytes().unwrap();
        let budget = |memory: MemorySize| memory_budget_bytes(Some(memory)).unwrap();
        assert_eq!(budget(MemorySize::Percent(100)), all / 100 * 100);
        assert_eq!(budget(MemorySize::Percent(70)), all / 100 * 70);
        assert_eq!(budget(MemorySize::Bytes(1 << 20)), 1 << 20);
        assert_eq!(memory_budget_bytes(None).unwrap(), (all / 4).min(1 << 30));
    }

    #[test]
    fn the_memory_for_graphs_is_part_of_the_budget() {
        assert_eq!(graph_memory_bytes(None, 1000).unwrap(), 500);
        assert_eq!(graph_memory_bytes(Some(MemorySize::Bytes(1000)), 1000).unwrap(), 1000);
        let error = graph_memory_bytes(Some(MemorySize::Bytes(1001)), 1000).unwrap_err().to_string();
        assert!(error.starts_with("--graph-memory is 1001 bytes, but --memory"), "{error}");
    }

    #[test]
    fn without_a_home_directory_the_cache_folder_must_be_private() {
        let temporary = tempfile::tempdir().unwrap();
        let user = rustix::process::geteuid().as_raw();
        let folder = temporary.path().join(format!("feedline-{user}"));
        let error = |user: u32| private_folder(temporary.path(), user).unwrap_err().to_string();
        assert_eq!(private_folder(temporary.path(), user).unwrap(), folder);
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o077, 0);
        assert_eq!(private_folder(temporary.path(), user).unwrap(), folder, "the directory exists already");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(error(user).contains("is writable by other users"));
        fs::remove_dir(&folder).unwrap();
        let planted = temporary.path().join("planted");
        fs::create_dir(&planted).unwrap();
        symlink(&planted, &folder).unwrap();
        let rejected = error(user);
        for part in ["is not a directory", "--index-dir", "--cache-dir", "XDG_CACHE_HOME"] {
            assert!(rejected.contains(part), "{rejected}");
        }
        fs::remove_file(&folder).unwrap();
        fs::write(&folder, "").unwrap();
        assert!(error(user).contains("is not a directory"));
        assert!(error(user.wrapping_add(1)).contains("belongs to another user"));
        assert!(private_folder(&folder, user).unwrap_err().to_string().contains("cannot be used"));
    }
}
