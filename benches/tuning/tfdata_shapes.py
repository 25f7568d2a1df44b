"""The five pipelines in tf.data with AUTOTUNE everywhere, on the same files and with one thread per core.

- https://www.tensorflow.org/guide/data_performance: parallel interleave, parallel map, parallel batch, prefetch; operations
  on many rows at once (text: parse, tokenise, filter); no deterministic order.
- https://www.tensorflow.org/api_docs/python/tf/io/decode_and_crop_jpeg: only the crop is decoded.
- https://www.tensorflow.org/api_docs/python/tf/data/Dataset#rebatch: rebuilds batches after a filter without splitting
  them into rows.
- The `tokenizers` package tokenises whole batches in a `tf.numpy_function` with its own threads.

Prints the rate of a window of the running job as one line of JSON.
"""

import argparse
import json
import os
import pathlib
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "peers"))
os.environ["TOKENIZERS_PARALLELISM"] = "true"

import numpy
import quiet
import shapes
import shared
import tfdata
import tensorflow as tf
from tokenizers import Tokenizer

AUTOTUNE = tf.data.AUTOTUNE


def lines(file):
    """Returns the lines of a CSV file after its header."""
    return tf.data.TextLineDataset(file).skip(1)


def records(given, shape):
    """Returns the rows of all files, shuffled and repeated indefinitely."""
    form = shapes.FORMATS[shape.rows]
    files = tf.data.Dataset.list_files(f"{given.folder / shape.rows}/*.{form}", shuffle=True)
    reader = tf.data.TFRecordDataset if form == "tfrecord" else lines
    read = files.interleave(reader, num_parallel_calls=AUTOTUNE, deterministic=False)
    # The shuffle buffer is smaller than Feedline's window, because it stores the photographs themselves.
    buffer = min(shape.window, shared.SHUFFLE_BUFFER) if shape.rows == "photographs" else shape.window
    return read.shuffle(buffer).repeat()


def parse(shape):
    """Parses the columns of a photograph's record."""
    fixed = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
    kinds = {"classes": tf.int64}
    features = {
        shapes.FEATURES[column]: fixed.get(column) or tf.io.RaggedFeature(kinds.get(column, tf.float32))
        for column in shape.columns
    }

    def row(record):
        found = tf.io.parse_single_example(record, features)
        return {column: found[shapes.FEATURES[column]] for column in shape.columns}

    return row


def crop(jpeg, size, scale):
    """Returns a random crop of the photograph, as in tfdata.py."""
    begin, extent, _ = tf.image.sample_distorted_bounding_box(
        tf.io.extract_jpeg_shape(jpeg),
        bounding_boxes=tf.zeros([1, 0, 4]),
        aspect_ratio_range=shared.RATIO,
        area_range=scale,
        max_attempts=10,
        use_image_if_no_bounding_boxes=True,
    )
    image = tf.io.decode_and_crop_jpeg(jpeg, tf.concat([begin[:2], extent[:2]], axis=0), channels=3)
    return tf.image.resize(image, size, method="bilinear")


def finished(image):
    """Flips and normalises an image."""
    mean, std = (tf.constant([255 * each for each in values]) for values in (shapes.MEAN, shapes.STD))
    return (tf.image.random_flip_left_right(image) - mean) / std


def padded(row):
    """Pads boxes and classes to one length."""
    return {column: tf.pad(row[column], [[0, shapes.BOXES - tf.shape(row[column])[0]]]) for column in shapes.BOX_COLUMNS}


def photographs(given, shape, view):
    """Returns batches of photographs after `view`."""
    parsed = records(given, shape)
    if "classes" in shape.columns:
        parsed = parsed.map(parse(shape), num_parallel_calls=AUTOTUNE).filter(lambda row: tf.size(row["classes"]) > 0)
        images = parsed.map(lambda row: padded(row) | {"image": finished(view(row["image"]))}, num_parallel_calls=AUTOTUNE)
    else:
        row = parse(shape)

        def labelled(record):
            found = row(record)
            return found | {"image": finished(view(found["image"]))}

        images = parsed.map(labelled, num_parallel_calls=AUTOTUNE)
    return images.batch(shape.batch, num_parallel_calls=AUTOTUNE, drop_remainder=True)


