"""RandomResizedCrop and flip with OpenCV, for tools without a decoder.

The parameters have the distribution of torchvision's `RandomResizedCrop.get_params`. Of the decoders that users of these
tools choose, OpenCV was the fastest in this benchmark. It resizes bilinearly without antialiasing, as albumentations does
by default, which is less work than the resize of Pillow, torchvision and Feedline.
"""

import math
import os
import random

import cv2
import numpy
import shared

# Each loader has its own worker processes, so additional threads would only compete for cores.
cv2.setNumThreads(0)


def draw(height, width, generator):
    """Returns top, left, height and width of a random crop."""
    for _ in range(10):
        area = height * width * generator.uniform(*shared.SCALE)
        ratio = math.exp(generator.uniform(math.log(shared.RATIO[0]), math.log(shared.RATIO[1])))
        crop_width, crop_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            top, left = generator.randint(0, height - crop_height), generator.randint(0, width - crop_width)
            return top, left, crop_height, crop_width
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side


def crop(jpeg, generator=random):
    """Decodes a JPEG to a cropped and flipped array [224, 224, 3] of uint8."""
    image = cv2.imdecode(numpy.frombuffer(jpeg, numpy.uint8), cv2.IMREAD_COLOR_RGB)
    top, left, height, width = draw(*image.shape[:2], generator)
    image = image[top : top + height, left : left + width]
    image = cv2.resize(image, (shared.SIZE, shared.SIZE), interpolation=cv2.INTER_LINEAR)
    return cv2.flip(image, 1) if generator.random() < 0.5 else image


def reseed(worker=0):
    """Creates a separate random number generator for a worker process."""
    random.seed(int.from_bytes(os.urandom(8), "little") + worker)
