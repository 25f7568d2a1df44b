"""tf.data in the training process: TFRecord and decode_and_crop_jpeg, as its performance guide recommends.

- https://www.tensorflow.org/guide/data_performance: parallel interleave, parallel map, vectorised batch, prefetch, all
  with AUTOTUNE, and without deterministic order, so that a slow element does not delay others.
- https://www.tensorflow.org/api_docs/python/tf/data/ThreadingOptions: a private pool with one thread per core.
- https://www.tensorflow.org/api_docs/python/tf/image/sample_distorted_bounding_box and tf.io.decode_and_crop_jpeg: the
  crop with which Inception and ResNet are trained; only the crop is decoded.

Variant `decoded`: whole images are decoded once and cached by `cache()` before the random crop, as the section on caching
of the guide recommends.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import shared
import tensorflow as tf

VERSION = f"TensorFlow {tf.__version__}"
FEATURES = {"image/encoded": tf.io.FixedLenFeature([], tf.string), "image/class/label": tf.io.FixedLenFeature([], tf.int64)}


def parsed(record):
    """Parses a serialised `tf.train.Example` into the bytes of a photograph and its label."""
    row = tf.io.parse_single_example(record, FEATURES)
    return row["image/encoded"], row["image/class/label"]


def window(shape):
    """Returns top, left, height and width of a random crop."""
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        shape,
        bounding_boxes=tf.zeros([1, 0, 4]),
        aspect_ratio_range=shared.RATIO,
        area_range=shared.SCALE,
        max_attempts=10,
        use_image_if_no_bounding_boxes=True,
    )
    return tf.concat([begin[:2], size[:2]], axis=0)


def finished(image, label):
    """Resizes and flips a crop to the input of the model."""
    image = tf.cast(tf.image.resize(image, [shared.SIZE, shared.SIZE], method="bilinear"), tf.uint8)
    return tf.image.random_flip_left_right(image), label


def cropped(record):
    """Decodes only the crop of a row."""
    data, label = parsed(record)
    return finished(tf.io.decode_and_crop_jpeg(data, window(tf.io.extract_jpeg_shape(data)), channels=3), label)


def decoded(record):
    """Decodes a whole row for the cache."""
    data, label = parsed(record)
    return tf.io.decode_jpeg(data, channels=3), label


def cropped_of_decoded(image, label):
    return finished(tf.image.crop_to_bounding_box(image, *tf.unstack(window(tf.shape(image)))), label)


def threads(dataset, cores):
    options = tf.data.Options()
    options.deterministic = False
    options.threading.private_threadpool_size = cores
    return dataset.with_options(options)


def photographs(given):
    """Returns the dataset of batches without the final prefetch."""
    files = tf.data.Dataset.list_files(str(given.data / "tfrecord/*.tfrecord"), shuffle=True)
    records = files.interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False)
    if given.variant == "decoded":
        kept = records.map(decoded, num_parallel_calls=tf.data.AUTOTUNE).cache()
        images = kept.shuffle(shared.SHUFFLE_BUFFER).map(cropped_of_decoded, num_parallel_calls=tf.data.AUTOTUNE)
    else:
        images = records.shuffle(shared.SHUFFLE_BUFFER).map(cropped, num_parallel_calls=tf.data.AUTOTUNE)
    return images.batch(shared.IMAGE_BATCH, num_parallel_calls=tf.data.AUTOTUNE)


def main():
    given = shared.arguments()
    dataset = threads(photographs(given).prefetch(tf.data.AUTOTUNE), given.cores)
    shared.measure(given, VERSION, lambda epoch: (images for images, _ in dataset))


if __name__ == "__main__":
    main()
