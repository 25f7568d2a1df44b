#!/usr/bin/env python3
"""Measures the CPU time of indexing and reading compressed JSON lines, as ratios to the necessary CPU time.

For each codec, prints a Markdown table with the following values:

- indexing: the CPU time of the codec's library (with its checksum) and of a search for line breaks, divided by the CPU time of
  `feedline index`, from which the time of `feedline index` on a tiny file is subtracted
- reading: the CPU time of a shuffled job with two workers on the plain files plus that of decompressing them once, divided by the
  CPU time of the same job on the compressed files
- index: the size of the stored index, divided by the size of the content
- the speed of the library and of the indexing pass, in content bytes per second of CPU time

Below the table, prints whether the digests of an epoch of all codecs are equal on one, two and four workers, and on two of which one is
killed. Also prints the size of the index of a `.tar.gz` of photographs, divided by the size of the archive's content, how many
bytes a resume at a random row of a `.jsonl.gz` with 1 GiB of content decompresses before its first row, and how fast one large file is
indexed on two cores, divided by the same on one core.

Rounds are interleaved, and the table contains medians. Exits with status 1 if the indexing of gzip is below 0.8, if reading is below
0.85, if an index exceeds 1.5 %, or 0.5 % for photographs, if digests differ, or if a resume decompresses more than 2 MiB. `make compressed` builds
Feedline in release mode and runs this script.
"""

import bz2
import gzip
import json
import lzma
import os
import pathlib
import resource
import statistics
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import zlib

import fleet_digests
import usage
from limits import Limits

ROOT = pathlib.Path(__file__).resolve().parent.parent
FEEDLINE = pathlib.Path(os.environ.get("FEEDLINE_BINARY", ROOT / "target/release/feedline"))
SHARED = pathlib.Path(os.environ.get("FEEDLINE_SHARED_DATA", ROOT / "../shared/data"))
TEXT = SHARED / "text"
IMAGES = SHARED / "images"
ROUNDS = int(os.environ.get("ROUNDS", "3"))
SHARDS = 4
WORKERS = 2
MIN_INDEXING = {"gzip": 0.8}
MIN_READING, MAX_INDEX, MAX_IMAGE_INDEX = 0.85, 0.015, 0.005
RESUME_BYTES = ROOT / "target/release/examples/resume_bytes"
RESUME_FILE_BYTES, RESUMED_ROWS, MAX_RESUME_BYTES = 1 << 30, 200, 2 << 20
SHARD_BYTES = int(os.environ.get("SHARD_MIB", "64")) << 20
PIECE = 1 << 16
# One frame of such a file is a long run.
DIGEST_SHARDS, DIGEST_SHARD_BYTES = 2, 9 << 20

PIPELINE = """
name: compressed
source: {{ url: "{data}/*", format: jsonl }}
seed: 7
shuffle: {{ window: 4096 }}
operators:
  - batch: {{ size: 128 }}
"""


class Gzip:
    """gzip files, decompressed with zlib-ng."""

    ending = ".gz"

    @staticmethod
    def compress(path):
        with path.with_name(path.name + ".gz").open("wb") as target:
            subprocess.run(["gzip", "-6", "-c", path], stdout=target, check=True)

    @staticmethod
    def decompressor():
        from zlib_ng import zlib_ng

        return zlib_ng.decompressobj(31)


class Zstd:
    """zstd files with frames of 4 MiB, decompressed with libzstd."""

    ending = ".zst"

    @staticmethod
    def compress(path):
        with path.open("rb") as source, path.with_name(path.name + ".zst").open("wb") as target:
            while part := source.read(4 << 20):
                target.write(subprocess.run(["zstd", "-q", "-3", "-c"], input=part, stdout=subprocess.PIPE, check=True).stdout)

    @staticmethod
    def decompressor():
        return Frames()


class Frames:
    """Decompresses concatenated zstd frames."""

    def __init__(self):
        self.frame = None

    def decompress(self, data):
        import zstandard

        parts = []
        while data:
            self.frame = self.frame or zstandard.ZstdDecompressor().decompressobj()
            parts.append(self.frame.decompress(data))
            data = self.frame.unused_data
            self.frame = None if self.frame.eof else self.frame
        return b"".join(parts)


class ZstdRun(Zstd):
    """zstd files with one frame."""

    @staticmethod
    def compress(path):
        with path.with_name(path.name + ".zst").open("wb") as target:
            subprocess.run(["zstd", "-q", "-3", "-c", path], stdout=target, check=True)


class Bzip2:
    """bzip2 files, decompressed with libbz2."""

    ending = ".bz2"

    @staticmethod
    def compress(path):
        with path.with_name(path.name + ".bz2").open("wb") as target:
            subprocess.run(["bzip2", "-c", path], stdout=target, check=True)

    @staticmethod
    def decompressor():
        return bz2.BZ2Decompressor()


class Xz:
    """xz files with blocks of 4 MiB, decompressed with liblzma."""

    ending = ".xz"

    @staticmethod
    def compress(path):
        with path.with_name(path.name + ".xz").open("wb") as target:
            subprocess.run(["xz", "-2", "-T0", "--block-size=4MiB", "-c", path], stdout=target, check=True)

    @staticmethod
    def decompressor():
        return lzma.LZMADecompressor()


