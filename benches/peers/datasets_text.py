"""Hugging Face datasets on text, in its own Arrow files, with the same tokenizer file.

- https://huggingface.co/docs/datasets/process#map: batched, with processes; `map` writes the tokens to disk, so that a
  second epoch only reads them.
- https://huggingface.co/docs/datasets/process#format-transform: `set_transform` tokenises on the fly.
- https://huggingface.co/docs/datasets/use_with_pytorch: a DataLoader with worker processes on such a dataset, which reads
  all indices of a batch in one call.
- https://huggingface.co/docs/datasets/about_mapstyle_vs_iterable: an iterable dataset reads neighbouring rows and
  shuffles with shards and a buffer, which is faster than the indices of a shuffled dataset.

Variants: `map` and `loader` use both cores with processes; `transform` and `iterable` use the threads of the tokenizer.
"""

import functools
import os
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"

import datasets
import shared
import text_tokens
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

VERSION = f"datasets {datasets.__version__}, {text_tokens.VERSION}"


def prepare(given):
    files = sorted(map(str, (given.data / "jsonl").glob("*.jsonl")))
    with tempfile.TemporaryDirectory(dir=given.data) as scratch:
        rows = datasets.load_dataset("json", data_files=files, split="train", cache_dir=scratch)
        rows.save_to_disk(str(given.prepare), num_shards=shared.SHARDS)


def main():
    given = shared.arguments()
    if given.prepare:
        return prepare(given)
    os.environ["TOKENIZERS_PARALLELISM"] = "false" if given.variant in ("map", "loader") else "true"
    datasets.disable_progress_bars()
    datasets.disable_caching()
    rows = datasets.load_from_disk(str(given.data / "arrow"))
    tokenizer = text_tokens.load(given.data)

    def tokens(batch):
        return {column: text_tokens.encode(tokenizer, batch[column]) for column in text_tokens.COLUMNS}

    def streamed(rows, epoch):
        return rows.to_iterable_dataset(shared.SHARDS).shuffle(seed=epoch, buffer_size=shared.SHUFFLE_BUFFER)

    @functools.cache
    def mapped():
        return rows.map(tokens, batched=True, num_proc=given.cores)

    @functools.cache
    def loader():
        sampler = BatchSampler(RandomSampler(rows), shared.TEXT_BATCH, drop_last=False)
        return DataLoader(
            rows.with_transform(tokens),
            sampler=sampler,
            batch_size=None,
            num_workers=given.cores,
            persistent_workers=True,
            prefetch_factor=4,
        )

    def batches(epoch):
        if given.variant == "loader":
            return loader()
        if given.variant == "map":
            dataset = streamed(mapped(), epoch).with_format("numpy")
        elif given.variant == "transform":
            dataset = rows.shuffle(seed=epoch).with_transform(tokens)
        else:
            dataset = streamed(rows, epoch).map(tokens, batched=True, batch_size=shared.TEXT_BATCH).with_format("numpy")
        return dataset.iter(shared.TEXT_BATCH)

    works_ahead = given.variant == "map" and given.epoch == 1
    shared.measure(given, VERSION, lambda epoch: (batch["en"] for batch in batches(epoch)), works_ahead)


if __name__ == "__main__":
    main()
