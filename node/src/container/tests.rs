//! Tests on file trees that were recorded in containers, reduced to the files that are read.

use tempfile::TempDir;

use super::*;

const GIB: u64 = 1 << 30;
const V2_MOUNT: &str =
    "30 23 0:26 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw,nsdelegate,memory_recursiveprot\n";
const HOSTS: &str =
    "95 80 259:1 /var/lib/kubelet/pods/3f1c/etc-hosts /etc/hosts rw,relatime - ext4 /dev/nvme0n1p1 rw\n";

/// Writes files, as (path, content), to a new root directory, and reads its resources.
fn read_tree(files: &[(&str, &str)]) -> ContainerResources {
    let root = TempDir::new().unwrap();
    for (path, content) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    read(root.path())
}

/// Returns the resources of a container of Kubernetes with version 2 and a control group namespace.
fn read_pod(cpu_max: &str, cpu_weight: &str) -> ContainerResources {
    let mounts = format!("{V2_MOUNT}{HOSTS}");
    read_tree(&[
        ("proc/self/cgroup", "0::/\n"),
        ("proc/self/mountinfo", &mounts),
        ("sys/fs/cgroup/memory.max", "4294967296\n"),
        ("sys/fs/cgroup/cpu.max", cpu_max),
        ("sys/fs/cgroup/cpu.weight", cpu_weight),
    ])
}

#[test]
fn a_machine_without_control_groups_has_no_limits() {
    let machine = read_tree(&[]);
    assert_eq!(machine, ContainerResources::default());
    assert_eq!(machine.cores(16), (16, CoreBound::Machine));
    let desktop = read_tree(&[
        ("proc/self/cgroup", "0::/user.slice/user-1000.slice/session-2.scope\n"),
        ("proc/self/mountinfo", V2_MOUNT),
        ("sys/fs/cgroup/user.slice/memory.max", "max\n"),
        ("sys/fs/cgroup/user.slice/cpu.max", "max 100000\n"),
        ("sys/fs/cgroup/user.slice/cpu.weight", "100\n"),
    ]);
    assert_eq!(desktop, ContainerResources::default(), "the weight of a session is not a request");
}

#[test]
fn version_2_with_a_control_group_namespace() {
    let pod = read_pod("250000 100000\n", "79\n");
    assert_eq!(pod.memory_limit_bytes, Some(4 * GIB));
    assert_eq!((pod.cpu_limit, pod.cpu_request), (Some(2.5), Some(2.0)));
    assert_eq!(pod.cores(64), (2, CoreBound::Limit), "a limit precedes a request");
    assert_eq!(pod.cores(1), (1, CoreBound::Limit), "the scheduler allows fewer cores");
    assert_eq!(read_pod("50000 100000\n", "79\n").cores(64), (1, CoreBound::Limit));
}

/// Docker outside of Kubernetes uses a namespace too, but its weight is not a request.
#[test]
fn a_weight_outside_of_kubernetes_is_not_a_request() {
    let docker = read_tree(&[
        ("proc/self/cgroup", "0::/\n"),
        ("proc/self/mountinfo", V2_MOUNT),
        ("sys/fs/cgroup/memory.max", "max\n"),
        ("sys/fs/cgroup/cpu.max", "max 100000\n"),
        ("sys/fs/cgroup/cpu.weight", "39\n"),
    ]);
    assert_eq!(docker.cores(64), (64, CoreBound::Machine));
}

#[test]
fn without_a_cpu_limit_a_container_of_kubernetes_uses_its_request() {
    let cores = |weight: &str| read_pod("max 100000\n", weight).cores(64);
    assert_eq!(cores("157\n"), (4, CoreBound::Request), "4 cores, by older container runtimes");
    assert_eq!(cores("303\n"), (4, CoreBound::Request), "4 cores, by newer container runtimes");
    assert_eq!(cores("10\n"), (1, CoreBound::Request), "250m");
    assert_eq!(cores("1\n"), (1, CoreBound::NoRequest));
    let unreadable = read_tree(&[("proc/self/cgroup", "0::/kubepods.slice\n")]);
    assert_eq!(unreadable.cores(64), (64, CoreBound::Unreadable));
}

/// Without a namespace, the path shows the slices of kubelet, and the mount contains the control groups of the host.
#[test]
fn version_2_without_a_namespace_uses_the_smallest_limit_of_all_ancestors() {
    let slice = "sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice";
    let pod = format!("{slice}/kubepods-burstable-pod3f1c.slice");
    let container = format!("{pod}/cri-containerd-90ab.scope");
    let group = format!("0::{}/workers\n", container.trim_start_matches("sys/fs/cgroup"));
    let file = |directory: &str, name: &str| format!("{directory}/{name}");
    let read_with = |slice_max: &str| {
        read_tree(&[
            ("proc/self/cgroup", &group),
            ("proc/self/mountinfo", V2_MOUNT),
            (&file(slice, "memory.max"), slice_max),
            (&file(slice, "cpu.weight"), "900\n"),
            (&file(&pod, "memory.max"), "8589934592\n"),
            (&file(&pod, "cpu.max"), "400000 100000\n"),
            (&file(&container, "memory.max"), "max\n"),
            (&file(&container, "cpu.max"), "max 100000\n"),
            (&file(&container, "cpu.weight"), "79\n"),
            (&file(&container, "workers/memory.max"), "max\n"),
            (&file(&container, "workers/cpu.weight"), "100\n"),
        ])
    };
    let resources = read_with("max\n");
    assert_eq!(resources.memory_limit_bytes, Some(8 * GIB), "the limit of the pod");
    assert_eq!(resources.cpu_limit, Some(4.0));
    assert_eq!(resources.cpu_request, Some(2.0), "the request of the container, not of its child");
    assert_eq!(read_with("2147483648\n").memory_limit_bytes, Some(2 * GIB), "the limit of the slice");
}

