"""Writes small datasets with the libraries that define their layout, and the rows that these libraries read from them.

`make_layouts.py huggingface splits` needs PyPI's datasets. `make_layouts.py imagefolder` needs torchvision. `make_layouts.py hive` needs
pyarrow. The tests of feedline-sources read the files in `layouts/`.
"""

import json
import pathlib
import shutil
import sys
import tempfile

OUT = pathlib.Path(__file__).resolve().parent / "layouts"


def write_json(name, value):
    (OUT / name).write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def imagefolder():
    """Files that exercise the order and the extensions of torchvision. Each file contains its own name."""
    from torchvision.datasets import ImageFolder

    files = [
        "dog/b.jpg", "dog/a.JPEG", "dog/a/z.png", "dog/a-b/y.png", "dog/a/deep/x.webp", "dog/notes.txt", "dog/c.gif",
        "Cat/1.tif", "Cat/10.tiff", "Cat/2.bmp", "Äpfel/1.pgm", "Äpfel/2.ppm", "a b/x#1?.jpg", "top.jpg",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as root:
        for name in files:
            path = pathlib.Path(root, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)
        dataset = ImageFolder(root)
        samples = [[pathlib.Path(path).relative_to(root).as_posix(), label] for path, label in dataset.samples]
        write_json("imagefolder.json", {"files": files, "classes": dataset.classes, "samples": samples})


def shown(value):
    """A value in the notation of the tests: numbers in the shortest form, lists in brackets, and null."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    if isinstance(value, list):
        return "[" + ",".join(shown(item) for item in value) + "]"
    return str(value)


def flat(value):
    return [item for inner in value for item in flat(inner)] if isinstance(value, list) else [value]


def huggingface():
    import datasets
    from datasets import Array2D, Array3D, Audio, ClassLabel, Features, Image, LargeList, List, Translation, Value

    features = Features({
        "image": Image(decode=False), "audio": Audio(decode=False), "label": ClassLabel(names=["no", "yes"]),
        "text": Value("string"), "small": Value("int32"), "flag": Value("bool"), "tags": List(Value("string")),
        "three": List(Value("float32"), length=3), "big": LargeList(Value("int64")), "fixed": Array2D((2, 3), "float32"),
        "free": Array3D((None, 2, 2), "int16"), "inner": {"x": Value("int64"), "y": ClassLabel(names=["a", "b", "c"])},
        "pair": Translation(languages=["de", "en"]),
    })  # fmt: skip
    rows = [
        {
            "image": {"bytes": f"image {row}".encode(), "path": f"{row}.png"} if row != 1 else None,
            "audio": {"bytes": f"audio {row}".encode(), "path": None}, "label": [0, 1, -1, 1, 0][row],
            "text": f"text {row}" if row != 3 else None, "small": -row, "flag": row % 2 == 0,
            "tags": [f"tag {at}" for at in range(row)], "three": [row + 0.5, row, -row], "big": [row, 1 << 40],
            "fixed": [[row, 1, 2], [3, 4, 5.5]] if row != 2 else None, "free": [[[row, 1], [2, 3]]] * (row + 1),
            "inner": {"x": row, "y": row % 3}, "pair": {"de": f"ja {row}", "en": f"yes {row}"},
        }
        for row in range(5)
    ]  # fmt: skip
    table = arrow_table(features, rows)
    full = datasets.Dataset(table, info=datasets.DatasetInfo(features=features))
    # `save_to_disk` of datasets 5.2 cannot estimate the size of a Translation.
    plain = full.remove_columns("pair")
    for name in ("saved", "dict", "cache"):
        shutil.rmtree(OUT / name, ignore_errors=True)
    plain.save_to_disk(OUT / "saved", num_shards=2)
    few = plain.select_columns(["text", "label"])
    datasets.DatasetDict({"train": few, "test": few.select(range(3))}).save_to_disk(OUT / "dict")
    full.to_parquet(OUT / "features.parquet", batch_size=3)
    with tempfile.TemporaryDirectory() as folder:
        lines = pathlib.Path(folder, "lines.jsonl")
        lines.write_text("".join(json.dumps({"text": f"line {row}"}) + "\n" for row in range(4)))
        loaded = datasets.load_dataset("json", data_files={"train": str(lines), "test": str(lines)}, cache_dir=folder)
        found = pathlib.Path(loaded["train"].cache_files[0]["filename"]).parent
        (OUT / "cache").mkdir()
        for file in [*found.glob("*.arrow"), found / "dataset_info.json"]:
            shutil.copy(file, OUT / "cache" / file.name)
    read = {
        "saved": lines_of(datasets.load_from_disk(OUT / "saved")),
        "parquet": lines_of(datasets.Dataset.from_parquet(str(OUT / "features.parquet"), cache_dir=tempfile.mkdtemp())),
        "dict": {name: lines_of(split) for name, split in datasets.load_from_disk(OUT / "dict").items()},
        "cache": {name: lines_of(split) for name, split in loaded.items()},
    } | nested()
    write_json("huggingface.json", read)


def nested():
    """Arrays of four and five axes, media and class labels in lists, lists of dicts, and audio with paths."""
    import datasets
    from datasets import Array4D, Array5D, Audio, ClassLabel, Features, Image, List, Sequence, Value

    image, label = Image(decode=False), ClassLabel(names=["no", "yes"])
    features = Features({
        "four": Array4D((1, 2, 1, 2), "int16"), "five": Array5D((1, 1, 2, 1, 2), "float32"), "images": List(image),
        "labels": List(label), "pairs": List(label, length=2), "audio": Audio(decode=False), "deep": List(List(label)),
        "steps": List({"x": Value("int64"), "label": label, "frame": image, "tags": List(Value("string"))}),
        "sequence": Sequence({"a": Value("int32"), "b": Value("string"), "label": label}),
    })  # fmt: skip
    frame = lambda row: {"bytes": f"frame {row}".encode(), "path": f"{row}.png" if row % 2 else None}
    rows = [
        {
            "four": [[[[row, 1]], [[2, 3]]]] if row != 1 else None, "five": [[[[[row, 0.5]], [[-1, 2]]]]],
            "images": None if row == 2 else [frame(at) if at != 3 else None for at in range(row + 1)],
            "labels": [0, 1, -1][:row] if row != 3 else None, "pairs": [row % 2, 1], "deep": [[0, 1], [], [1]][:row],
            "audio": {"bytes": f"audio {row}".encode(), "path": f"sound {row}.wav"} if row != 0 else None,
            "steps": [{"x": at, "label": at % 2, "frame": frame(at), "tags": ["t"] * at} for at in range(row)] if row != 3 else None,
            "sequence": [{"a": at, "b": f"b{at}", "label": 1} for at in range(row)],
        }
        for row in range(5)
    ]  # fmt: skip
    for row in rows:
        # The library stores a `Sequence` of a dict as a dict of lists.
        row["sequence"] = {key: [item[key] for item in row["sequence"]] for key in ("a", "b", "label")}
    table = arrow_table(features, rows)
    dataset = datasets.Dataset(table, info=datasets.DatasetInfo(features=features))
    shutil.rmtree(OUT / "nested", ignore_errors=True)
    dataset.save_to_disk(OUT / "nested")
    dataset.to_parquet(OUT / "nested.parquet", batch_size=2)
    saved = datasets.load_from_disk(OUT / "nested")
    name_of = lambda value: None if value in (None, -1) else label.int2str(value)
    labels = [row and [name_of(index) for index in row] for row in saved["labels"]]
    steps = [row and [name_of(step["label"]) for step in row] for row in saved["steps"]]
    return {
        "nested": lines_of(saved),
        "nested_parquet": lines_of(datasets.Dataset.from_parquet(str(OUT / "nested.parquet"), cache_dir=tempfile.mkdtemp())),
        "names": {"columns": ["labels", "steps"], "rows": [f"{shown(a)}|{shown(b)}" for a, b in zip(labels, steps)]},
    }


def arrow_table(features, rows):
    import pyarrow as pa

    schema = features.arrow_schema
    arrays = [wrap(pa.array([row[field.name] for row in rows], storage(field.type)), field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def storage(kind):
    return kind.storage_type if hasattr(kind, "storage_type") else kind


def wrap(array, kind):
    import pyarrow as pa

    return pa.ExtensionArray.from_storage(kind, array) if hasattr(kind, "storage_type") else array


def lines_of(dataset):
    """The columns and rows of a dataset, as Feedline names and shows them."""
    import datasets

    names, rows = [], [[] for _ in range(len(dataset))]
    values = dataset.data.table.to_pylist()

    def each(column, of, depth):
        """Applies a function to the items of lists that are nested `depth` times."""
        return [value if value is None else each(value, of, depth - 1) if depth else of(value) for value in column]

    def add(name, feature, column, depth=0):
        if isinstance(feature, datasets.List) and isinstance(feature.feature, (dict, datasets.Image, datasets.List)):
            add(name, feature.feature, column, depth + 1)
        elif isinstance(feature, (datasets.Image, datasets.Audio)):
            add(name, None, each(column, lambda value: value["bytes"], depth))
            add(name + ".path", None, each(column, lambda value: value["path"], depth))
        elif isinstance(feature, (dict, datasets.Translation)):
            inner = feature if isinstance(feature, dict) else dict.fromkeys(feature.languages)
            for key, item in inner.items():
                add(f"{name}.{key}", item, each(column, lambda value: value[key], depth), depth)
        else:
            names.append(name)
            arrays = (datasets.Array2D, datasets.Array3D, datasets.Array4D, datasets.Array5D)
            is_tensor = isinstance(feature, arrays) and None not in feature.shape
            for row, value in zip(rows, column):
                row.append(shown(flat(value) if is_tensor and value is not None else value))

    for name, feature in dataset.features.items():
        add(name, feature, [value[name] for value in values])
    return {"columns": names, "rows": ["|".join(row) for row in rows]}


def splits():
    """The configurations, splits and files that `datasets` finds in small repositories."""
    import datasets

    def card(*configs):
        return "---\nlicense: mit\nconfigs:\n" + "".join(configs) + "---\n# Title\n"

    cases = {
        "shards": {"files": ["data/train-00000-of-00002.csv", "data/train-00001-of-00002.csv", "data/test-00000-of-00001.csv", "x.csv"]},
        "shards with a hash": {"files": ["data/train-00000-of-00001-9f1a.csv", "data/my_part-00000-of-00001.csv"]},
        "shards outside of data": {"files": ["train-00000-of-00001.csv", "test-00000-of-00001.csv"]},
        "one file": {"files": ["a.csv"]},
        "no split": {"files": ["b.csv", "a.csv", "sub/c.csv"]},
        "words in names": {"files": ["train.csv", "my-dev.csv", "x_eval_1.csv", "contest.csv"]},
        "several words": {"files": ["training.csv", "train_2.csv", "valid.csv", "testing.csv", "evaluation3.csv"]},
        "words in directories": {"files": ["train/a.csv", "train/b.csv", "val/c.csv", "test-1/d.csv", "e.csv"]},
        "nested directories": {"files": ["data/x/train/a.csv", "data/x/test/b.csv", "data/y/train/c.csv"]},
        "directories before names": {"files": ["dev/train.csv", "dev/test.csv"]},
        "ignored files": {"files": ["a.csv", "dataset_infos.json", "config.json", "__special__/b.csv", "README.txt"]},
        "hidden files": {"files": ["train/a.csv", ".hidden/train/b.csv", "train/.c.csv"]},
        "capitals": {"files": ["Train.csv", "TEST.csv"]},
        "list of splits": {
            "files": ["en/a.csv", "en/b.csv", "en-test.csv", "de/train/x.csv", "de/val.csv"],
            "readme": card("- config_name: en\n  data_files:\n  - split: train\n    path: en/*.csv\n  - split: test\n    path: en-test.csv\n",
                           "- config_name: de\n  data_dir: de\n"),
        },
        "default": {
            "files": ["a.csv", "b.csv"],
            "readme": card("- config_name: x\n  data_files: a.csv\n", "- config_name: y\n  data_files: b.csv\n  default: true\n"),
        },
        "name default": {
            "files": ["a.csv", "b.csv"],
            "readme": card("- config_name: x\n  data_files: a.csv\n", "- config_name: default\n  data_files: [b.csv]\n"),
        },
        "lists of patterns": {
            "files": ["2023/a.csv", "2024/b.csv", "2024/deep/c.csv", "d.csv"],
            "readme": card("- config_name: all\n  data_files:\n  - split: old\n    path: ['2023/*', 'd.csv']\n  - split: new\n    path: '2024/**'\n",
                           "- config_name: flat\n  data_files: ['*.csv', '2024/*']\n"),
        },
        "pattern of any depth": {
            "files": ["a/train/1.csv", "b/train/2.csv", "train.csv"],
            "readme": card("- config_name: one\n  data_files: '**/train/*.csv'\n", "- config_name: two\n  data_files: '**/*.csv'\n"),
        },
        "data_dir and data_files": {
            "files": ["en/train.csv", "en/test.csv", "de/train.csv"],
            # The library does not find the files if this configuration is the first one.
            "readme": card("- config_name: de\n  data_dir: ./de/\n", "- config_name: en\n  data_dir: en\n  data_files: train.csv\n"),
        },
        "shards of data_dir": {
            "files": ["en/data/train-00000-of-00001.csv", "en/data/dev-00000-of-00001.csv", "de/train-00000-of-00001.csv"],
            "readme": card("- config_name: en\n  data_dir: en\n", "- config_name: de\n  data_dir: de\n"),
        },
        "sets of characters": {
            "files": ["a1.csv", "a2.csv", "b1.csv"],
            "readme": card("- config_name: a\n  data_files: a[0-9].csv\n", "- config_name: b\n  data_files: '?1.csv'\n"),
        },
    }  # fmt: skip
    for name, case in cases.items():
        with tempfile.TemporaryDirectory() as root:
            case["readme"] = case.get("readme", "")
            for file in case["files"]:
                path = pathlib.Path(root, file)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("{}" if file.endswith("json") else "v\n1\n")
            pathlib.Path(root, "README.md").write_text(case["readme"])
            case["configs"] = {}
            for config in datasets.get_dataset_config_names(root):
                builder = datasets.load_dataset_builder(root, config, cache_dir=tempfile.mkdtemp())
                found = {
                    str(split): [pathlib.Path(file).relative_to(root).as_posix() for file in files]
                    for split, files in builder.config.data_files.items()
                }
                case["configs"][config] = found
                assert sorted(datasets.get_dataset_split_names(root, config)) == sorted(found), name
            if len(case["configs"]) > 1:
                try:
                    case["default"] = datasets.load_dataset_builder(root, cache_dir=tempfile.mkdtemp()).config.name
                except ValueError:
                    case["default"] = None
            else:
                case["default"] = next(iter(case["configs"]))
    write_json("splits.json", cases)


def hive():
    """The types and values that pyarrow derives from directories."""
    import pyarrow.dataset as ds

    trees = {
        "numbers": ["year=2024/month=01/a", "year=2023/month=12/b"],
        "text": ["year=2024/kind=x%20y%2Fz/a", "year=n/kind=__HIVE_DEFAULT_PARTITION__/b"],
        "null": ["year=__HIVE_DEFAULT_PARTITION__/a", "year=7/b", "year=-3/c"],
        "large": ["id=3000000000/a", "id=1/b"],
        "signs": ["id=+1/a", "id=1/b"],
        "zeros": ["id=007/a", "id=08/b"],
        "missing": ["a=1/x", "b=2/y"],
        "all null": ["k=__HIVE_DEFAULT_PARTITION__/a"],
        "empty": ["k=/a", "k=1/b"],
        "reals": ["k=1.5/a", "k=2/b"],
        "flags": ["k=true/a", "k=false/b"],
    }
    read = {}
    for tree, files in trees.items():
        with tempfile.TemporaryDirectory() as root:
            for name in files:
                path = pathlib.Path(root, name + ".csv")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("v\n1\n")
            try:
                dataset = ds.dataset(root, format="csv", partitioning="hive")
                schema = {field.name: str(field.type) for field in dataset.schema if field.name != "v"}
                values = {}
                for fragment in dataset.get_fragments():
                    row = fragment.to_table(schema=dataset.schema).to_pylist()[0]
                    values[pathlib.Path(fragment.path).relative_to(root).as_posix()[:-4]] = {k: row[k] for k in schema}
                read[tree] = {"files": files, "schema": schema, "values": values}
            except Exception as error:
                read[tree] = {"files": files, "error": str(error)}
    write_json("hive.json", read)


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    for part in sys.argv[1:]:
        {"imagefolder": imagefolder, "huggingface": huggingface, "splits": splits, "hive": hive}[part]()
