"""A cgroup for each node, in versions 1 and 2 of cgroups.

Without it, each kubelet would end the pods of the others as orphans.
"""

import errno
from pathlib import Path

from harness.commands import until

ROOT = Path("/sys/fs/cgroup")
CONTROLLERS = ["cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd"]
# Controllers that kubelet requires in version 2.
REQUIRED = ["cpuset", "cpu", "memory", "pids"]


def is_unified() -> bool:
    return (ROOT / "cgroup.controllers").exists()


def create(name: str) -> None:
    if is_unified():
        _delegate()
        (ROOT / name).mkdir(exist_ok=True)
        return
    for controller in CONTROLLERS:
        if (ROOT / controller).is_dir():
            (ROOT / controller / name).mkdir(exist_ok=True)
    for file in ["cpuset.cpus", "cpuset.mems"]:  # A new cpuset is empty, and admits no process.
        if (ROOT / "cpuset" / file).exists():
            (ROOT / "cpuset" / name / file).write_text((ROOT / "cpuset" / file).read_text())


def remove(prefix: str) -> None:
    """Removes the cgroups whose names begin with `prefix`. The processes of a killed run may still be ending."""
    # In version 1, runc also creates cgroups in the hierarchy `unified` if there is one.
    for parent in [ROOT] if is_unified() else [path for path in ROOT.iterdir() if path.is_dir()]:
        for group in parent.glob(f"{prefix}*"):
            until(lambda group=group: _is_removed(group), f"the processes of {group} have ended")


def _is_removed(group: Path) -> bool:
    try:
        for path in [*sorted(group.rglob("*/"), reverse=True), group]:
            path.rmdir()
    except FileNotFoundError:
        return not group.exists()
    except OSError as error:
        if error.errno not in (errno.EBUSY, errno.ENOTEMPTY):
            raise
        return False
    return True


def _delegate() -> None:
    """Enables the controllers for children of the root. A container's root must not contain processes then."""
    wanted = " ".join(f"+{controller}" for controller in REQUIRED)
    try:
        (ROOT / "cgroup.subtree_control").write_text(wanted)
    except OSError:
        (ROOT / "init").mkdir(exist_ok=True)
        for pid in (ROOT / "cgroup.procs").read_text().split():
            try:
                (ROOT / "init/cgroup.procs").write_text(pid)
            except ProcessLookupError:
                pass  # It has ended.
        (ROOT / "cgroup.subtree_control").write_text(wanted)
