//! Reads the memory and CPU limits of the container of this process from its control groups, versions 1 and 2.
//!
//! A limit applies to all processes in a control group and its descendants. The effective limit is therefore the smallest
//! limit of the control group of this process and its ancestors, as far as the container can see them.

use std::fs;
use std::path::{Path, PathBuf};

/// CPU shares of a container without a CPU request.
const MIN_SHARES: u64 = 2;
/// Maximum CPU shares, which correspond to 256 cores.
const MAX_SHARES: u64 = 1 << 18;
/// Largest CPU request that is considered when a weight is converted, in thousandths of a core.
const MAX_REQUEST_MILLICORES: u64 = 256_000;
/// Version 1 reports an unlimited size as the largest multiple of the page size.
const MIN_UNLIMITED_BYTES: u64 = 1 << 62;

/// The resources of the container of this process.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct ContainerResources {
    /// The memory limit in bytes; `None` without a limit.
    pub(crate) memory_limit_bytes: Option<u64>,
    /// The CPU limit in cores; `None` without a limit.
    pub(crate) cpu_limit: Option<f64>,
    /// The CPU request of a container of Kubernetes in cores, 0 without a request; `None` outside of Kubernetes, or if
    /// the container cannot read it.
    pub(crate) cpu_request: Option<f64>,
    /// Whether kubelet started the container.
    pub(crate) is_kubernetes: bool,
}

/// The quantity that limits the number of cores.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum CoreBound {
    /// The cores that the scheduler allows.
    Machine,
    /// The CPU limit of the container.
    Limit,
    /// The CPU request of a container of Kubernetes without a CPU limit.
    Request,
    /// A container of Kubernetes with neither a CPU limit nor a CPU request.
    NoRequest,
    /// A container of Kubernetes whose CPU limit and CPU request cannot be read.
    Unreadable,
}

impl ContainerResources {
    /// Returns the number of cores to use, and what bounds it. `allowed_cores` is the number of cores on which the
    /// scheduler may run this process. Fractions are rounded down, but the result is at least 1.
    pub(crate) fn cores(&self, allowed_cores: u32) -> (u32, CoreBound) {
        let bound_by = |cores: f64| allowed_cores.min(cores as u32).max(1);
        match (self.cpu_limit, self.cpu_request) {
            (Some(limit), _) => (bound_by(limit), CoreBound::Limit),
            (None, Some(request)) if request > 0.0 => (bound_by(request), CoreBound::Request),
            (None, Some(_)) => (1, CoreBound::NoRequest),
            (None, None) if self.is_kubernetes => (allowed_cores, CoreBound::Unreadable),
            (None, None) => (allowed_cores, CoreBound::Machine),
        }
    }
}

/// Reads the resources from the files in `proc` and `sys` of the root directory `root`.
pub(crate) fn read(root: &Path) -> ContainerResources {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mounts = fs::read_to_string(root.join("proc/self/mountinfo")).unwrap_or_default();
    let mounts: Vec<Mount<'_>> = mounts.lines().filter_map(Mount::parse).collect();
    let group = |controller: &str| ControlGroup::find(root, &groups, &mounts, controller);
    let (unified, memory, cpu) = (group(""), group("memory"), group("cpu"));
    let is_kubernetes = groups.contains("kubepods") || mounts.iter().any(Mount::is_of_kubelet);
    let memory_limits = [unified.smallest(memory_max), memory.smallest(memory_limit_v1)];
    let cpu_limits = [unified.smallest(cpu_max), cpu.smallest(cpu_quota_v1)];
    let weight = || unified.container.as_deref().and_then(cpu_weight);
    let shares = || cpu.container.as_deref().and_then(cpu_shares_v1);
    ContainerResources {
        memory_limit_bytes: memory_limits.into_iter().flatten().reduce(f64::min).map(|bytes| bytes as u64),
        cpu_limit: cpu_limits.into_iter().flatten().reduce(f64::min),
        cpu_request: if is_kubernetes { weight().or_else(shares) } else { None },
        is_kubernetes,
    }
}

