"""Writes the golden rows of random image operators with torchvision's functional forms, under the draws of the operators.

Needs torch and torchvision. The draws follow `core/data/src/random.rs`, and the parameters torchvision's `get_params`.
"""

import math
import pathlib
import sys

import numpy as np
import torch
from torchvision.transforms import functional

here = pathlib.Path(__file__).resolve().parent
ROWS, SEED = 16, 11
MASK = (1 << 64) - 1


def mix64(value):
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def philox(counter, key):
    (a, b, c, d), (k, l) = counter, key
    for _ in range(10):
        low, high = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (high >> 32) ^ b ^ k, high & 0xFFFFFFFF, (low >> 32) ^ d ^ l, low & 0xFFFFFFFF
        k, l = (k + 0x9E3779B9) & 0xFFFFFFFF, (l + 0xBB67AE85) & 0xFFFFFFFF
    return [a, b, c, d]


class RowRandom:
    """The draws of the first operator of a pipeline for a row in pass 0."""

    def __init__(self, row):
        mixed = mix64(SEED ^ mix64(1))
        self.key, self.row, self.draws, self.ready = (mixed & 0xFFFFFFFF, mixed >> 32), row, 0, []

    def wide(self):
        bits = []
        for _ in range(2):
            if not self.ready:
                self.ready = philox([self.row, 0, 0, self.draws], self.key)
                self.draws += 1
            bits.append(self.ready.pop(0))
        return bits[0] << 32 | bits[1]

    def next(self):
        return (self.wide() >> 11) / (1 << 53)

    def uniform(self, low, high):
        return low + (high - low) * self.next()

    def below(self, bound):
        return self.wide() * bound >> 64


def grayscale(image, random):
    return functional.rgb_to_grayscale(image, num_output_channels=3) if random.next() < 0.4 else image


def erasing(image, random):
    """`RandomErasing(p=0.6, value=7)`: the parameters as `get_params` computes them."""
    if random.next() >= 0.6:
        return image
    height, width = image.shape[-2:]
    for _ in range(10):
        area = height * width * random.uniform(0.02, 0.33)
        aspect = math.exp(random.uniform(math.log(0.3), math.log(3.3)))
        h, w = int(round(math.sqrt(area * aspect))), int(round(math.sqrt(area / aspect)))
        if h < height and w < width:
            i, j = random.below(height - h + 1), random.below(width - w + 1)
            return functional.erase(image, i, j, h, w, torch.tensor(7, dtype=image.dtype))
    return image


def photo():
    """The first 16 rows and 20 columns of photo.rgb, channels first."""
    width, height = np.frombuffer((here / "photo.rgb").read_bytes()[:8], "<u4")
    pixels = np.frombuffer((here / "photo.rgb").read_bytes()[8:], np.uint8).reshape(height, width, 3)
    return torch.from_numpy(pixels[:16, :20].copy()).permute(2, 0, 1)


def bytes_of(image):
    return image.permute(1, 2, 0).contiguous().numpy().tobytes()


OPERATORS = {
    "random_grayscale": grayscale,
    "random_erasing": erasing,
}

if __name__ == "__main__":
    (here / "photo16.rgb").write_bytes(bytes_of(photo()))
    for name in sys.argv[1:] or OPERATORS:
        rows = [OPERATORS[name](photo(), RowRandom(row)) for row in range(ROWS)]
        (here / f"{name}.rgb").write_bytes(b"".join(bytes_of(row) for row in rows))
