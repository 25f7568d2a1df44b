"""The tokenizer of the text job in Python, with the same file and length as Feedline's pipeline."""

import numpy
import shared
import tokenizers
from tokenizers import Tokenizer

VERSION = f"tokenizers {tokenizers.__version__}"
COLUMNS = ("en", "de")


def load(data):
    """Loads the tokenizer, which truncates and pads to one length."""
    tokenizer = Tokenizer.from_file(str(data / "tokenizer.json"))
    tokenizer.enable_truncation(shared.TOKENS)
    tokenizer.enable_padding(length=shared.TOKENS, pad_id=0)
    return tokenizer


def encode(tokenizer, lines):
    """Converts sentences to token ids [rows, tokens] of int32, without offsets, which is faster."""
    return numpy.array([row.ids for row in tokenizer.encode_batch_fast(lines)], numpy.int32)