/// A line of `/proc/self/mountinfo`.
#[derive(Debug)]
struct Mount<'a> {
    /// The directory of the mounted file system that appears at the mount point.
    directory: &'a str,
    mount_point: &'a str,
    file_system: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        // The number of optional fields in front of the separator varies.
        let (mount, file_system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let mut file_system = file_system.split(' ');
        Some(Self {
            directory: mount.next()?,
            mount_point: mount.next()?,
            file_system: file_system.next()?,
            options: file_system.nth(1)?,
        })
    }

    /// Whether the mount contains this controller; `""` is the hierarchy of version 2.
    fn has_controller(&self, controller: &str) -> bool {
        match controller {
            "" => self.file_system == "cgroup2",
            _ => self.file_system == "cgroup" && self.options.split(',').any(|option| option == controller),
        }
    }

    /// Whether kubelet has mounted one of its files into the container: `/etc/hosts` or the termination message. The
    /// paths of control groups do not show kubelet's names in a container with a control group namespace.
    fn is_of_kubelet(&self) -> bool {
        self.directory.split_once("/pods/").is_some_and(|(_, path)| {
            path.split('/').nth(1).is_some_and(|part| matches!(part, "etc-hosts" | "containers"))
        })
    }
}

/// The directories of a control group.
#[derive(Debug, Default)]
struct ControlGroup {
    /// The control group of this process and its visible ancestors.
    directories: Vec<PathBuf>,
    /// The control group of the container. This process may run in a descendant of it.
    container: Option<PathBuf>,
}

impl ControlGroup {
    /// Finds the control group of this process with a controller. It has no directories if the controller is not mounted.
    fn find(root: &Path, groups: &str, mounts: &[Mount<'_>], controller: &str) -> Self {
        let path = groups.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            controllers.split(',').any(|name| name == controller).then_some(path)
        });
        let path: Vec<&str> = split_path(path.unwrap_or_default()).collect();
        let mut mounts = mounts.iter().filter(|mount| mount.has_controller(controller)).peekable();
        let Some(first) = mounts.peek().copied() else { return Self::default() };
        let depth = |mount: &Mount<'_>| split_path(mount.directory).count();
        let contains =
            |mount: &&Mount<'_>| split_path(mount.directory).eq(path.iter().copied().take(depth(mount)));
        let (mount, hidden) = match mounts.find(contains) {
            Some(mount) => (mount, depth(mount)),
            // The control group is outside of the mounted directory, so that only the mounted directory is visible.
            None => (first, path.len()),
        };
        let mount_point = root.join(mount.mount_point.trim_start_matches('/'));
        let directory =
            |depth: usize| path[hidden..depth].iter().fold(mount_point.clone(), |at, name| at.join(name));
        // kubelet names a control group after each pod, and the container runtime creates the containers inside.
        let pod = path.iter().position(|name| is_pod(name));
        let container = pod.map_or(hidden, |pod| (pod + 2).clamp(hidden, path.len()));
        Self {
            directories: (hidden..=path.len()).map(directory).collect(),
            container: Some(directory(container)),
        }
    }

    /// Returns the smallest value that `read` returns for the control group and its ancestors.
    fn smallest(&self, read: fn(&Path) -> Option<f64>) -> Option<f64> {
        self.directories.iter().filter_map(|directory| read(directory)).reduce(f64::min)
    }
}

fn split_path(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|name| !name.is_empty())
}

/// Whether a directory is the control group of a pod: `pod<uid>`, or `kubepods-burstable-pod<uid>.slice` with systemd.
fn is_pod(name: &str) -> bool {
    name.starts_with("pod") || (name.starts_with("kubepods-") && name.contains("-pod"))
}

/// Reads the fields of a file of a control group.
fn read_fields<const COUNT: usize>(path: PathBuf) -> Option<[String; COUNT]> {
    let text = fs::read_to_string(path).ok()?;
    let fields: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    fields.try_into().ok()
}

