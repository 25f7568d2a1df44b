"""The machine of the control plane: etcd, the API server, the controllers, the scheduler, and DNS or fake nodes."""

import json
import secrets
from pathlib import Path

from harness.commands import run, succeeds, until
from harness.machine import Machine
from harness.programs import TOOLS

ADDRESS = "10.78.0.1"
SERVICES = "10.96.0.0/16"
DOMAIN = "cluster.local"
ETCD = "http://127.0.0.1:2379"
# The default ports, in the namespace of the machine.
CONTROLLERS_PORT, SCHEDULER_PORT = 10257, 10259

# Without a cache for names of the cluster, as in the default settings of kubeadm.
COREFILE = f"""
.:53 {{
    bind {ADDRESS}
    errors
    kubernetes {DOMAIN} {{
        kubeconfig KUBECONFIG
        pods insecure
        ttl 5
    }}
}}
"""


class ControlPlane:
    def __init__(self, directory: Path) -> None:
        self.machine = Machine("control plane", directory)
        self.directory = directory
        self.kubeconfig = directory / "kubeconfig"
        self.machine.run("ip", "link", "add", "br0", "type", "bridge")
        self.machine.run("ip", "addr", "add", f"{ADDRESS}/24", "dev", "br0")
        self.machine.run("ip", "link", "set", "br0", "up")
        self._write_keys()
        self._write_kubeconfig()

    def start(self, unreachable_seconds: int, node_grace_seconds: int) -> None:
        self.machine.start(
            "etcd",
            TOOLS / "etcd",
            f"--data-dir={self.directory}/etcd",
            f"--listen-client-urls={ETCD}",
            f"--advertise-client-urls={ETCD}",
            "--listen-peer-urls=http://127.0.0.1:2380",
            "--initial-advertise-peer-urls=http://127.0.0.1:2380",
            "--initial-cluster=default=http://127.0.0.1:2380",
            "--unsafe-no-fsync",
            "--log-level=error",
            probe=self.probe(f"{ETCD}/health"),
        )
        self.start_api_server(unreachable_seconds)
        self.machine.start(
            "controllers",
            TOOLS / "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig}",
            f"--service-account-private-key-file={self.directory}/sa.key",
            "--use-service-account-credentials",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            f"--secure-port={CONTROLLERS_PORT}",
            f"--root-ca-file={self.directory}/certs/apiserver.crt",
            f"--node-monitor-grace-period={node_grace_seconds}s",
            probe=self.probe(f"https://127.0.0.1:{CONTROLLERS_PORT}/healthz"),
        )
        self.machine.start(
            "scheduler",
            TOOLS / "kube-scheduler",
            f"--kubeconfig={self.kubeconfig}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            f"--secure-port={SCHEDULER_PORT}",
            probe=self.probe(f"https://127.0.0.1:{SCHEDULER_PORT}/healthz"),
        )

    def start_api_server(self, unreachable_seconds: int) -> None:
        """Starts the API server, also again after `machine.signal("apiserver")`, and waits until it is ready."""
        self.machine.start(
            "apiserver",
            TOOLS / "kube-apiserver",
            f"--etcd-servers={ETCD}",
            "--secure-port=6443",
            "--bind-address=0.0.0.0",
            f"--advertise-address={ADDRESS}",
            f"--cert-dir={self.directory}/certs",
            f"--service-account-key-file={self.directory}/sa.pub",
            f"--service-account-signing-key-file={self.directory}/sa.key",
            f"--service-account-issuer=https://kubernetes.default.svc.{DOMAIN}",
            f"--token-auth-file={self.directory}/tokens.csv",
            "--authorization-mode=Node,RBAC",
            f"--service-cluster-ip-range={SERVICES}",
            "--allow-privileged=true",
            # Without it, exec and logs look up the name of the node in DNS.
            "--kubelet-preferred-address-types=InternalIP",
            f"--default-unreachable-toleration-seconds={unreachable_seconds}",
            f"--default-not-ready-toleration-seconds={unreachable_seconds}",
            # Aggregated APIs, such as the one of KEDA.
            "--enable-aggregator-routing=true",
            f"--requestheader-client-ca-file={self.directory}/front-ca.crt",
            "--requestheader-allowed-names=front-proxy",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={self.directory}/front.crt",
            f"--proxy-client-key-file={self.directory}/front.key",
            probe=self.probe(f"https://{ADDRESS}:6443/livez"),
        )
        ready = self.kubectl_command("get", "--raw", "/readyz")
        until(lambda: succeeds(ready), "the API server is ready")

    def start_dns(self) -> None:
        corefile = self.directory / "Corefile"
        corefile.write_text(COREFILE.replace("KUBECONFIG", str(self.kubeconfig)))
        self.machine.start("dns", TOOLS / "coredns", "-conf", corefile)

    def start_fake_nodes(self) -> None:
        """Starts kwok, which plays the kubelets of all nodes: pods become ready and jobs complete, but nothing runs."""
        self.machine.start(
            "kwok",
            TOOLS / "kwok",
            f"--kubeconfig={self.kubeconfig}",
            f"--config={TOOLS}/kwok-stages.yaml",
            "--manage-all-nodes=true",
            "--node-lease-duration-seconds=40",
        )

    def kubectl_command(self, *arguments: object) -> list[str]:
        return self.machine.network_command(TOOLS / "kubectl", f"--kubeconfig={self.kubeconfig}", *arguments)

    def probe(self, url: str) -> list[str]:
        """A command that succeeds if a program of this machine answers at the URL that it is healthy."""
        server, path = url.rsplit("/", 1)
        options = [f"--server={server}", "--request-timeout=50s", "get", "--raw", f"/{path}"]
        return self.kubectl_command(*options)

    def _write_keys(self) -> None:
        """Writes the key of service accounts, and the CA and certificate of the proxy for aggregated APIs."""
        openssl = lambda *arguments: run(["openssl", *arguments], cwd=self.directory)  # noqa: E731
        openssl("genrsa", "-out", "sa.key", "2048")
        openssl("rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub")
        new = ["req", "-newkey", "rsa:2048", "-nodes"]
        openssl(*new, "-x509", "-days=30", "-subj=/CN=front-ca", "-keyout=front-ca.key", "-out=front-ca.crt")
        openssl(*new, "-subj=/CN=front-proxy", "-keyout=front.key", "-out=front.csr")
        ca = ["-CA=front-ca.crt", "-CAkey=front-ca.key", "-CAcreateserial"]
        openssl("x509", "-req", "-days=30", "-in=front.csr", *ca, "-out=front.crt")

    def _write_kubeconfig(self) -> None:
        token = secrets.token_hex(16)
        (self.directory / "tokens.csv").write_text(f"{token},admin,admin,system:masters\n")
        server = {"server": f"https://{ADDRESS}:6443", "insecure-skip-tls-verify": True}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "cluster", "cluster": server}],
            "users": [{"name": "admin", "user": {"token": token}}],
            "contexts": [{"name": "admin", "context": {"cluster": "cluster", "user": "admin"}}],
            "current-context": "admin",
        }
        self.kubeconfig.write_text(json.dumps(config))
