"""Rows for both Feedline and tf.data, created once under target/tuning: repeated photographs as TFRecord, and sentences as CSV."""

import random
import shutil

import environments
import paths
import records
import shapes
from paths import HERE, Failed, output

FOLDER = paths.ROOT / "target/tuning"
TOKENIZER = FOLDER / "tokenizer.json"
SHARDS = 8
# Numbers of rows after photographs and sentence pairs are repeated.
PHOTOGRAPHS, SENTENCES = 3200, 290_000
# Seed of the generated boxes. COCO has a mean of 7.3 boxes per image, at most 93, and 1 % of images without boxes.
SEED, WITHOUT, MEAN_BOXES, MOST_BOXES, CLASSES = 11, 0.01, 7.3, 93, 90


def ready(kind, binary):
    """Creates missing rows of a kind, and reads all rows once to load them into the page cache."""
    source = paths.SHARED_DATA / {"photographs": "images", "sentences": "text"}[kind]
    if not source.is_dir():
        raise Failed(f"no data in {source} (set FEEDLINE_SHARED_DATA)")
    place = FOLDER / kind
    if not place.exists():
        part = place.with_name(f"{kind}.part")
        shutil.rmtree(part, ignore_errors=True)
        FOLDER.mkdir(parents=True, exist_ok=True)
        if kind == "photographs":
            photographs(source, part)
        else:
            sentences(source, part, binary)
        part.rename(place)
    if kind == "sentences" and not TOKENIZER.exists():
        tokenizer(source)
    for path in place.iterdir():
        path.read_bytes()


def photographs(source, out):
    """Writes rows that contain a JPEG, a label and boxes."""
    rows = []
    generator = random.Random(SEED)
    for label, path in enumerate(sorted(source.iterdir())):
        rows.append(records.record({"image/encoded": path.read_bytes(), "image/class/label": [label], **objects(generator)}))
    out.mkdir()
    for shard in range(SHARDS):
        with open(out / f"photographs-{shard:02}.tfrecord", "wb") as file:
            for place in range(shard, PHOTOGRAPHS, SHARDS):
                file.write(rows[place % len(rows)])


def objects(generator):
    """Returns boxes and their classes with COCO's feature names, relative to the size of the image."""
    count = 0
    if generator.random() >= WITHOUT:
        count = min(MOST_BOXES, 1 + int(generator.expovariate(1 / (MEAN_BOXES - 1))))
    found = {}
    for axis in "xy":
        sides = [sorted((generator.random(), generator.random())) for _ in range(count)]
        found[f"image/object/bbox/{axis}min"] = [low for low, _ in sides]
        found[f"image/object/bbox/{axis}max"] = [high for _, high in sides]
    return found | {"image/object/class/label": [generator.randint(1, CLASSES) for _ in range(count)]}


def sentences(source, out, binary):
    """Writes sentence pairs."""
    arguments = ("--format", shapes.FORMATS["sentences"], "--from", source, "--rows", SENTENCES, "--shards", SHARDS)
    output(binary, "make-data", "text", out, *arguments)


def tokenizer(source):
    """Trains a byte-level BPE tokenizer for both languages."""
    pythons = (environments.python("tensorflow"), paths.ROOT / "target/venv/bin/python")
    python = next(filter(has_tokenizers, pythons), None)
    if python is None:
        raise Failed("cannot train the tokenizer: no environment contains the `tokenizers` package (run `make python`)")
    output(python, HERE / "train_tokenizer.py", TOKENIZER, *sorted(source.iterdir()))


def has_tokenizers(python):
    try:
        output(python, "-c", "import tokenizers")
    except (Failed, OSError):
        return False
    return True
