"""Runs one Python function for a Feedline worker, which starts this script in a separate process.

Standard input is a socket to the worker. Messages are JSON with a length prefix of four bytes (little endian). Rows are not
sent through the socket but through two regions of shared memory, whose descriptors come with the first message. The worker
writes input columns to the first region as plain buffers, and this process writes the results to the second.

Requires NumPy, and cloudpickle if the function is pickled.
"""

import base64
import ctypes
import faulthandler
import importlib
import importlib.metadata
import inspect
import json
import linecache
import mmap
import os
import pickle
import platform
import signal
import socket
import sys
import time
import traceback

try:
    import numpy as np
except ImportError:
    # The answer to the first message reports that NumPy is missing.
    np = None

ALIGNMENT = 64
# Maximum number of traceback frames and of characters in an error message.
MAX_FRAMES = 8
MAX_REASON_CHARACTERS = 2000
PR_SET_PDEATHSIG = 1


class LoadError(Exception):
    """The function cannot be loaded. The message is one sentence."""


class InvalidResult(Exception):
    """The result of the function does not match the pipeline's declaration. The message is one sentence."""


def receive(sock):
    """Returns the next message, or None when the worker has closed the socket."""
    head = sock.recv(4, socket.MSG_WAITALL)
    if len(head) < 4:
        return None
    return _body(sock, head)


def receive_first(sock):
    """Returns the first message and the descriptors that come with it."""
    head, descriptors, _, _ = socket.recv_fds(sock, 4, 2)
    if len(head) < 4:
        return None, []
    return _body(sock, head), descriptors


def _body(sock, head):
    left = int.from_bytes(head, "little")
    parts = []
    while left > 0:
        part = sock.recv(min(left, 1 << 20))
        if not part:
            return None
        parts.append(part)
        left -= len(part)
    return json.loads(b"".join(parts))


def send(sock, message):
    """Sends a message."""
    body = json.dumps(message).encode()
    sock.sendall(len(body).to_bytes(4, "little") + body)


# Loading.


def matches(wanted, found):
    """Returns whether a version matches a requirement: 2.4 also matches 2.4.6."""
    wanted, found = wanted.split("."), found.split(".")
    return found[: len(wanted)] == wanted


def check_environment(environment):
    """Raises LoadError if the environment does not match the declaration."""
    if np is None:
        raise LoadError(f"NumPy is not installed for {sys.executable}; install it, or start the worker with another --python")
    wanted, found = environment.get("python"), platform.python_version()
    if wanted is not None and not matches(wanted, found):
        raise LoadError(
            f"the function requires Python {wanted}, but this worker runs {found}; start workers with --python of that version"
        )
    for package, wanted in environment.get("packages", {}).items():
        try:
            found = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            raise LoadError(
                f"the function requires {package} {wanted}, which is not installed for {sys.executable}; install it on the workers"
            ) from None
        if not matches(wanted, found):
            raise LoadError(f"the function requires {package} {wanted}, but this worker has {found}; install that version on the workers")


def load_function(message):
    """Loads the function of the message."""
    sys.path[:] = [os.path.abspath(folder) for folder in message["path"]] + [folder for folder in sys.path if folder]
    if message.get("code") is not None:
        try:
            import cloudpickle  # noqa: F401: unpickling imports cloudpickle
        except ImportError:
            raise LoadError(f"the pickled function requires cloudpickle, which is not installed for {sys.executable}; install it") from None
        function = pickle.loads(base64.b64decode(message["code"]))
    else:
        module, _, name = message["function"].partition(":")
        try:
            function = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is not None and (module == error.name or module.startswith(error.name + ".")):
                raise LoadError(
                    f"module `{error.name}` was not found on this worker; install it, or add its directory with `path: [...]`"
                ) from None
            raise
        for part in name.split("."):
            if not hasattr(function, part):
                raise LoadError(f"module `{module}` has no `{name}`; correct `function`")
            function = getattr(function, part)
    if not callable(function):
        raise LoadError("the object is not callable; set `function` to a function")
    return function