fn read_number(path: PathBuf) -> Option<u64> {
    read_fields::<1>(path)?[0].parse().ok()
}

fn memory_max(group: &Path) -> Option<f64> {
    read_number(group.join("memory.max")).map(|bytes| bytes as f64)
}

fn memory_limit_v1(group: &Path) -> Option<f64> {
    let own = read_number(group.join("memory.limit_in_bytes"));
    // This limit includes ancestors that the container cannot see.
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let inherited = stat.lines().find_map(|line| line.strip_prefix("hierarchical_memory_limit "));
    let limits = own.into_iter().chain(inherited.and_then(|bytes| bytes.trim().parse().ok()));
    limits.filter(|bytes| *bytes < MIN_UNLIMITED_BYTES).min().map(|bytes| bytes as f64)
}

fn cpu_max(group: &Path) -> Option<f64> {
    let [quota, period] = read_fields::<2>(group.join("cpu.max"))?;
    quotient(quota.parse().ok()?, period.parse().ok()?)
}

fn cpu_quota_v1(group: &Path) -> Option<f64> {
    // The quota is -1 without a limit.
    let quota = read_number(group.join("cpu.cfs_quota_us"))?;
    quotient(quota, read_number(group.join("cpu.cfs_period_us"))?)
}

fn quotient(quota_us: u64, period_us: u64) -> Option<f64> {
    (quota_us > 0 && period_us > 0).then(|| quota_us as f64 / period_us as f64)
}

/// Returns the CPU request of a container in cores, which kubelet converts to shares.
fn cpu_shares_v1(container: &Path) -> Option<f64> {
    let shares = read_number(container.join("cpu.shares"))?;
    Some(if shares <= MIN_SHARES { 0.0 } else { (shares * 1000).div_ceil(1024) as f64 / 1000.0 })
}

/// Returns the CPU request of a container in cores, which the container runtime converts to a weight.
fn cpu_weight(container: &Path) -> Option<f64> {
    let weight = read_number(container.join("cpu.weight"))?;
    Some(if weight <= 1 { 0.0 } else { request_of_weight(weight) as f64 / 1000.0 })
}

/// Returns the CPU request in thousandths of a core of a container with this weight. Container runtimes use one of two
/// conversions, and many weights result from different requests by each of them. This function assumes the request with
/// the fewest decimals, and the smaller one of two such requests.
fn request_of_weight(weight: u64) -> u64 {
    for step in [1_000, 250, 100, 50, 10] {
        let requests = || (step..=MAX_REQUEST_MILLICORES).step_by(step as usize);
        let find = |convert: fn(u64) -> u64| requests().find(|request| convert(shares(*request)) == weight);
        if let Some(request) = [linear_weight, quadratic_weight].into_iter().filter_map(find).min() {
            return request;
        }
    }
    let shares = MIN_SHARES + (weight - 1) * (MAX_SHARES - MIN_SHARES) / 9_999;
    (shares * 1_000).div_ceil(1_024)
}

/// kubelet's conversion of a request in thousandths of a core.
fn shares(request: u64) -> u64 {
    (request * 1_024 / 1_000).clamp(MIN_SHARES, MAX_SHARES)
}

/// The conversion of runc before 1.3.2 and crun before 1.23.
fn linear_weight(shares: u64) -> u64 {
    1 + (shares - MIN_SHARES) * 9_999 / (MAX_SHARES - MIN_SHARES)
}

/// The conversion of later container runtimes, under which the shares of one core become the default weight 100.
fn quadratic_weight(shares: u64) -> u64 {
    if shares <= MIN_SHARES {
        return 1;
    }
    if shares >= MAX_SHARES {
        return 10_000;
    }
    let log = (shares as f64).log2();
    10_f64.powf((log * log + 125.0 * log) / 612.0 - 7.0 / 34.0).ceil() as u64
}

#[cfg(test)]
mod tests;
