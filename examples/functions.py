"""The functions of examples/functions.yaml. The argument is a dict of NumPy arrays with one entry per row."""

import numpy as np


def is_short(batch):
    """Keeps sentences of at most twelve words."""
    return np.array([len(text.split()) <= 12 for text in batch["text"]])


def features(batch):
    """Counts the letters and the words of each sentence."""
    letters = np.zeros((len(batch["text"]), 26), np.float32)
    for row, text in enumerate(batch["text"]):
        codes = np.frombuffer(text.lower().encode("ascii", "ignore"), np.uint8)
        codes = codes[(codes >= 97) & (codes <= 122)] - 97
        letters[row] = np.bincount(codes, minlength=26)
    return {"letters": letters, "words": [len(text.split()) for text in batch["text"]]}


def with_typo(batch, rngs):
    """Removes a random letter from each sentence. The choice of the letter is the same in each run, but differs between epochs."""
    texts = []
    for text, rng in zip(batch["text"], rngs):
        place = int(rng.integers(max(len(text), 1)))
        texts.append(text[:place] + text[place + 1 :])
    return {"text": texts}
