"""A real Kubernetes cluster on this machine, without Docker.

It needs Linux, root and the programs of `make cluster-tools`.
"""

from harness.cluster import Cluster
from harness.commands import LIMIT_S, CommandFailed, until
from harness.programs import missing_requirement

__all__ = ["LIMIT_S", "Cluster", "CommandFailed", "missing_requirement", "until"]
