"""The machine of a node: containerd, kubelet and kube-proxy."""

import json
from pathlib import Path

from harness import cgroups
from harness.commands import run, succeeds, until
from harness.control_plane import ADDRESS, DOMAIN, ControlPlane
from harness.images import PAUSE
from harness.machine import Machine
from harness.programs import CNI_PLUGINS, TOOLS

# Volumes of a node, as paths on its machine.
VOLUMES = ["a", "b", "c"]

CONTAINERD = f"""
version = 3
disabled_plugins = [
    "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.nri.v1.nri",
]
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{PAUSE}"
[plugins.'io.containerd.cri.v1.runtime']
disable_apparmor = true
restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["{CNI_PLUGINS}"]
conf_dir = "/var/lib/cni-settings"
"""


class Node:
    """The node `node-N` with the address 10.78.0.(10 + N), whose pods have addresses in 10.77.N.0/24."""

    def __init__(self, number: int, directory: Path, control_plane: ControlPlane, cgroup: str) -> None:
        self.number, self.name, self.cgroup = number, f"node-{number}", cgroup
        self.address, self.pods = f"10.78.0.{10 + number}", f"10.77.{number}.0/24"
        self.link = f"node{number}"  # the end of the cable at the bridge of the control plane
        self.control_plane = control_plane
        self.machine = Machine(self.name, directory)
        for volume in VOLUMES:
            path = directory / "lib/volumes" / volume
            path.mkdir(parents=True)
            path.chmod(0o777)
        self._write_settings()
        cgroups.create(cgroup)

    def connect(self) -> None:
        """Connects the machine with the bridge of the control plane."""
        bridge = self.control_plane.machine
        peer = ["peer", "name", "eth0", "netns", self.machine.pid]
        # With the PIDs of the host, because `netns` takes one.
        run(bridge.network_command("ip", "link", "add", self.link, "type", "veth", *peer))
        bridge.run("ip", "link", "set", self.link, "master", "br0", "up")
        self.machine.run("ip", "addr", "add", f"{self.address}/24", "dev", "eth0")
        self.machine.run("ip", "link", "set", "eth0", "up")
        self.machine.run("ip", "route", "add", "default", "via", ADDRESS)

    def add_route(self, other: "Node") -> None:
        self.machine.run("ip", "route", "replace", other.pods, "via", other.address)

    def start_containerd(self) -> None:
        ready = self.machine.command(TOOLS / "ctr", "--timeout=50s", "--namespace=k8s.io", "images", "ls")
        self.machine.start("containerd", TOOLS / "containerd", "-c", "/var/lib/containerd.toml", probe=ready)
        until(lambda: succeeds(ready), f"{self.name}: containerd is ready")

    def import_image(self, archive: Path) -> None:
        self.machine.run(TOOLS / "ctr", "--namespace=k8s.io", "images", "import", archive)

    def start_kubelet(self) -> None:
        """Starts kubelet, also again after `machine.signal("kubelet")`."""
        self.machine.start(
            "kubelet",
            TOOLS / "kubelet",
            f"--kubeconfig={self.control_plane.kubeconfig}",
            "--config=/var/lib/kubelet.json",
            f"--hostname-override={self.name}",
            f"--node-ip={self.address}",
            probe=self._probe("http://127.0.0.1:10248", "/healthz"),
        )

    def start_proxy(self) -> None:
        self.machine.start(
            "proxy",
            TOOLS / "kube-proxy",
            f"--kubeconfig={self.control_plane.kubeconfig}",
            "--proxy-mode=nftables",
            f"--hostname-override={self.name}",
            "--cluster-cidr=10.77.0.0/16",
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0",
            probe=self._probe("http://127.0.0.1:10256", "/livez"),
        )

    def volumes(self) -> list[dict]:
        """Local volumes, as objects of the API."""
        expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": [self.name]}
        affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
        return [
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": f"{self.name}-{volume}"},
                "spec": {
                    "capacity": {"storage": "20Gi"},
                    "accessModes": ["ReadWriteOnce"],
                    "storageClassName": "local",
                    "local": {"path": f"/var/lib/volumes/{volume}"},
                    "nodeAffinity": affinity,
                },
            }
            for volume in VOLUMES
        ]

    def _probe(self, server: str, path: str) -> list[str]:
        """A command that succeeds if a program of this machine answers that it is healthy."""
        options = [f"--server={server}", "--request-timeout=50s", "get", "--raw", path]
        return self.machine.network_command(TOOLS / "kubectl", *options)

    def _write_settings(self) -> None:
        lib = self.machine.directory / "lib"
        # In /run, so that a boot frees the addresses of lost pods.
        ipam = {"type": "host-local", "dataDir": "/run/cni-addresses", "ranges": [[{"subnet": self.pods}]]}
        bridge = {"type": "bridge", "bridge": "pods", "isGateway": True, "hairpinMode": True, "ipMasq": False}
        plugins = [bridge | {"ipam": ipam | {"routes": [{"dst": "0.0.0.0/0"}]}}, {"type": "loopback"}]
        kubelet = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "failCgroupV1": False,
            "failSwapOn": False,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.cgroup}",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "readOnlyPort": 0,
            "clusterDNS": [ADDRESS],
            "clusterDomain": DOMAIN,
            "localStorageCapacityIsolation": False,
            "evictionHard": {"memory.available": "100Mi"},
            "nodeStatusUpdateFrequency": "2s",
            # Changed Secrets reach running pods within about this time.
            "syncFrequency": "10s",
            "enforceNodeAllocatable": [],
        }
        (lib / "cni-settings").mkdir(exist_ok=True)
        (lib / "cni-settings/10.conflist").write_text(
            json.dumps({"cniVersion": "1.0.0", "name": "feedline", "plugins": plugins})
        )
        (lib / "containerd.toml").write_text(CONTAINERD)
        (lib / "kubelet.json").write_text(json.dumps(kubelet))
