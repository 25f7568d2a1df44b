"""The dataset of the tests, on a volume that has the same files on each node, as a shared file system would."""

import os
import shutil
import subprocess

from harness import Cluster
from nodes import images

ROWS = 4000
SHARDS = 8
DIRECTORY = "shared"  # below /var/lib/volumes of each node
MOUNT = "/data"


def write(cluster: Cluster) -> None:
    """Writes the rows once, and links the files to each node.

    Workers compare the times of files, as a shared file system has them.
    """
    binary, rows = cluster.state / "feedline", cluster.state / "rows"
    binary.write_bytes(images.binary())
    binary.chmod(0o755)
    command = [binary, "make-data", "table", rows, "--rows", ROWS, "--format", "jsonl", "--shards", SHARDS]
    subprocess.run([str(part) for part in command], check=True, capture_output=True)
    for node in cluster.nodes.values():
        shutil.copytree(rows, node.machine.directory / "lib/volumes" / DIRECTORY, copy_function=os.link)


def volume(cluster: Cluster, namespace: str) -> list[dict]:
    """Returns a volume that all nodes have, and the claim `data` for it in a namespace."""
    nodes = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(cluster.nodes)}
    name = f"data-{namespace}"
    common = {"accessModes": ["ReadOnlyMany"], "storageClassName": "shared"}
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {
                **common,
                "capacity": {"storage": "1Gi"},
                "claimRef": {"namespace": namespace, "name": "data"},
                "local": {"path": f"/var/lib/volumes/{DIRECTORY}"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [nodes]}]}},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data", "namespace": namespace},
            "spec": {**common, "volumeName": name, "resources": {"requests": {"storage": "1Gi"}}},
        },
    ]


def pipeline(wait_ms: int = 0, batch: int = 20) -> dict:
    """A pipeline in which a worker computes one row at a time, so that the number of workers limits its rate."""
    wait = [{"wait": {"ms": wait_ms, "parallelism": 1}}] if wait_ms else []
    return {
        "name": "rows",
        "source": {"url": f"{MOUNT}/*.jsonl", "format": "jsonl"},
        "seed": 7,
        "shuffle": {"window": 1000},
        "operators": [*wait, {"select": {"columns": ["id", "label"]}}, {"batch": {"size": batch}}],
    }