def seed_keywords(function):
    """Returns which of the keywords `seeds` and `rngs` a seeded function has."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ["seeds"]
    names = {parameter.name for parameter in parameters}
    taken = [name for name in ("seeds", "rngs") if name in names]
    if not taken and any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        taken = ["seeds", "rngs"]
    if not taken:
        raise LoadError("the function is `seeded`, but has neither the parameter `seeds` nor `rngs`; add one of them")
    return taken


class Generators:
    """One NumPy random generator per row, created on access."""

    def __init__(self, seeds):
        self._seeds = seeds

    def __len__(self):
        return len(self._seeds)

    def __getitem__(self, row):
        return np.random.Generator(np.random.Philox(key=int(self._seeds[row])))


# Inputs.


def read_column(region, column, start, stop):
    """Returns the rows from start to stop of a column in the input region. Numbers are views; text and bytes are copies."""
    kind = column["kind"]
    if kind == "number":
        shape = tuple(column["shape"])
        dtype = np.dtype(column["dtype"])
        size = int(np.prod(shape, dtype=np.int64))
        array = np.frombuffer(region, dtype, (stop - start) * size, column["at"] + start * size * dtype.itemsize)
        return array.reshape((stop - start, *shape))
    offsets = np.frombuffer(region, np.int64, stop - start + 1, column["offsets"] + 8 * start).tolist()
    valid = None
    if column.get("valid") is not None:
        valid = np.frombuffer(region, np.uint8, stop - start, column["valid"] + start)
    rows = np.empty(stop - start, object)
    for row in range(stop - start):
        if valid is None or valid[row]:
            rows[row] = _read_row(region, column, start + row, offsets[row], offsets[row + 1])
    return rows


def _read_row(region, column, row, start, stop):
    kind = column["kind"]
    if kind == "list":
        return read_column(region, column["items"], start, stop)
    at = column["data"]
    if kind == "image":
        height, width = np.frombuffer(region, np.uint32, 2, column["sizes"] + 8 * row).tolist()
        return np.frombuffer(region, np.uint8, stop - start, at + start).reshape((height, width, 3))
    data = region[at + start : at + stop]
    return data.decode() if kind == "text" else data


# Results.


class Results:
    """Writes the results of the function to the output region."""

    def __init__(self, descriptor):
        self._descriptor = descriptor
        self._region = None
        self._end = 0

    def clear(self):
        """Discards the results of the previous call, which the worker has read."""
        self._end = 0

    def _allocate(self, size):
        at = -(-self._end // ALIGNMENT) * ALIGNMENT
        self._end = at + size
        if self._region is None or len(self._region) < self._end:
            room = max(1 << 16, 1 << (self._end - 1).bit_length())
            os.ftruncate(self._descriptor, room)
            self._region = mmap.mmap(self._descriptor, room)
        return at

    def _write_array(self, array):
        at = self._allocate(array.nbytes)
        if array.size:
            np.frombuffer(self._region, array.dtype, array.size, at)[:] = array.reshape(-1)
        return at

    def write(self, name, column, values, rows):
        """Writes a column and returns its location. Raises InvalidResult if it does not match its declaration."""
        if column.get("list"):
            return self._write_lists(name, column, values, rows)
        if column["dtype"] in ("text", "bytes"):
            return self._write_texts(name, column["dtype"], _sequence(name, values, rows))
        array = to_array(name, values, np.dtype(column["dtype"]), (rows, *column["shape"]))
        return {"at": self._write_array(array), "bytes": array.nbytes}

    def _write_texts(self, name, dtype, values):
        encoded = [_encoded(name, dtype, value) for value in values]
        offsets = np.zeros(len(encoded) + 1, np.int64)
        np.cumsum([len(value) for value in encoded], out=offsets[1:])
        at = self._allocate(int(offsets[-1]))
        if offsets[-1]:
            self._region[at : at + int(offsets[-1])] = b"".join(encoded)
        return {"offsets": self._write_array(offsets), "data": at, "bytes": int(offsets[-1])}

    def _write_lists(self, name, column, values, rows):
        values = list(_sequence(name, values, rows))
        offsets = np.zeros(rows + 1, np.int64)
        if column["dtype"] in ("text", "bytes"):
            items = [list(_sequence(name, value, None)) for value in values]
            np.cumsum([len(item) for item in items], out=offsets[1:])
            written = self._write_texts(name, column["dtype"], [element for item in items for element in item])
        else:
            dtype = np.dtype(column["dtype"])
            arrays = [to_array(name, value, dtype, (-1,)) for value in values]
            np.cumsum([len(array) for array in arrays], out=offsets[1:])
            joined = np.concatenate([np.empty(0, dtype), *arrays])
            written = {"at": self._write_array(joined), "bytes": joined.nbytes}
        return {"offsets": self._write_array(offsets), "items": written}


def _sequence(name, values, rows):
    if isinstance(values, (str, bytes)) or not hasattr(values, "__len__"):
        raise InvalidResult(f"`{name}` is {describe(values)}, not an array or a list")
    if rows is not None and len(values) != rows:
        raise InvalidResult(f"`{name}` has {len(values)} rows, but the function received {rows}; return one row for each")
    return values


def _encoded(name, dtype, value):
    if dtype == "text" and isinstance(value, str):
        return value.encode()
    if dtype == "bytes" and isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if dtype == "bytes" and isinstance(value, np.ndarray) and value.dtype == np.uint8:
        return value.tobytes()
    raise InvalidResult(f"`{name}` contains {describe(value)}, but {dtype} is declared")


def to_array(name, values, dtype, shape):
    """Converts values to an array of the declared type and shape. A size of -1 matches any size."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise InvalidResult(f"`{name}` is a masked array with missing values; fill them")
    if isinstance(values, np.ndarray) or hasattr(values, "__array__"):
        array = np.asarray(values)
        is_objects = array.dtype == object
        if is_objects:
            array = _from_rows(name, list(array), dtype)
        elif array.dtype != dtype and not np.can_cast(array.dtype, dtype, "safe"):
            raise InvalidResult(
                f"`{name}` is {array.dtype}, but {dtype} is declared; return it `.astype(numpy.{dtype})`, or declare {array.dtype}"
            )
    else:
        array = _from_rows(name, values, dtype)
    wanted = tuple(array.shape[axis] if extent == -1 and axis < array.ndim else extent for axis, extent in enumerate(shape))
    if array.ndim > 0 and array.ndim == len(shape) and shape[0] != -1 and array.shape[0] != shape[0]:
        raise InvalidResult(f"`{name}` has {array.shape[0]} rows, but the function received {shape[0]}; return one row for each")
    if array.shape != wanted:
        if shape == (-1,):
            raise InvalidResult(f"`{name}` has shape {list(array.shape)} in a row, but a list of numbers is declared")
        found = describe_rows(array.shape) if array.ndim else "a single number for all rows"
        raise InvalidResult(f"`{name}` has {found}, but {describe_rows(shape)} is declared")
    return np.ascontiguousarray(array, dtype)


