"""tf.data on text: TFRecord, with whole batches passed to the `tokenizers` package, because TensorFlow has no equivalent operators.

- https://www.tensorflow.org/guide/data_performance: batch first, then map the vectorised function; prefetch; AUTOTUNE.
- https://www.tensorflow.org/api_docs/python/tf/numpy_function: Python inside a pipeline. `encode_batch` releases the
  interpreter lock and uses one thread per core.

Variant `tokens`: the tokens of each row are cached by `cache()` and shuffled afterwards.
"""

import os

os.environ["TOKENIZERS_PARALLELISM"] = "true"

import shared
import text_tokens
import tfdata
import tensorflow as tf

VERSION = f"{tfdata.VERSION}, {text_tokens.VERSION}"
FEATURES = {column: tf.io.FixedLenFeature([], tf.string) for column in text_tokens.COLUMNS}


def sentences(given):
    tokenizer = text_tokens.load(given.data)

    def encode(lines):
        return text_tokens.encode(tokenizer, [line.decode() for line in lines])

    def tokens(records):
        rows = tf.io.parse_example(records, FEATURES)
        columns = [tf.numpy_function(encode, [rows[column]], tf.int32) for column in text_tokens.COLUMNS]
        return tuple(tf.ensure_shape(column, [None, shared.TOKENS]) for column in columns)

    files = tf.data.Dataset.list_files(str(given.data / "tfrecord/*.tfrecord"), shuffle=True)
    records = files.interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False)
    if given.variant == "tokens":
        batches = records.batch(shared.TEXT_BATCH, num_parallel_calls=tf.data.AUTOTUNE)
        kept = batches.map(tokens, num_parallel_calls=tf.data.AUTOTUNE).unbatch().cache()
        return kept.shuffle(shared.SHUFFLE_BUFFER).batch(shared.TEXT_BATCH, num_parallel_calls=tf.data.AUTOTUNE)
    batches = records.shuffle(shared.SHUFFLE_BUFFER).batch(shared.TEXT_BATCH, num_parallel_calls=tf.data.AUTOTUNE)
    return batches.map(tokens, num_parallel_calls=tf.data.AUTOTUNE)


def main():
    given = shared.arguments()
    dataset = tfdata.threads(sentences(given).prefetch(tf.data.AUTOTUNE), given.cores)
    shared.measure(given, VERSION, lambda epoch: (english for english, _ in dataset))


if __name__ == "__main__":
    main()
