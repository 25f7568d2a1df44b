"""Writes the files in `npz` with NumPy, and `expected.json` with the rows that NumPy reads.

    pip install numpy==2.1.3
    python make_npz.py

`zip64.npz` has the 64-bit records that archives beyond 4 GiB need. Arrays with several axes are expected as flat lists.
"""

import json
import zipfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent / "npz"
ROWS = 7
KINDS = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"]


def arrays():
    values = {}
    for kind in KINDS:
        for order in "<>" if kind[-1] not in "?1" else "|":
            numbers = (np.arange(ROWS * 6) * 5 % 11).reshape(ROWS, 2, 3)
            numbers = numbers % 2 if kind == "?" else numbers
            array = (numbers * (0.25 if kind[0] == "f" else 1)).astype(np.dtype(kind).newbyteorder(order))
            name = kind.replace("?", "bool") + {"<": "", ">": "_big", "|": ""}[order]
            values[name] = array[:, 0, 0]
            values[name + "_c"] = array
            values[name + "_f"] = np.asfortranarray(array)
    return values


def rows(file):
    loaded = np.load(file)
    return [{name: loaded[name][row].ravel().tolist() if loaded[name].ndim > 1 else loaded[name][row].item() for name in loaded.files} for row in range(ROWS)]


HERE.mkdir(exist_ok=True)
values = arrays()
some = {name: values[name] for name in ("i8", "f4_c", "u2_big_c", "bool")}
np.savez_compressed(HERE / "every.npz", **values)
np.savez(HERE / "stored.npz", **some)
np.savez_compressed(HERE / "deflated.npz", **some)
zipfile.ZIP64_LIMIT, zipfile.ZIP_FILECOUNT_LIMIT = 10, 1
np.savez(HERE / "zip64.npz", **some)
zipfile.ZIP64_LIMIT, zipfile.ZIP_FILECOUNT_LIMIT = (1 << 31) - 1, 65535
archive = bytearray((HERE / "zip64.npz").read_bytes())
archive[-14:-2] = b"\xff" * 12
(HERE / "zip64.npz").write_bytes(archive)
np.savez_compressed(
    HERE / "mixed.npz", good=np.arange(3), object=np.array([1, {}, None]), structured=np.zeros(3, [("a", "i4")]),
    short=np.arange(2), scalar=np.float32(1), text=np.array(["a", "b", "c"]),
)
np.save(HERE / "fortran.npy", values["i4_big_f"])
expected = {name: rows(HERE / f"{name}.npz") for name in ("every", "stored")}
assert rows(HERE / "deflated.npz") == rows(HERE / "zip64.npz") == expected["stored"]
expected["fortran"] = [{"data": row.ravel().tolist()} for row in np.load(HERE / "fortran.npy")]
(HERE / "expected.json").write_text(json.dumps(expected))
