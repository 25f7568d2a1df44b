"""Trains a byte-level BPE tokenizer on text files and saves it: train_tokenizer.py OUT FILE..."""

import sys

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers


def main():
    out, *files = sys.argv[1:]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train(files, trainers.BpeTrainer(vocab_size=8000, special_tokens=["<unk>"], show_progress=False))
    tokenizer.save(out)


if __name__ == "__main__":
    main()
