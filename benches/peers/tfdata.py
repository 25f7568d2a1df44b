"""tf.data in the training process: TFRecord, decode_and_crop_jpeg, as its performance guide advises.

- https://www.tensorflow.org/guide/data_performance: parallel interleave, parallel map, vectorised batch, prefetch, all
  AUTOTUNE, and no deterministic order, so that a slow element holds nobody up.
- https://www.tensorflow.org/api_docs/python/tf/data/ThreadingOptions: a private pool of as many threads as cores.
- https://www.tensorflow.org/api_docs/python/tf/image/sample_distorted_bounding_box and tf.io.decode_and_crop_jpeg: the
  crop that Inception and ResNet are trained with; only the crop is decoded.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import shared
import tensorflow as tf

VERSION = f"TensorFlow {tf.__version__}"
FEATURES = {"image/encoded": tf.io.FixedLenFeature([], tf.string), "image/class/label": tf.io.FixedLenFeature([], tf.int64)}


def example(record):
    """One row: the serialised `tf.train.Example` to a cropped and flipped photograph with its label."""
    row = tf.io.parse_single_example(record, FEATURES)
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.io.extract_jpeg_shape(row["image/encoded"]),
        bounding_boxes=tf.zeros([1, 0, 4]),
        aspect_ratio_range=shared.RATIO,
        area_range=shared.SCALE,
        max_attempts=10,
        use_image_if_no_bounding_boxes=True,
    )
    window = tf.concat([begin[:2], size[:2]], axis=0)
    image = tf.io.decode_and_crop_jpeg(row["image/encoded"], window, channels=3)
    image = tf.cast(tf.image.resize(image, [shared.SIZE, shared.SIZE], method="bilinear"), tf.uint8)
    return tf.image.random_flip_left_right(image), row["image/class/label"]


def threads(dataset, cores):
    options = tf.data.Options()
    options.deterministic = False
    options.threading.private_threadpool_size = cores
    return dataset.with_options(options)


def photographs(given):
    """The dataset up to its batches, without the last prefetch."""
    files = tf.data.Dataset.list_files(str(given.data / "tfrecord/*.tfrecord"), shuffle=True)
    records = files.interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False)
    images = records.shuffle(shared.SHUFFLE_BUFFER).map(example, num_parallel_calls=tf.data.AUTOTUNE)
    return images.batch(shared.IMAGE_BATCH, num_parallel_calls=tf.data.AUTOTUNE)


def main():
    given = shared.arguments()
    dataset = threads(photographs(given).prefetch(tf.data.AUTOTUNE), given.cores)
    shared.measure(given, VERSION, lambda epoch: (images for images, _ in dataset))


if __name__ == "__main__":
    main()
