"""Programs and system packages that a cluster needs."""

import os
import shutil
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
TOOLS = Path(os.environ.get("FEEDLINE_CLUSTER_TOOLS") or REPOSITORY / "target/cluster-tools")
CNI_PLUGINS = Path("/usr/lib/cni")

CONTROL_PLANE = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"]
FAKE_NODES = ["kwok", "kwok-stages.yaml"]
REAL_NODES = ["kubelet", "kube-proxy", "containerd", "containerd-shim-runc-v2", "ctr", "coredns", "pause"]

# System programs, and the Debian packages that contain them.
SYSTEM = {"ip": "iproute2", "nsenter": "util-linux", "unshare": "util-linux", "openssl": "openssl"}
NODE_SYSTEM = {"runc": "runc", "nft": "nftables", "iptables": "iptables", "conntrack": "conntrack"}


def missing_requirement(nodes: int, fake_nodes: int = 0, more: list[str] = []) -> str | None:
    """Returns one sentence about what is missing for a cluster, or None."""
    if missing := missing_in_system(nodes):
        return missing
    programs = CONTROL_PLANE + (FAKE_NODES if fake_nodes else []) + (REAL_NODES if nodes else []) + more
    if missing := [program for program in programs if not (TOOLS / program).exists()]:
        return f"{TOOLS} lacks {', '.join(missing)}: run `make cluster-tools`"
    return None


def missing_in_system(nodes: int) -> str | None:
    """Returns one sentence about what is missing beside the programs of `make cluster-tools`, or None."""
    if os.geteuid() != 0:
        return "a Kubernetes cluster needs root, because it creates network namespaces: run the tests as root"
    system = SYSTEM | (NODE_SYSTEM if nodes else {})
    packages = {package for program, package in system.items() if not shutil.which(program, path=search_path())}
    if nodes and not (CNI_PLUGINS / "bridge").exists():
        packages.add("containernetworking-plugins")
    if packages:
        return f"a Kubernetes cluster needs Debian packages: apt-get install {' '.join(sorted(packages))}"
    # A container whose root lacks capabilities.
    namespaces = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "true"]
    if subprocess.run(namespaces, capture_output=True).returncode != 0:
        return "a Kubernetes cluster creates namespaces: run the tests as root with all capabilities"
    return None


def search_path() -> str:
    """PATH with the programs of the cluster, and with directories that PATH of a user may lack."""
    return os.pathsep.join([str(TOOLS), os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"])