/// A container inside a container: the namespace begins at the outer container, whose limit is smaller.
#[test]
fn nested_version_2_uses_the_smallest_limit() {
    let nested = read_tree(&[
        ("proc/self/cgroup", "0::/docker/7e12\n"),
        ("proc/self/mountinfo", V2_MOUNT),
        ("sys/fs/cgroup/memory.max", "1073741824\n"),
        ("sys/fs/cgroup/cpu.max", "300000 100000\n"),
        ("sys/fs/cgroup/docker/memory.max", "max\n"),
        ("sys/fs/cgroup/docker/7e12/memory.max", "4294967296\n"),
        ("sys/fs/cgroup/docker/7e12/cpu.max", "800000 200000\n"),
    ]);
    assert_eq!(nested.memory_limit_bytes, Some(GIB));
    assert_eq!(nested.cores(64), (3, CoreBound::Limit));
}

const V1_MOUNTS: &str = "\
33 31 0:30 /kubepods/burstable/pod3f1c/90ab /sys/fs/cgroup/cpu,cpuacct ro,relatime master:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 /kubepods/burstable/pod3f1c/90ab /sys/fs/cgroup/memory ro,relatime master:11 - cgroup cgroup rw,memory
40 31 0:37 /kubepods/burstable/pod3f1c/90ab /sys/fs/cgroup/systemd ro - cgroup cgroup rw,xattr,name=systemd
";
const V1_GROUPS: &str = "\
11:memory:/kubepods/burstable/pod3f1c/90ab
9:cpu,cpuacct:/kubepods/burstable/pod3f1c/90ab
1:name=systemd:/kubepods/burstable/pod3f1c/90ab
";

#[test]
fn version_1_in_a_container() {
    let read_with = |memory: &str, stat: &str, quota: &str, shares: &str| {
        read_tree(&[
            ("proc/self/cgroup", V1_GROUPS),
            ("proc/self/mountinfo", V1_MOUNTS),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", memory),
            ("sys/fs/cgroup/memory/memory.stat", stat),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", quota),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.shares", shares),
        ])
    };
    let unlimited = "9223372036854771712\n";
    let limited = read_with("2147483648\n", "cache 0\n", "350000\n", "1024\n");
    assert_eq!(limited.memory_limit_bytes, Some(2 * GIB));
    assert_eq!(limited.cores(64), (3, CoreBound::Limit));
    let of_pod = read_with(unlimited, "cache 0\nhierarchical_memory_limit 1073741824\n", "-1\n", "3072\n");
    assert_eq!(of_pod.memory_limit_bytes, Some(GIB), "a limit of an ancestor that is not visible");
    assert_eq!(of_pod.cores(64), (3, CoreBound::Request));
    let best_effort = read_with(unlimited, "cache 0\n", "-1\n", "2\n");
    assert_eq!(best_effort.memory_limit_bytes, None);
    assert_eq!(best_effort.cores(64), (1, CoreBound::NoRequest));
}

/// On a host, the process is in a control group below the mount of each controller.
#[test]
fn version_1_on_a_host_uses_the_limits_of_ancestors() {
    let host = read_tree(&[
        ("proc/self/cgroup", "4:memory:/batch/job-7\n2:cpu:/batch\n0::/\n"),
        (
            "proc/self/mountinfo",
            "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
             32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
             41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
        ),
        ("sys/fs/cgroup/memory/batch/memory.limit_in_bytes", "1073741824\n"),
        ("sys/fs/cgroup/memory/batch/job-7/memory.limit_in_bytes", "2147483648\n"),
        ("sys/fs/cgroup/cpu/batch/cpu.cfs_quota_us", "200000\n"),
        ("sys/fs/cgroup/cpu/batch/cpu.cfs_period_us", "100000\n"),
        ("sys/fs/cgroup/cpu/batch/cpu.shares", "512\n"),
    ]);
    let expected = ContainerResources {
        memory_limit_bytes: Some(GIB),
        cpu_limit: Some(2.0),
        ..ContainerResources::default()
    };
    assert_eq!(host, expected);
}

/// A process whose control group is outside of its namespace sees only the mounted directory.
#[test]
fn a_control_group_outside_of_the_namespace_uses_the_mounted_directory() {
    let outside = read_tree(&[
        ("proc/self/cgroup", "0::/../sibling\n"),
        ("proc/self/mountinfo", "30 23 0:26 /inner /sys/fs/cgroup ro - cgroup2 cgroup rw\n"),
        ("sys/fs/cgroup/memory.max", "1073741824\n"),
    ]);
    assert_eq!(outside.memory_limit_bytes, Some(GIB));
}

#[test]
fn whole_cores_survive_both_conversions_of_container_runtimes() {
    for request in (1..=64).map(|cores| cores * 1_000) {
        assert_eq!(request_of_weight(quadratic_weight(shares(request))), request);
        // Newer container runtimes use the weights of 15 and 35 cores for 9 and 25 cores.
        let expected = match request {
            15_000 => 9_000,
            35_000 => 25_000,
            _ => request,
        };
        assert_eq!(request_of_weight(linear_weight(shares(request))), expected);
    }
    assert_eq!(quadratic_weight(shares(1_000)), 100);
    assert_eq!((linear_weight(2), quadratic_weight(2)), (1, 1));
    assert_eq!((linear_weight(MAX_SHARES), quadratic_weight(MAX_SHARES)), (10_000, 10_000));
}