class Bgzip:
    """gzip files with members of 64 KiB that state their size, as bgzip writes them."""

    ending = ".gz"

    @staticmethod
    def compress(path):
        with path.open("rb") as source, path.with_name(path.name + ".gz").open("wb") as target:
            while part := source.read(60_000):
                deflate = zlib.compressobj(6, zlib.DEFLATED, -15)
                data = deflate.compress(part) + deflate.flush()
                header = bytes([31, 139, 8, 4, 0, 0, 0, 0, 0, 255, 6, 0]) + b"BC" + struct.pack("<HH", 2, 18 + len(data) + 8 - 1)
                target.write(header + data + struct.pack("<II", zlib.crc32(part), len(part)))


# Files of which sections can be decoded at the same time.
DIVISIBLE = {"bgzip": Bgzip, "zstd, frames of 4 MiB": Zstd, "bzip2": Bzip2, "xz, blocks of 4 MiB": Xz}
CODECS = {"gzip": Gzip, "zstd": Zstd, "zstd, one frame": ZstdRun, "bzip2": Bzip2, "xz": Xz}
if wanted := os.environ.get("CODECS"):
    CODECS = {name: codec for name, codec in CODECS.items() if name in wanted.split("+")}


def sentences():
    """Yields lines of text without an end."""
    files = sorted(TEXT.glob("*")) if TEXT.is_dir() else []
    if not files:
        sys.exit(f"skipped: no text in {TEXT} (set FEEDLINE_SHARED_DATA)")
    lines = [line for file in files for line in file.read_text().splitlines()]
    at = 0
    while True:
        # Different strides make repetitions rare within the window of a compressor.
        at = (at + 7919) % len(lines)
        yield lines[at]


def lines():
    """Yields JSON lines of about 1 KiB without an end."""
    text = sentences()
    row = 0
    while True:
        parts = [next(text) for _ in range(6 + row * 7 % 17)]
        yield json.dumps({"id": row, "url": f"https://example.org/{row * 7919 % 100003}", "text": " ".join(parts)}) + "\n"
        row += 1


def write_lines(path, source, size):
    with path.open("w") as target:
        while target.tell() < size:
            target.write(next(source))


def write_data(folder, shards, shard_bytes):
    """Writes files of JSON lines, and compresses them with each codec."""
    (folder / "plain").mkdir(parents=True)
    source = lines()
    for shard in range(shards):
        path = folder / "plain" / f"{shard}.jsonl"
        write_lines(path, source, shard_bytes)
        for name, codec in CODECS.items():
            (folder / name).mkdir(exist_ok=True)
            codec.compress(path)
            path.with_name(path.name + codec.ending).rename(folder / name / (path.name + codec.ending))


def children_cpu():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def feedline(*arguments):
    """Runs a command. Returns its CPU time and its output."""
    before = children_cpu()
    done = subprocess.run([str(FEEDLINE), *map(str, arguments)], check=True, capture_output=True, text=True)
    return children_cpu() - before, done.stdout


def library_cpu(codec, files):
    """CPU times of decompressing files, and of searching line breaks in their content."""
    decompress = search = 0.0
    for file in files:
        data = file.read_bytes()
        decompressor = codec.decompressor()
        for at in range(0, len(data), PIECE):
            start = time.process_time()
            content = decompressor.decompress(data[at : at + PIECE])
            middle = time.process_time()
            content.count(b"\n")
            decompress += middle - start
            search += time.process_time() - middle
    return decompress, search


def run(folder, kind, index):
    pipeline = folder / f"{kind}.yaml"
    pipeline.write_text(PIPELINE.format(data=folder / kind))
    flags = ("--index-dir", index, "--auto-cache", "off")
    index_cpu, _ = feedline("index", pipeline, "--index-dir", index)
    run_cpu, _ = feedline("run", pipeline, *flags, "--no-digest", "--workers", WORKERS)
    return index_cpu, run_cpu


def differing_digests(folder):
    """The names of the runs whose digests differ."""
    write_data(folder / "data", DIGEST_SHARDS, DIGEST_SHARD_BYTES)
    pipelines = {}
    for name in ("plain", *CODECS):
        pipelines[name] = folder / f"{name}.yaml"
        pipelines[name].write_text(PIPELINE.format(data=folder / "data" / name))
        (folder / "runs" / name).mkdir(parents=True)
    return fleet_digests.find_differences(FEEDLINE, folder / "runs", pipelines)


def image_index(folder):
    """The size of the index of a `.tar.gz` of photographs, divided by that of the content."""
    (folder / "images").mkdir()
    archive = folder / "images" / "0.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=6) as target:
        for file in sorted(IMAGES.iterdir()):
            target.add(file, arcname=file.name)
    with gzip.open(archive) as source:
        content = sum(len(part) for part in iter(lambda: source.read(1 << 20), b""))
    pipeline = folder / "images.yaml"
    pipeline.write_text(f"name: images\nsource: {{ url: \"{archive}\", format: webdataset }}\noperators: [ batch: {{ size: 8 }} ]\n")
    index = folder / "index-images"
    feedline("index", pipeline, "--index-dir", index)
    return stored_bytes(index) / content


