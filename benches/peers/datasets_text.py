"""Hugging Face datasets on text, in the Arrow that it keeps itself, with the same tokenizer file.

- https://huggingface.co/docs/datasets/process#map: batched, with processes; `map` writes the tokens to disk, so that a
  second epoch only reads them.
- https://huggingface.co/docs/datasets/process#format-transform: `set_transform` tokenises on the fly.
- https://huggingface.co/docs/datasets/about_mapstyle_vs_iterable: an iterable dataset reads neighbouring rows and
  shuffles by shards and a buffer, which is faster than the indices of a shuffled dataset.

Variants: `map`, `transform`, `iterable`. The last two use both cores by the tokenizer's own threads, `map` by processes.
"""

import os
import shutil
import sys
import tempfile

VARIANT = sys.argv[sys.argv.index("--variant") + 1] if "--variant" in sys.argv else ""
os.environ["TOKENIZERS_PARALLELISM"] = "false" if VARIANT == "map" else "true"
os.environ["HF_HUB_OFFLINE"] = "1"

import datasets
import shared
import text_tokens


def prepare(given):
    part = given.data / "arrow.part"
    files = sorted(map(str, (given.data / "jsonl").glob("*.jsonl")))
    with tempfile.TemporaryDirectory(dir=given.data) as scratch:
        rows = datasets.load_dataset("json", data_files=files, split="train", cache_dir=scratch)
        rows.save_to_disk(str(part), num_shards=len(files))
    part.rename(given.data / "arrow")


def main():
    given = shared.arguments()
    if given.prepare:
        return prepare(given)
    datasets.disable_progress_bars()
    datasets.disable_caching()
    rows = datasets.load_from_disk(str(given.data / "arrow"))
    tokenizer = text_tokens.load(given.data)

    def tokens(batch):
        return {column: text_tokens.encode(tokenizer, batch[column]) for column in text_tokens.COLUMNS}

    mapped = []

    def open_epoch(epoch):
        if given.variant == "map":
            if not mapped:
                mapped.append(rows.map(tokens, batched=True, num_proc=given.cores).with_format("numpy"))
            return mapped[0].shuffle(seed=epoch).iter(shared.TEXT_BATCH)
        if given.variant == "transform":
            return rows.shuffle(seed=epoch).with_transform(tokens).iter(shared.TEXT_BATCH)
        stream = rows.to_iterable_dataset(num_shards=8).shuffle(seed=epoch, buffer_size=shared.SHUFFLE_BUFFER)
        stream = stream.map(tokens, batched=True, batch_size=shared.TEXT_BATCH).with_format("numpy")
        return stream.iter(shared.TEXT_BATCH)

    shared.measure(given, datasets.__version__, lambda epoch: (batch["en"] for batch in open_epoch(epoch)))


if __name__ == "__main__":
    main()
