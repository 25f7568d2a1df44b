"""Writes small Parquet and Arrow files with the libraries that users have, and what these libraries read from them.

Needs pyarrow, pandas, fastparquet, duckdb, polars, datasets and pyspark, which needs Java. `FILES` names the library and the
options of each file. `columnar/expected.json` has the versions, and for each file the rows in the types of Feedline: a
timestamp, time or duration is a number of microseconds, a date is a number of days, a decimal is a float64, and structs are
columns with dotted names.
"""

import base64
import datetime
import decimal
import json
import math
import os
import pathlib
import shutil
import sys
import tempfile
import uuid

import duckdb
import fastparquet
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet as pq
import pyarrow.parquet.encryption

here = pathlib.Path(__file__).resolve().parent / "columnar"
UTC = datetime.timezone.utc
EPOCH = datetime.datetime(1970, 1, 1)
D = decimal.Decimal


# The rows in the types of Feedline.


def micros(delta):
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def plain(value):
    """A value of a library as JSON. Bytes are an object with their hexadecimal digits."""
    match value:
        case None | pd.NaT:
            return None
        case bool() | int() | str():
            return value
        case float():
            return {"float": repr(value)} if not math.isfinite(value) else value
        case np.generic():
            return plain(value.item())
        case decimal.Decimal():
            return float(value)
        case bytes() | bytearray():
            return {"hex": bytes(value).hex()}
        case uuid.UUID():
            return {"hex": value.bytes.hex()}
        case datetime.datetime():
            return micros((value.astimezone(UTC) if value.tzinfo else value).replace(tzinfo=None) - EPOCH)
        case datetime.date():
            return (value - EPOCH.date()).days
        case datetime.time():
            return micros(datetime.timedelta(hours=value.hour, minutes=value.minute, seconds=value.second, microseconds=value.microsecond))
        case datetime.timedelta():
            return micros(value)
        case list() | tuple() | np.ndarray():
            return [plain(item) for item in value]
    raise TypeError(f"{type(value)}: {value!r}")


def fields(name, values):
    """The columns of one column: the fields of structs, also in lists and maps, are columns with dotted names."""
    sample = next((value for value in values if value is not None), None)
    if isinstance(sample, dict):
        for key in sample:
            yield from fields(f"{name}.{key}", [None if value is None else value[key] for value in values])
    elif isinstance(sample, (list, tuple)) and any(is_struct(item) for value in values if value for item in value):
        flat = [item for value in values if value for item in value]
        for inner, items in fields(name, [dict(zip(("key", "value"), item)) if isinstance(item, tuple) else item for item in flat]):
            items = iter(items)
            yield inner, [None if value is None else [next(items) for _ in value] for value in values]
    else:
        yield name, [plain(value) for value in values]


def is_struct(item):
    return isinstance(item, dict) or isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str)


def columns(rows):
    """Converts rows, which are dicts, to columns."""
    named = {}
    for name in rows[0]:
        named.update(fields(name, [row[name] for row in rows]))
    return named


# The data.