def resume_bytes(folder):
    """The numbers of bytes that resumes at random rows of a large gzip file decompress before their first row."""
    plain = folder / "large.jsonl"
    write_lines(plain, lines(), RESUME_FILE_BYTES)
    Gzip.compress(plain)
    plain.unlink()
    file = plain.with_name(plain.name + Gzip.ending)
    done = subprocess.run([str(RESUME_BYTES), str(file), str(RESUMED_ROWS)], check=True, capture_output=True, text=True)
    file.unlink()
    return json.loads(done.stdout)


def speedup(folder, name, codec):
    """The time of indexing one large file on one core, divided by that on two."""
    (folder / "one" / name).mkdir(parents=True)
    plain = folder / "one" / "0.jsonl"
    if not plain.exists():
        with plain.open("wb") as target:
            for shard in sorted((folder / "plain").iterdir()):
                target.write(shard.read_bytes())
    codec.compress(plain)
    plain.with_name(plain.name + codec.ending).rename(folder / "one" / name / ("0.jsonl" + codec.ending))
    pipeline = folder / f"one-{name}.yaml"
    pipeline.write_text(PIPELINE.format(data=folder / "one" / name))
    times = {cores: [] for cores in (1, 2)}
    for number in range(ROUNDS):
        for cores, measured in times.items():
            start = time.monotonic()
            feedline("index", pipeline, "--index-dir", folder / f"index-one-{name}-{cores}-{number}", "--cores", cores)
            measured.append(time.monotonic() - start)
    return statistics.median(times[1]) / statistics.median(times[2])


def stored_bytes(folder):
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def main():
    usage.check(__doc__)
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        write_data(folder, SHARDS, SHARD_BYTES)
        content = sum(file.stat().st_size for file in (folder / "plain").iterdir())
        (folder / "tiny").mkdir()
        (folder / "tiny" / "a.jsonl").write_text('{"id": 1, "url": "", "text": ""}\n')
        values = {name: [] for name in CODECS}
        for number in range(ROUNDS):
            def index(kind):
                return folder / f"index-{kind}-{number}"

            start_cpu, _ = run(folder, "tiny", index("tiny"))
            _, plain_run = run(folder, "plain", index("plain"))
            for name, codec in CODECS.items():
                decompress, search = library_cpu(codec, sorted((folder / name).iterdir()))
                index_cpu, run_cpu = run(folder, name, index(name))
                stored = stored_bytes(index(name)) / content
                values[name].append(((decompress + search) / (index_cpu - start_cpu), (plain_run + decompress) / run_cpu, stored,
                                     content / 1e6 / decompress, content / 1e6 / (index_cpu - start_cpu)))
        print("| codec | indexing | reading | index | library | indexing pass |")
        print("|---|---|---|---|---|---|")
        limits = Limits()
        for name, rounds in values.items():
            indexing, reading, stored, library, speed = (statistics.median(column) for column in zip(*rounds))
            marks = [
                limits.mark(indexing >= MIN_INDEXING.get(name, 0), f"{name}: indexing at {indexing:.2f}"),
                limits.mark(reading >= MIN_READING, f"{name}: reading at {reading:.2f}"),
                limits.mark(stored <= MAX_INDEX, f"{name}: an index of {stored:.2%}"),
            ]
            cells = [f"{indexing:.2f}{marks[0]}", f"{reading:.2f}{marks[1]}", f"{stored:.2%}{marks[2]}"]
            print(f"| {name} | {' | '.join(cells)} | {library:.0f} MB/s | {speed:.0f} MB/s |")
        differing = differing_digests(folder / "digests")
        mark = limits.mark(not differing, "digests differ")
        names = f"plain, {', '.join(CODECS)}, 1, 2 and 4 workers, a worker killed"
        print("\n| check | result |")
        print("|---|---|")
        print(f"| digest of an epoch: {names} | {'; '.join(differing) or 'equal'}{mark} |")
        if IMAGES.is_dir():
            images = image_index(folder)
            mark = limits.mark(images <= MAX_IMAGE_INDEX, f"photographs: an index of {images:.2%}")
            print(f"\nThe index of a .tar.gz of photographs has {images:.2%}{mark} of the size of its content.")
        resumed = resume_bytes(folder)
        mark = limits.mark(resumed["max"] <= MAX_RESUME_BYTES, f"a resume decompresses {resumed['max'] / 2**20:.2f} MiB")
        print(f"\nA resume at one of {RESUMED_ROWS} random rows of a .jsonl.gz with 1 GiB of content decompresses at most "
              f"{resumed['max'] / 2**20:.2f} MiB{mark} (median {resumed['median'] / 2**20:.2f} MiB).")
        print("\n| one file | indexing on one core / on two |")
        print("|---|---|")
        for name, codec in DIVISIBLE.items():
            print(f"| {name} | {speedup(folder, name, codec):.2f} |")
        limits.end()


if __name__ == "__main__":
    main()
