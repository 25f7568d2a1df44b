"""Copies to a GPU: receive buffers, their lifetime, and copied columns. A fake driver replaces that of NVIDIA, so that these tests run on any
machine."""

from __future__ import annotations

import contextlib
import os
import subprocess
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import feedline
import numpy as np
import pytest
from conftest import run_python
from feedline._convert import _CudaCopies

_DRIVER = r"""
#include <pthread.h>
#include <stdlib.h>
#include <stddef.h>

#define MOST 4096
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct { char *from; size_t bytes; } given[MOST];
static int count, retained, all, wrong;
static __thread int depth;

int cuInit(unsigned flags) { return flags != 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal == 0 ? 0 : 101; }
int cuDevicePrimaryCtxRetain(void **context, int device) { __sync_add_and_fetch(&retained, 1); *context = &retained; return 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { __sync_sub_and_fetch(&retained, 1); return 0; }
int cuCtxPushCurrent_v2(void *context) { depth++; return context == &retained ? 0 : 201; }
int cuCtxPopCurrent_v2(void **context) { depth--; *context = &retained; return 0; }
int cuGetErrorString(int error, const char **text) { *text = "that was wrong"; return 0; }

int cuMemHostAlloc(void **memory, size_t bytes, unsigned flags) {
    pthread_mutex_lock(&lock);
    if (depth != 1 || flags != 1 || count == MOST) wrong++;
    *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    given[count].from = *memory;
    given[count++].bytes = bytes;
    all++;
    pthread_mutex_unlock(&lock);
    return 0;
}

int cuMemFreeHost(void *memory) {
    int at = 0;
    pthread_mutex_lock(&lock);
    while (at < count && given[at].from != memory) at++;
    if (depth != 1 || at == count) wrong++; else given[at] = given[--count];
    free(memory);
    pthread_mutex_unlock(&lock);
    return 0;
}

/* For the test. */
int test_is_pinned(char *from, size_t bytes) {
    int found = 0;
    pthread_mutex_lock(&lock);
    for (int at = 0; at < count; at++)
        found |= given[at].from <= from && from + bytes <= given[at].from + given[at].bytes;
    pthread_mutex_unlock(&lock);
    return found;
}
int test_count(void) { return count; }
int test_all(void) { return all; }
int test_retained(void) { return retained; }
int test_wrong(void) { return wrong + depth; }
"""

_LOOP = """
import ctypes, gc
import feedline

driver = ctypes.CDLL("libcuda.so.1")
driver.test_is_pinned.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
job = feedline.open(PIPELINE, epochs=3, **OPTIONS).numpy(gpu=0)
rows = 0
for batch in job.batches():
    for column in batch.values():
        assert driver.test_is_pinned(column.ctypes.data, column.nbytes), "the batch is not in pinned memory"
    rows += len(batch["id"])
    kept = batch["kind"]
job.close()
del job, batch, column
gc.collect()
assert driver.test_count() == 1, f"{driver.test_count()} buffers are left, and one is in use"
assert kept.tolist() is not None
del kept
gc.collect()
assert driver.test_count() == 0 and driver.test_retained() == 0 and driver.test_wrong() == 0
assert driver.test_all() < rows / 100, f"{driver.test_all()} buffers were pinned instead of reused"
print(rows)
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a library with the name of NVIDIA's driver."""
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.c").write_text(_DRIVER)
    command = ["cc", "-shared", "-fPIC", "-pthread", "-o", folder / "libcuda.so.1", folder / "driver.c"]
    subprocess.run(command, check=True)
    return folder


@pytest.mark.parametrize("where", ["embedded", "shared memory", "network"])
def test_batches_are_received_into_pinned_memory(
    where: str,
    numbers: feedline.Pipeline,
    local: dict[str, Any],
    clusters: Callable[[int], str],
    driver: Path,
    tmp_path: Path,
) -> None:
    pipeline = tmp_path / "numbers.yaml"
    pipeline.write_text(numbers.batch(100).to_yaml())
    options = {name: str(value) if isinstance(value, Path) else value for name, value in local.items()}
    if where != "embedded":
        options = {"coordinator": clusters(1), "transport": "memory" if where == "shared memory" else "tcp"}
    code = _LOOP.replace("OPTIONS", repr(options)).replace("PIPELINE", repr(str(pipeline)))
    path = f"{driver}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    done = run_python(code, LD_LIBRARY_PATH=path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 3 * 997


