"""The five pipelines of Plumber's evaluation (Kuchnik et al., MLSys 2022), with Feedline's operators.

They differ from Plumber's pipelines, which are those of MLPerf, as follows:

- ResNet: normalised to float32 instead of bfloat16 for a TPU.
- SSD: one random crop instead of a crop search that considers boxes. Boxes are padded to a fixed number, and neither follow
  crop and flip nor are matched with anchors. No colour jitter.
- Mask R-CNN: resized to 832 x 1344 without keeping the aspect ratio, instead of scaled and padded. No masks; boxes as in SSD.
- Transformer: a Hugging Face tokenizer computes the tokens, while MLPerf reads stored tokens. Batches have one length
  instead of buckets by length.
- GNMT: byte-level BPE instead of a table lookup per word. One length instead of buckets. The shuffle window is before the
  tokenizer instead of after it.
"""

import dataclasses
import json

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
# Number of boxes per image after padding. Images of COCO have up to 93.
BOXES = 100
BOX_COLUMNS = ("xmin", "ymin", "xmax", "ymax", "classes")
RESNET_SIZE, SSD_SIZE, RCNN_SIZE = [224, 224], [300, 300], [832, 1344]
SSD_SCALE = [0.1, 1.0]
WINDOW = 4096
TRANSFORMER_TOKENS, TRANSFORMER_BATCH = 32, 512
GNMT_TOKENS, GNMT_BATCH, GNMT_WINDOW = 50, 256, 65536
LANGUAGES = ("en", "de")
# CSV, because TFRecord only has bytes, which `tokenize` does not accept, and tf.data cannot read JSON lines.
FORMATS = {"photographs": "tfrecord", "sentences": "csv"}

FEATURES = {
    "image": "image/encoded",
    "label": "image/class/label",
    **{side: f"image/object/bbox/{side}" for side in BOX_COLUMNS[:4]},
    "classes": "image/object/class/label",
}


@dataclasses.dataclass(frozen=True)
class Shape:
    key: str
    title: str
    # The directory of the rows, `photographs` or `sentences`, and the columns to read.
    rows: str
    columns: tuple
    window: int
    # Names and parameters of the operators. `TOKENIZER` is replaced by the path of the tokenizer.
    operators: tuple
    # Operators whose parallelism a user would set, the most expensive first. Operators of the same name get the same value.
    heavy: tuple
    batch: int


TOKENIZER = "TOKENIZER"


def image(**more):
    return {"column": "image", **more}


def boxes():
    return [("pad", {"column": column, "length": BOXES}) for column in BOX_COLUMNS]


def tokens(length, *between):
    tokenize = [("tokenize", {"column": language, "tokenizer": TOKENIZER}) for language in LANGUAGES]
    return [*tokenize, *between, *(("pad", {"column": language, "length": length}) for language in LANGUAGES)]


NORMALIZE = ("normalize", image(mean=MEAN, std=STD))
FLIP = ("random_horizontal_flip", image())
WITH_BOXES = ("filter", {"where": "length(classes) > 0"})
SHORT = ("filter", {"where": " AND ".join(f"length({language}) <= {TRANSFORMER_TOKENS}" for language in LANGUAGES)})
NOT_EMPTY = ("filter", {"where": " AND ".join(f"length({language}) > 0" for language in LANGUAGES)})
CUT = [("truncate", {"column": language, "length": GNMT_TOKENS}) for language in LANGUAGES]

ALL = [
    Shape(
        *("resnet", "ResNet", "photographs", ("image", "label"), WINDOW),
        (("random_resized_crop", image(size=RESNET_SIZE)), FLIP, NORMALIZE),
        *(("random_resized_crop", "normalize"), 128),
    ),
    Shape(
        *("rcnn", "Mask R-CNN", "photographs", ("image", *BOX_COLUMNS), WINDOW),
        (WITH_BOXES, ("resize", image(size=RCNN_SIZE)), FLIP, NORMALIZE, *boxes()),
        *(("resize", "normalize"), 4),
    ),
    Shape(
        *("ssd", "SSD", "photographs", ("image", *BOX_COLUMNS), WINDOW),
        (WITH_BOXES, ("random_resized_crop", image(size=SSD_SIZE, scale=SSD_SCALE)), FLIP, NORMALIZE, *boxes()),
        *(("random_resized_crop", "normalize"), 64),
    ),
    Shape(
        *("transformer", "Transformer", "sentences", LANGUAGES, WINDOW),
        (*tokens(TRANSFORMER_TOKENS, SHORT),),
        *(("tokenize", "filter"), TRANSFORMER_BATCH),
    ),
    Shape(
        *("gnmt", "GNMT", "sentences", LANGUAGES, GNMT_WINDOW),
        (NOT_EMPTY, *tokens(GNMT_TOKENS, *CUT)),
        *(("tokenize", "filter"), GNMT_BATCH),
    ),
]

SHAPES = {shape.key: shape for shape in ALL}


def pipeline(shape, folder, pins):
    """Returns the text of the pipeline file. `pins` contains a parallelism per operator name, or for all operators under `*`."""
    form = FORMATS[shape.rows]
    lines = [f"name: {shape.key}", "source:", f"  url: {folder / shape.rows}/*.{form}", f"  format: {form}"]
    names = {column: FEATURES.get(column, column) for column in shape.columns}
    lines += [f"  features: {json.dumps(names)}", "seed: 7", f"shuffle: {{ window: {shape.window} }}", "operators:"]
    for name, parameters in (*shape.operators, ("batch", {"size": shape.batch})):
        parameters = {key: str(folder / "tokenizer.json") if value == TOKENIZER else value for key, value in parameters.items()}
        limit = pins.get(name, pins.get("*"))
        if limit is not None:
            parameters["parallelism"] = limit
        lines.append(f"  - {name}: {json.dumps(parameters)}")
    return "\n".join(lines) + "\n"