def describe_rows(shape):
    """Describes the shape of each row of an array."""
    return f"{list(shape[1:])} per row" if len(shape) > 1 else "a single number per row"


# Values that NumPy would convert to numbers, by the kind of their dtype.
_NO_NUMBERS = {"U": "text", "S": "bytes", "M": "dates", "m": "durations", "c": "complex numbers", "V": "structures"}


def _from_rows(name, values, dtype):
    """Converts a list of numbers, which may be NumPy scalars, arrays or lists, to an array."""
    rows = values if isinstance(values, (list, tuple)) else []
    if any(isinstance(row, np.ma.MaskedArray) and np.ma.is_masked(row) for row in rows):
        raise InvalidResult(f"`{name}` contains a masked array with missing values; fill them")
    try:
        with np.errstate(all="ignore"):
            found = np.asarray(values)
            if kind := _NO_NUMBERS.get(found.dtype.kind):
                raise InvalidResult(f"`{name}` contains {kind}, but {dtype} is declared; convert the values")
            if found.dtype.kind == "O" and any(value is None for value in found.flat):
                raise InvalidResult(f"`{name}` contains None, but {dtype} is declared; return a number for each")
            if found.dtype.kind == "f" and found.size > 0 and dtype.kind in "iub":
                raise InvalidResult(f"`{name}` contains fractions, but {dtype} is declared; round the numbers")
            # NumPy converts numbers of its own types without a check.
            array = found.astype(dtype, copy=False) if found.dtype.kind in "biuf" else np.asarray(values, dtype)
            lost = _lost_values(found, array)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidResult(f"cannot convert `{name}` to an array of {dtype}: {error}") from None
    if lost is not None:
        raise InvalidResult(f"`{name}` contains {lost}, which {dtype} does not represent; declare another dtype")
    return array


def _lost_values(found, array):
    """Returns the text of a value that is another one in the array; None if there is none. Fractions may be rounded, but not to infinity."""
    if found.dtype == array.dtype or found.size == 0:
        return None
    if found.dtype.kind == "f":
        is_lost = np.isinf(array) & ~np.isinf(found)
    elif found.dtype.kind == "O":
        is_exact = array.dtype.kind != "f"
        is_lost = np.array([is_exact and value != other for value, other in zip(found.flat, array.flat)])
    else:
        # A number that is too large may become the same number again in the opposite conversion.
        is_lost = (array.astype(found.dtype) != found) | ((array < 0) != (found < 0))
    return str(found[is_lost.reshape(found.shape)].flat[0]) if is_lost.any() else None