def resnet(given, shape):
    return photographs(given, shape, lambda jpeg: crop(jpeg, shapes.RESNET_SIZE, shared.SCALE))


def ssd(given, shape):
    return photographs(given, shape, lambda jpeg: crop(jpeg, shapes.SSD_SIZE, shapes.SSD_SCALE))


def rcnn(given, shape):
    def whole(jpeg):
        return tf.image.resize(tf.io.decode_jpeg(jpeg, channels=3), shapes.RCNN_SIZE, method="bilinear")

    return photographs(given, shape, whole)


def encoder(given, length):
    """Returns a function from columns of sentences to token ids [rows, length + 1]. The last element is set if a row is longer."""
    tokenizer = Tokenizer.from_file(str(given.folder / "tokenizer.json"))
    tokenizer.enable_truncation(length + 1)
    tokenizer.enable_padding(length=length + 1, pad_id=0)

    def encode(*columns):
        batches = (tokenizer.encode_batch_fast([text.decode() for text in column]) for column in columns)
        return [numpy.array([row.ids for row in batch], numpy.int32) for batch in batches]

    def tokens(columns):
        ids = tf.numpy_function(encode, columns, [tf.int32] * len(columns))
        return [tf.ensure_shape(each, [None, length + 1]) for each in ids]

    return tokens


def sentences(given, shape):
    """Returns the texts of whole batches of rows, with one tensor per language."""

    def texts(batch):
        return tf.io.decode_csv(batch, [""] * len(shape.columns))

    return records(given, shape).batch(shape.batch, num_parallel_calls=AUTOTUNE), texts


def transformer(given, shape):
    batches, texts = sentences(given, shape)
    tokens = encoder(given, shapes.TRANSFORMER_TOKENS)

    def short(batch):
        ids = tokens(texts(batch))
        # The padding value is 0, which is not a token of any text.
        fits = tf.reduce_all([each[:, -1] == 0 for each in ids], axis=0)
        return tuple(tf.boolean_mask(each[:, :-1], fits) for each in ids)

    return batches.map(short, num_parallel_calls=AUTOTUNE).rebatch(shape.batch, drop_remainder=True)


def gnmt(given, shape):
    batches, texts = sentences(given, shape)
    tokens = encoder(given, shapes.GNMT_TOKENS)

    def not_empty(batch):
        columns = texts(batch)
        full = tf.reduce_all([tf.strings.length(each) > 0 for each in columns], axis=0)
        return tuple(each[:, :-1] for each in tokens([tf.boolean_mask(each, full) for each in columns]))

    return batches.map(not_empty, num_parallel_calls=AUTOTUNE).rebatch(shape.batch, drop_remainder=True)


def rate(dataset, after, seconds):
    """Returns the rows per second, and the share of the cores that other programs used. Measures `seconds` from the first batch after `after` seconds."""
    start, begun, rows = time.perf_counter(), None, 0
    for batch in dataset:
        now = time.perf_counter()
        count = tf.nest.flatten(batch)[0].shape[0]
        if begun is not None:
            rows += count
            if now - begun >= seconds:
                return rows / (now - begun), watch.others()
        elif now - start >= after:
            begun, watch = now, quiet.Watch()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--shape", choices=shapes.SHAPES, required=True)
    parser.add_argument("--cores", type=int, required=True)
    parser.add_argument("--after", type=float, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    given = parser.parse_args()
    makers = {"resnet": resnet, "ssd": ssd, "rcnn": rcnn, "transformer": transformer, "gnmt": gnmt}
    dataset = makers[given.shape](given, shapes.SHAPES[given.shape])
    dataset = tfdata.threads(dataset.prefetch(AUTOTUNE), given.cores)
    rows_per_s, others = rate(dataset, given.after, given.seconds)
    print(json.dumps({"rate": rows_per_s, "others": others}))


if __name__ == "__main__":
    main()