def test_batches_arrive_without_a_driver(numbers: feedline.Pipeline, local: dict[str, Any]) -> None:
    for wrong in ("cuda", -1, 0.5):
        with pytest.raises(feedline.WrongUse, match="gpu is .*; expected "):
            numbers.batch(100).open(epochs=1, **local).numpy(gpu=wrong)  # type: ignore[arg-type]
    # No machine has this device.
    with numbers.batch(100).open(epochs=1, **local).numpy(gpu=4096) as job:
        assert sum(batch.size for batch in job) == 997


class _Event:
    """The event of a copy that the test completes."""

    def __init__(self, log: list[_Event]) -> None:
        self.is_over = False
        log.append(self)

    def record(self, stream: Any) -> None:
        del stream

    def query(self) -> bool:
        return self.is_over

    def synchronize(self) -> None:
        self.is_over = True


class _Gpu:
    """The part of PyTorch that `_CudaCopies` uses, on the CPU."""

    def __init__(self, torch: Any) -> None:
        self.events: list[_Event] = []
        self.pinned = 0
        self._torch = torch
        stream = SimpleNamespace(wait_event=lambda event: None)
        self.cuda = SimpleNamespace(
            Stream=lambda device: stream,
            stream=lambda stream: contextlib.nullcontext(),
            current_stream=lambda device: stream,
            Event=lambda: _Event(self.events),
        )
        self.from_numpy = torch.from_numpy
        self.uint8 = torch.uint8

    def empty(self, size: int, dtype: Any, pin_memory: bool) -> Any:
        assert pin_memory
        self.pinned += 1
        return self._torch.empty(size, dtype=dtype)


class _Memory:
    """Memory whose release a test can observe."""

    def __init__(self, values: list[int]) -> None:
        self.values = np.array(values)
        self.__array_interface__ = self.values.__array_interface__


def test_receive_buffers_live_until_the_copy_completes(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    gpu = _Gpu(torch)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: True)
    copies = _CudaCopies(gpu, torch.device("cpu"))
    kept = []
    for batch in range(3):
        memory = _Memory([batch])
        kept.append(weakref.ref(memory))
        columns, _ = copies.start({"x": np.asarray(memory), "t": np.array(["a"], dtype=object)})
        assert columns["t"] == ["a"]
        # On the CPU, the tensor is a view of the memory.
        del memory, columns
    assert gpu.pinned == 0, "pinned memory needs no staging buffer"
    gpu.events[0].is_over = True
    copies.start({"x": np.zeros(1)})
    assert [memory() is None for memory in kept] == [True, False, False]
    gpu.events[2].is_over = True
    copies.start({"x": np.zeros(1)})
    assert [memory() is None for memory in kept] == [True, False, False], "copies complete in order"
    copies.close()
    assert all(memory() is None for memory in kept) and all(event.is_over for event in gpu.events)


def test_unpinned_batches_are_copied_through_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    gpu = _Gpu(torch)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: False)
    copies = _CudaCopies(gpu, torch.device("cpu"))
    batches = [copies.start({"x": np.full(4, batch), "y": np.full((2, 2), batch)})[0] for batch in range(3)]
    assert gpu.pinned == 6 and [batch["x"].tolist() for batch in batches] == [[0] * 4, [1] * 4, [2] * 4]
    gpu.events[0].is_over = gpu.events[1].is_over = True
    for batch in range(3, 5):
        copies.start({"x": np.full(4, batch), "y": np.full((2, 2), batch)})
    assert gpu.pinned == 6, "buffers of completed copies are reused"
    copies.start({"x": np.full(4, 5)})
    assert gpu.pinned == 7, "buffers of running copies are not reused"
    assert batches[2]["x"].tolist() == [2] * 4


def test_tensors_on_a_gpu_equal_arrays(numbers: feedline.Pipeline, local: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    pipeline = numbers.batch(100)
    with pipeline.open(epochs=3, **local) as job:
        expected = [batch["id"].tolist() for batch in job.batches()]
    with pipeline.open(epochs=3, device="cuda", **local) as job:
        received = []
        for batch in job.batches():
            assert batch["id"].is_cuda
            received.append(batch["id"].clone())
        assert [batch.tolist() for batch in received] == expected
        assert job.stats()["copy_seconds"] > 0
