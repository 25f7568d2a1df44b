"""The tokenizer of the text job for Python: the same file and the same length as Feedline's pipeline."""

import numpy
import shared
import tokenizers
from tokenizers import Tokenizer

VERSION = f"tokenizers {tokenizers.__version__}"
COLUMNS = ("en", "de")


def load(data):
    """The tokenizer, which cuts and fills to one length."""
    tokenizer = Tokenizer.from_file(str(data / "tokenizer.json"))
    tokenizer.enable_truncation(shared.TOKENS)
    tokenizer.enable_padding(length=shared.TOKENS, pad_id=0)
    return tokenizer


def encode(tokenizer, lines):
    """Sentences to token ids [rows, tokens] of int32; no offsets are computed, which is faster."""
    return numpy.array([row.ids for row in tokenizer.encode_batch_fast(lines)], numpy.int32)