def describe(value):
    """Describes the type of a value."""
    if value is None:
        return "None"
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} with shape {list(value.shape)}"
    return f"a {type(value).__name__}"


# Errors.


def reason_of(error):
    """Returns one sentence with the exception and the lines of the user's code that it passed, the innermost first."""
    if isinstance(error, (LoadError, InvalidResult)):
        return str(error)
    text = "".join(traceback.format_exception_only(error)).strip().replace("\n", " ")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file_name__]
    places = []
    for frame in reversed(frames[-MAX_FRAMES:]):
        linecache.checkcache(frame.filename)
        line = f": {frame.line}" if frame.line else ""
        places.append(f"{os.path.basename(frame.filename)} line {frame.lineno} in {frame.name}{line}")
    where = f" (at {', from '.join(places)})" if places else ""
    return (text + where)[:MAX_REASON_CHARACTERS]


__file_name__ = load_function.__code__.co_filename


# The loop.


class Runner:
    """A loaded function with its shared memory regions."""

    def __init__(self, message, descriptors):
        check_environment(message["environment"])
        self.input, output = descriptors
        self.results = Results(output)
        self.columns = message["columns"]
        self.outputs = message["outputs"]
        self.is_filter = message["filter"]
        self.function = load_function(message)
        self.seed_keywords = seed_keywords(self.function) if message["seeded"] else []

    def call(self, message):
        """Calls the function with a range of rows and returns the locations of its results."""
        start, stop = message["from"], message["to"]
        # Map the region copy-on-write for each call, so that changes by the function do not affect other calls.
        region = mmap.mmap(self.input, message["bytes"], access=mmap.ACCESS_COPY)
        batch = {
            name: read_column(region, column, start, stop) for name, column in zip(self.columns, message["columns"])
        }
        keywords = {}
        if self.seed_keywords:
            seeds = read_column(region, message["seeds"], start, stop)
            offered = {"seeds": seeds, "rngs": Generators(seeds)}
            keywords = {name: offered[name] for name in self.seed_keywords}
        result = self.function(batch, **keywords)
        self.results.clear()
        if self.is_filter:
            return [self._write_filter(result, stop - start)]
        if not isinstance(result, dict):
            raise InvalidResult(f"the function returned {describe(result)}, not a dict of arrays")
        return [self._write_output(output, result, stop - start) for output in self.outputs]

    def _write_filter(self, result, rows):
        array = np.asarray(result)
        if array.dtype != np.bool_ or array.shape != (rows,):
            raise InvalidResult(
                f"the function returned {describe(array)}, not {rows} booleans, one per input row"
            )
        return self.results.write("the result", {"dtype": "bool", "shape": []}, array, rows)

    def _write_output(self, output, result, rows):
        name = output["name"]
        if name not in result:
            returned = ", ".join(f"`{key}`" for key in result) or "nothing"
            raise InvalidResult(f"the function did not return `{name}`, which `outputs` declares; it returned {returned}")
        return self.results.write(name, output, result[name], rows)


def die_with_worker(parent):
    """Asks the operating system to kill this process when the worker exits."""
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        return
    if parent and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def open_socket():
    """Returns the socket to the worker, which was standard input, and redirects the function's output to standard error."""
    sock = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return sock


def main():
    """Loads the function and calls it until the worker closes the socket."""
    sock = open_socket()
    faulthandler.enable()
    message, descriptors = receive_first(sock)
    if message is None:
        return
    die_with_worker(message["parent"])
    try:
        runner = Runner(message, descriptors)
    except BaseException as error:  # an import may raise any exception, including SystemExit
        send(sock, {"load_error": reason_of(error)})
        return
    send(sock, {"loaded": platform.python_version()})
    while (message := receive(sock)) is not None:
        began = time.process_time_ns()
        try:
            answer = {"columns": runner.call(message)}
        except (Exception, SystemExit) as error:
            if not isinstance(error, InvalidResult):
                traceback.print_exc()
            answer = {"failed": reason_of(error)}
        answer["cpu_ns"] = time.process_time_ns() - began
        sys.stdout.flush()
        send(sock, answer)


if __name__ == "__main__":
    main()