TIMES = [
    datetime.datetime(2024, 2, 29, 12, 30, 15, 123456),
    datetime.datetime(1969, 12, 31, 23, 59, 59, 999999),
    None,
    datetime.datetime(2262, 1, 1),
    datetime.datetime(1970, 1, 1),
]
DAYS = [None if time is None else time.date() for time in TIMES]
CLOCK = [None if time is None else time.time() for time in TIMES]
CHAT = [
    [{"role": "user", "content": "hi"}, {"role": "bot", "content": None}],
    [],
    None,
    [{"role": "user", "content": "é"}],
    [{"role": None, "content": ""}] * 3,
]
SCALARS = {
    "id": pa.array([1, 2, 3, 4, 5], pa.int64()),
    "flag": pa.array([True, None, False, True, False]),
    "i8": pa.array([-128, 127, None, 0, 1], pa.int8()),
    "i16": pa.array([-32768, 32767, None, 0, 1], pa.int16()),
    "i32": pa.array([-(1 << 31), (1 << 31) - 1, None, 0, 1], pa.int32()),
    "u8": pa.array([0, 255, None, 7, 1], pa.uint8()),
    "u16": pa.array([0, 65535, None, 7, 1], pa.uint16()),
    "u32": pa.array([0, (1 << 32) - 1, None, 7, 1], pa.uint32()),
    "u64": pa.array([0, (1 << 64) - 1, None, 7, 1], pa.uint64()),
    "f16": pa.array(np.array([0.5, -2.0, 65504.0, 0.0, 1.0], np.float16)),
    "f32": pa.array([0.5, float("inf"), None, -0.25, 1.0], pa.float32()),
    "f64": pa.array([0.1, float("-inf"), None, 1e300, 1.0], pa.float64()),
    "text": pa.array(["a", "", None, "é√", "a longer text than a view holds"], pa.string()),
    "blob": pa.array([b"\x00\xff", b"", None, b"abc", b"more bytes than a view holds"], pa.binary()),
}
OTHERS = {
    "day": pa.array(DAYS, pa.date32()),
    "ms": pa.array([0, 1_700_000_000_123, None, -1, 5], pa.timestamp("ms")),
    "us": pa.array(TIMES, pa.timestamp("us", "UTC")),
    "ns": pa.array([1_000, -1_000, None, 1_700_000_000_123_456_000, 0], pa.timestamp("ns", "Europe/Berlin")),
    "clock": pa.array(CLOCK, pa.time64("us")),
    "clock_ms": pa.array([0, 86_399_999, None, 1, 2], pa.time32("ms")),
    "span": pa.array([0, -5, None, 10**12, 1], pa.duration("us")),
    "dec": pa.array([D("12345.67"), D("-0.01"), None, D("0.00"), D("99999.99")], pa.decimal128(7, 2)),
    "dec_big": pa.array([D("1e30"), D("-1e-5"), None, D(0), D(1)], pa.decimal128(38, 5)),
    "fixed": pa.array([b"0123456789abcdef", b"x" * 16, None, b"\x00" * 16, b"y" * 16], pa.binary(16)),
}
NESTED = {
    "list": pa.array([[1, 2], [], None, [3], [None]], pa.list_(pa.int32())),
    "large_list": pa.array([["a", None], [], None, ["b"], [""]], pa.large_list(pa.large_string())),
    "deep": pa.array([[[0.5], []], [], None, [None], [[1.5, 2.5]]], pa.list_(pa.list_(pa.float32()))),
    "fixed_list": pa.array([[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]], pa.list_(pa.int16(), 2)),
    "times": pa.array([[TIMES[0]], [], None, [None, TIMES[1]], [TIMES[4]]], pa.list_(pa.timestamp("us"))),
    "point": pa.array(
        [{"x": 1, "at": {"day": DAYS[0]}}, {"x": None, "at": {"day": DAYS[1]}}, None, {"x": 4, "at": None}, {"x": 5, "at": {"day": None}}],
        pa.struct([("x", pa.int64()), ("at", pa.struct([("day", pa.date32())]))]),
    ),
    "chat": pa.array(CHAT, pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
    "map": pa.array([[("a", 1), ("b", None)], [], None, [("c", 3)], [("d", 4)]], pa.map_(pa.string(), pa.int64())),
    "word": pa.array(["x", "y", None, "x", "y"], pa.string()).dictionary_encode(),
    "nothing": pa.nulls(5),
}
ENCODABLE = pa.table({name: SCALARS[name] for name in ("id", "flag", "i32", "f32", "f64", "text", "blob")} | {"fixed": OTHERS["fixed"], "f16": SCALARS["f16"]})


# One function per library. Each returns the rows that the library reads.


def pyarrow_parquet(path, table, **options):
    pq.write_table(table, path, write_statistics=False, **options)
    return columns(pq.read_table(path).to_pylist())


def pyarrow_ipc(path, table, compression=None, batches=1, **options):
    options = pa.ipc.IpcWriteOptions(compression=compression, **options)
    step = -(-len(table) // batches)
    with pa.ipc.new_file(path, table.schema, options=options) as writer:
        for start in range(0, len(table), step):
            writer.write_table(table.slice(start, step))
            if batches > 1:
                writer.write_batch(table.combine_chunks().to_batches()[0].slice(0, 0))
    with pa.ipc.open_file(path) as reader:
        return columns(reader.read_all().to_pylist())


def empty_row_groups(path):
    """Row groups without rows before, between and after row groups with one row."""
    table = pa.table({"id": SCALARS["id"], "list": NESTED["list"]})
    with pq.ParquetWriter(path, table.schema) as writer:
        for start, count in ((0, 0), (0, 1), (1, 0), (1, 4), (5, 0)):
            writer.write_table(table.slice(start, count))
    return columns(pq.read_table(path).to_pylist())


def pandas_parquet(path, engine, **options):
    frame = pd.DataFrame(
        {
            "id": np.arange(5),
            "text": ["a", "", None, "é", "z"],
            "time": pd.to_datetime(TIMES),
            "zoned": pd.to_datetime(TIMES).tz_localize("Europe/Berlin"),
            "span": pd.to_timedelta([0, 1, None, 3, -4], unit="s"),
            "category": pd.Categorical(["u", "v", "u", None, "v"]),
            "number": pd.array([1, None, 3, 4, 5], dtype="Int32"),
            "truth": pd.array([True, None, False, True, False], dtype="boolean"),
        }
    )
    frame.to_parquet(path, engine=engine, index=False, **options)
    read = pd.read_parquet(path, engine=engine)
    rows = [{name: None if pd.isna(row[name]) else row[name] for name in read.columns} for _, row in read.iterrows()]
    for row in rows:
        row["number"] = None if row["number"] is None else int(row["number"])
        row["truth"] = None if row["truth"] is None else bool(row["truth"])
        for name in ("time", "zoned"):
            row[name] = None if row[name] is None else row[name].to_pydatetime()
        row["span"] = None if row["span"] is None else row["span"].to_pytimedelta()
    return columns(rows)


def fastparquet_file(path, compression, times="int64", **options):
    frame = pd.DataFrame({"id": np.arange(5), "x": [0.5, 1.5, -2.0, 1e10, 0.0], "text": list("abcd") + ["é"], "time": pd.to_datetime([TIMES[4], datetime.datetime(1969, 12, 31, 23, 59, 59), TIMES[3], TIMES[4], datetime.datetime(2024, 2, 29)]).as_unit("ns")})
    fastparquet.write(str(path), frame, compression=compression, times=times, row_group_offsets=[0, 3], **options)
    read = fastparquet.ParquetFile(str(path)).to_pandas()
    return columns([row | {"time": row["time"].to_pydatetime()} for row in read.to_dict("records")])


DUCKDB = """
    SELECT i::BIGINT AS id, i % 2 = 0 AS flag, i::UTINYINT AS u8, (i - 2)::TINYINT AS i8, i::UINTEGER AS u32, i * 0.5::FLOAT AS f32,
        CASE WHEN i = 2 THEN NULL ELSE 'text ' || i END AS text, ('blob' || i)::BLOB AS blob,
        DATE '2024-02-29' + i::INTEGER AS day, TIME '12:30:15.123456' AS clock,
        TIMESTAMP '2024-02-29 12:30:15.123456' + INTERVAL (i) DAY AS us, (TIMESTAMP '2024-02-29 12:30:15' + INTERVAL (i) DAY)::TIMESTAMP_S AS s,
        TIMESTAMP_NS '2024-02-29 12:30:15.123456' AS ns, (TIMESTAMP '1969-12-31 23:59:59.999' + INTERVAL (i) DAY)::TIMESTAMP_MS AS ms,
        TIMESTAMPTZ '2024-02-29 12:30:15+00' AS zoned, (i * 1.25)::DECIMAL(9, 2) AS dec, (i * 1.25)::DECIMAL(30, 10) AS dec_big,
        (['red', 'green'])[1 + i % 2]::ENUM('red', 'green') AS color, '00112233-4455-6677-8899-aabbccddeeff'::UUID AS uuid,
        [i, NULL, i + 1]::INTEGER[] AS list, {'x': i, 'y': {'z': 'v' || i}} AS point, [{'role': 'user', 'content': 'c' || i}] AS chat,
        CASE WHEN i = 1 THEN NULL ELSE MAP {'k' || i: i::INTEGER} END AS map
    FROM range(5) AS t(i)
"""


def duckdb_parquet(path, names, options):
    connection = duckdb.connect()
    connection.sql("SET TimeZone = 'UTC'")
    connection.sql(f"COPY (SELECT {names} FROM ({DUCKDB})) TO '{path}' (FORMAT parquet, {options})")
    result = connection.sql(f"SELECT * FROM '{path}'")
    rows = [dict(zip(result.columns, row)) for row in result.fetchall()]
    for row in rows:
        if row.get("map") is not None:
            row["map"] = list(row["map"].items())
    return columns(rows)


POLARS = pl.DataFrame(
    {
        "id": range(5),
        "text": ["a", "", None, "é", "a longer text than a view holds"],
        "blob": [b"\x00", b"", None, b"abc", b"more bytes than a view holds"],
        "u8": pl.Series([0, 255, None, 1, 2], dtype=pl.UInt8),
        "f32": pl.Series([0.5, None, 1.5, 2.5, -1.0], dtype=pl.Float32),
        "day": DAYS,
        "us": TIMES,
        "ms": pl.Series(TIMES[:2] + [None] + TIMES[:2], dtype=pl.Datetime("ms")),
        "ns": pl.Series(TIMES[:2] + [None] + TIMES[:2], dtype=pl.Datetime("ns", "UTC")),
        "clock": CLOCK,
        "span": pl.Series([datetime.timedelta(seconds=5), None, datetime.timedelta(microseconds=-1), datetime.timedelta(), datetime.timedelta(days=1)]),
        "dec": pl.Series([D("1.25"), D("-2.50"), None, D("0.00"), D("3.75")], dtype=pl.Decimal(20, 2)),
        "category": pl.Series(["u", "v", None, "u", "v"], dtype=pl.Categorical),
        "color": pl.Series(["red", None, "green", "red", "red"], dtype=pl.Enum(["red", "green"])),
        "list": pl.Series([[1, 2], [], None, [3], [None]], dtype=pl.List(pl.Int32)),
        "array": pl.Series([[1.0, 2.0]] * 5, dtype=pl.Array(pl.Float32, 2)),
        "point": pl.Series([{"x": 1, "y": "a"}, {"x": None, "y": "b"}, None, {"x": 4, "y": None}, {"x": 5, "y": "e"}], dtype=pl.Struct({"x": pl.Int64, "y": pl.String})),
        "chat": pl.Series(CHAT, dtype=pl.List(pl.Struct({"role": pl.String, "content": pl.String}))),
        "nothing": pl.Series([None] * 5, dtype=pl.Null),
    }
)


def polars_parquet(path, frame=POLARS, **options):
    frame.write_parquet(path, **options)
    return columns(pl.read_parquet(path).to_dicts())


def polars_ipc(path, **options):
    frame = POLARS.select("text", "blob", "dec", "category", "color", "chat", "nothing") if options["compression"] == "lz4" else POLARS.select("id", "text", "category")
    frame.write_ipc(path, **options)
    return columns(pl.read_ipc(path).to_dicts())


def datasets_parquet(path):
    from datasets import ClassLabel, Dataset, Features, LargeList, List, Value

    features = Features(
        {
            "text": Value("large_string"),
            "label": ClassLabel(names=["no", "yes"]),
            "when": Value("timestamp[s]"),
            "messages": List({"role": Value("string"), "content": Value("string")}),
            "answers": {"start": List(Value("int32")), "text": List(Value("string"))},
            "scores": List(Value("float32"), length=2),
            "tokens": LargeList(Value("int64")),
        }
    )
    rows = {
        "text": ["a", "b", None],
        "label": [0, 1, None],
        "when": [TIMES[4], datetime.datetime(2024, 2, 29), None],
        "messages": [[{"role": "user", "content": "hi"}], [], None],
        "answers": [{"start": [1, 2], "text": ["x", "y"]}, {"start": [], "text": []}, {"start": [3], "text": [None]}],
        "scores": [[0.5, 1.5], [2.5, 3.5], [4.5, 5.5]],
        "tokens": [[1, 2, 3], [], [4]],
    }
    Dataset.from_dict(rows, features=features).to_parquet(str(path))
    return columns(Dataset.from_parquet(str(path), cache_dir=tempfile.mkdtemp()).to_list())


SPARK = """
    SELECT id, id % 2 = 0 AS flag, CAST(id - 2 AS TINYINT) AS i8,
        IF(id = 2, NULL, concat('text ', id)) AS text, CAST(concat('blob', id) AS BINARY) AS blob,
        CAST(id * 1.25 AS DECIMAL(9, 2)) AS dec, CAST(id * 1.25 AS DECIMAL(38, 10)) AS dec_big,
        date_add(DATE '2024-02-29', CAST(id AS INT)) AS day, TIMESTAMP '2024-02-29 12:30:15.123456' + make_dt_interval(CAST(id AS INT)) AS time,
        TIMESTAMP '9999-12-31 23:59:59' AS far, TIMESTAMP_NTZ '1969-12-31 23:59:59.999' AS local,
        array(CAST(id AS INT), NULL) AS list, named_struct('x', id, 'y', named_struct('z', concat('v', id))) AS point,
        array(named_struct('role', 'user', 'content', concat('c', id))) AS chat, map(concat('k', id), id) AS map
    FROM range(0, 5, 1, 1)
"""
_spark = []


def spark_parquet(path, codec, times="TIMESTAMP_MICROS", version="v1", legacy="false"):
    if not _spark:
        from pyspark.sql import SparkSession

        _spark.append(SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config("spark.sql.session.timeZone", "UTC").getOrCreate())
        os.environ["TZ"] = "UTC"
    spark = _spark[0]
    spark.conf.set("spark.sql.parquet.compression.codec", codec)
    spark.conf.set("spark.sql.parquet.outputTimestampType", times)
    spark.conf.set("spark.sql.parquet.writeLegacyFormat", legacy)
    with tempfile.TemporaryDirectory() as directory:
        frame = spark.sql(SPARK)
        frame.write.option("parquet.writer.version", version).mode("overwrite").parquet(directory)
        (part,) = pathlib.Path(directory).glob("*.parquet")
        shutil.copy(part, path)
        rows = [row.asDict(recursive=True) for row in spark.read.parquet(directory).collect()]
    for row in rows:
        row["map"], row["blob"] = list(row["map"].items()), bytes(row["blob"])
    return columns(rows)


class PlainKeys(pq.encryption.KmsClient):
    """Keys that are wrapped by adding them to the key's name."""

    def wrap_key(self, key_bytes, master_key_identifier):
        return master_key_identifier.encode() + b":" + base64.b64encode(key_bytes)

    def unwrap_key(self, wrapped_key, master_key_identifier):
        return base64.b64decode(bytes(wrapped_key).split(b":", 1)[1])


def encrypted(path, plaintext_footer):
    config = pq.encryption.EncryptionConfiguration(footer_key="footer", column_keys={"column": ["id"]}, plaintext_footer=plaintext_footer)
    factory = pq.encryption.CryptoFactory(lambda _: PlainKeys())
    properties = factory.file_encryption_properties(pq.encryption.KmsConnectionConfig(), config)
    table = pa.table({"id": SCALARS["id"]})
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)


def arrow_types():
    """Types that exist only in Arrow."""
    words = pa.array(["x", "y", None, "x", "y"])
    return pa.table(
        {
            "text_view": SCALARS["text"].cast(pa.string_view()),
            "blob_view": SCALARS["blob"].cast(pa.binary_view()),
            "large_text": SCALARS["text"].cast(pa.large_string()),
            "large_blob": SCALARS["blob"].cast(pa.large_binary()),
            "list_view": pa.array([[1, 2], [], None, [3], [None]], pa.list_view(pa.int32())),
            "large_list_view": pa.array([["a"], [], None, [None], ["b", "c"]], pa.large_list_view(pa.string())),
            "word8": words.cast(pa.dictionary(pa.int8(), pa.large_string())),
            "words": pa.ListArray.from_arrays(pa.array([0, 2, 2, 3, 4, 5]), words.dictionary_encode()),
            "day_word": pa.array(DAYS, pa.date32()).dictionary_encode(),
            "runs": pa.RunEndEncodedArray.from_arrays(pa.array([3, 5], pa.int32()), pa.array(["p", "q"])),
            "day64": pa.array(DAYS, pa.date64()),
            "s": pa.array([0, -1, None, 2, 3], pa.timestamp("s")),
            "clock_s": pa.array([0, 1, None, 2, 3], pa.time32("s")),
            "clock_ns": pa.array([0, 1_000, None, 2_000, 3_000], pa.time64("ns")),
            "span_s": pa.array([0, 1, None, -2, 3], pa.duration("s")),
            "span_ns": pa.array([0, 1_000, None, -2_000, 3_000], pa.duration("ns")),
            "dec32": pa.array([D("1.25"), D("-2.50"), None, D("0.00"), D("3.75")], pa.decimal32(5, 2)),
            "dec64": pa.array([D("1.25"), D("-2.50"), None, D("0.00"), D("3.75")], pa.decimal64(12, 2)),
            "dec256": pa.array([D("1.25"), D("-2.50"), None, D("0.00"), D("3.75")], pa.decimal256(60, 2)),
        }
    )


def files():
    """The files: name, what wrote it, and the function that writes and reads it."""
    pyarrow = {
        "none_v1.0": (pa.table(OTHERS | {"u32": SCALARS["u32"]}), dict(compression="none", version="1.0")),
        "snappy_page_v2": (pa.table(NESTED | {name: SCALARS[name] for name in ("i8", "u16", "u64")}), dict(compression="snappy", data_page_version="2.0")),
        "gzip": (ENCODABLE, dict(compression="gzip", write_page_index=True)),
        "brotli_page_v2": (ENCODABLE, dict(compression="brotli", data_page_version="2.0", use_dictionary=False)),
        "zstd": (ENCODABLE.select(["id", "f32", "text"]), dict(compression="zstd", row_group_size=2)),
        "lz4": (ENCODABLE.select(["id", "f32", "text"]), dict(compression="lz4", data_page_size=1, write_batch_size=1)),
        "checksums": (ENCODABLE.select(["id", "f32", "text"]), dict(compression="none", write_page_checksum=True)),
        "checksums_page_v2": (ENCODABLE.select(["id", "f32", "text"]), dict(compression="snappy", write_page_checksum=True, data_page_version="2.0")),
        "int96": (pa.table({"us": OTHERS["us"], "times": NESTED["times"], "i": SCALARS["id"]}), dict(use_deprecated_int96_timestamps=True)),
    }
    encodings = {
        "delta": dict(id="DELTA_BINARY_PACKED", i32="DELTA_BINARY_PACKED", text="DELTA_BYTE_ARRAY", blob="DELTA_LENGTH_BYTE_ARRAY", flag="RLE", fixed="DELTA_BYTE_ARRAY"),
        "split": dict(id="BYTE_STREAM_SPLIT", i32="BYTE_STREAM_SPLIT", f32="BYTE_STREAM_SPLIT", f64="BYTE_STREAM_SPLIT", fixed="BYTE_STREAM_SPLIT", f16="BYTE_STREAM_SPLIT"),
    }
    for name, encoding in encodings.items():
        pyarrow[name] = (ENCODABLE, dict(use_dictionary=False, column_encoding=encoding, data_page_version="2.0", compression="zstd"))
    for name, (table, options) in pyarrow.items():
        yield f"pyarrow_{name}.parquet", f"pyarrow {options}", lambda path, t=table, o=options: pyarrow_parquet(path, t, **o)
    yield "pyarrow_empty_groups.parquet", "pyarrow, row groups without rows", empty_row_groups
    yield "pyarrow_plain.arrow", "pyarrow, two record batches", lambda path: pyarrow_ipc(path, pa.table({"id": SCALARS["id"], "word": NESTED["word"], "nothing": NESTED["nothing"]}), batches=2, unify_dictionaries=True)
    yield "pyarrow_lz4.arrow", "pyarrow compression=lz4", lambda path: pyarrow_ipc(path, pa.table(SCALARS | OTHERS), "lz4")
    yield "pyarrow_zstd.arrow", "pyarrow compression=zstd", lambda path: pyarrow_ipc(path, pa.table(NESTED), "zstd")
    yield "pyarrow_types.arrow", "pyarrow compression=zstd", lambda path: pyarrow_ipc(path, arrow_types(), "zstd")
    for engine, options in (("pyarrow", {}), ("fastparquet", {})):
        yield f"pandas_{engine}.parquet", f"pandas {engine}", lambda path, e=engine, o=options: pandas_parquet(path, e, **o)
    for compression in ("SNAPPY", "GZIP", "LZ4"):
        times = "int96" if compression == "GZIP" else "int64"
        yield f"fastparquet_{compression.lower()}.parquet", f"fastparquet {compression} times={times}", lambda path, c=compression, t=times: fastparquet_file(path, c, t)
    for name, names, options in (("v1_gzip", "*", "COMPRESSION gzip, PARQUET_VERSION v1"), ("v2_brotli", "id, u32, f32, text, blob, us, dec", "COMPRESSION brotli, PARQUET_VERSION v2")):
        yield f"duckdb_{name}.parquet", f"duckdb {options}", lambda path, n=names, o=options: duckdb_parquet(path, n, o)
    yield "polars_zstd.parquet", "polars zstd", lambda path: polars_parquet(path, statistics=False)
    for compression in ("uncompressed", "lz4"):
        yield f"polars_{compression}.arrow", f"polars {compression}", lambda path, c=compression: polars_ipc(path, compression=c, compat_level=pl.CompatLevel.newest())
    yield "datasets.parquet", "datasets to_parquet", datasets_parquet
    for name, options in (
        ("snappy_int96_legacy", dict(codec="snappy", times="INT96", legacy="true")),
        ("lz4_v2", dict(codec="lz4", times="TIMESTAMP_MILLIS", version="v2")),
    ):
        yield f"spark_{name}.parquet", f"spark {options}", lambda path, o=options: spark_parquet(path, **o)


def main():
    os.environ["TZ"] = "UTC"
    here.mkdir(exist_ok=True)
    wanted = sys.argv[1:]
    target = here / "expected.json"
    expected = json.loads(target.read_text()) if wanted and target.exists() else {}
    for name, options, write in files():
        if wanted and not any(name.startswith(start) for start in wanted):
            continue
        print(name, file=sys.stderr)
        path = here / name
        path.unlink(missing_ok=True)
        read = write(path)
        same = [other for other, file in expected.items() if other != name and file.get("columns") == read]
        expected[name] = {"writer": options, **({"same_as": same[0]} if same else {"columns": read})}
    if not wanted:
        encrypted(here / "encrypted_footer.parquet", plaintext_footer=False)
        encrypted(here / "encrypted_columns.parquet", plaintext_footer=True)
    expected["versions"] = {module.__name__: module.__version__ for module in (pa, pd, fastparquet, duckdb, pl)}
    if _spark:
        expected["versions"]["pyspark"] = _spark[0].version
    used = {file["same_as"] for file in expected.values() if "same_as" in file}
    assert all("columns" in expected[name] for name in used), "write all files"
    lines = [f"{json.dumps(name)}: {json.dumps(expected[name], ensure_ascii=False)}" for name in sorted(expected)]
    target.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
