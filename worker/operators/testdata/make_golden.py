"""Writes the small golden images of worker/jpeg and worker/operators with Pillow and NumPy. Run from anywhere."""

import io
import json
import pathlib
import struct
import zlib

import numpy as np
from PIL import Image, ImageOps

here = pathlib.Path(__file__).resolve().parent
jpeg_dir = here.parent.parent / "jpeg" / "testdata"
WIDTH, HEIGHT = 61, 45


def photo():
    """Smooth shapes, an edge and some noise: what a JPEG has to deal with."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH].astype(float)
    red = 128 + 120 * np.sin(x / 9) * np.cos(y / 7)
    green = 255 * x / WIDTH
    blue = np.where((x - 30) ** 2 + (y - 20) ** 2 < 200, 230, 40) + y
    noise = np.random.default_rng(7).normal(0, 6, (HEIGHT, WIDTH, 3))
    return Image.fromarray(np.clip(np.stack([red, green, blue], -1) + noise, 0, 255).astype(np.uint8))


def save(image, **options):
    out = io.BytesIO()
    image.save(out, "JPEG", quality=88, **options)
    return out.getvalue()


def exif(orientation):
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


def as_ycck(cmyk_jpeg):
    """The same bytes read as YCCK: the Adobe marker's transform flag 2."""
    at = cmyk_jpeg.index(b"Adobe") + 11
    return cmyk_jpeg[:at] + b"\x02" + cmyk_jpeg[at + 1 :]


def jpegs():
    rgb = photo()
    files = {
        "420": save(rgb, subsampling=2),
        "422": save(rgb, subsampling=1),
        "444": save(rgb, subsampling=0),
        "progressive": save(rgb, progressive=True),
        "restart": save(rgb, restart_marker_blocks=3),
        "grey": save(rgb.convert("L")),
        "cmyk": save(rgb.convert("CMYK")),
        "ycck": as_ycck(save(rgb.convert("CMYK"))),
    }
    for orientation in range(1, 9):
        files[f"exif{orientation}"] = save(rgb, subsampling=2, exif=exif(orientation))
    for name, data in files.items():
        (jpeg_dir / f"{name}.jpg").write_bytes(data)
        upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
        (jpeg_dir / f"{name}.rgb").write_bytes(struct.pack("<II", *upright.size) + upright.tobytes())


def png16(samples, colour_type):
    height, width = samples.shape[:2]
    raw = b"".join(b"\0" + samples[row].astype(">u2").tobytes() for row in range(height))

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 16, colour_type, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")


def rasters():
    rgb = photo().crop((0, 0, 24, 16))
    alpha = rgb.copy()
    alpha.putalpha(Image.linear_gradient("L").resize((24, 16)))
    deep = np.random.default_rng(3).integers(0, 65536, (16, 24, 3), dtype=np.uint16)

    def encoded(image, kind, **options):
        out = io.BytesIO()
        image.save(out, kind, **options)
        return out.getvalue()

    files = {
        "rgb.png": encoded(rgb, "PNG"),
        "rgba.png": encoded(alpha, "PNG"),
        "grey.png": encoded(rgb.convert("L"), "PNG"),
        "la.png": encoded(alpha.convert("LA"), "PNG"),
        "palette.png": encoded(rgb.quantize(17), "PNG"),
        "bilevel.png": encoded(rgb.convert("1"), "PNG"),
        "rgb16.png": png16(deep, 2),
        "exif6.png": encoded(rgb, "PNG", exif=exif(6)),
        "lossless.webp": encoded(rgb, "WEBP", lossless=True),
        "alpha.webp": encoded(alpha, "WEBP", lossless=True, exact=True),
        "lossy.webp": encoded(rgb, "WEBP", quality=90),
    }
    for name, data in files.items():
        (here / name).write_bytes(data)
        upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
        (here / f"{name}.rgb").write_bytes(struct.pack("<II", *upright.size) + upright.tobytes())


def center_crop(image, size, resize):
    """torchvision's Resize(resize) and CenterCrop(size) on a PIL image; size is (height, width)."""
    if resize:
        width, height = image.size
        if width <= height:
            target = (resize, int(resize * height / width))
        else:
            target = (int(resize * width / height), resize)
        if target != image.size:
            image = image.resize(target, Image.BILINEAR)
    width, height = image.size
    out_height, out_width = size
    pad_left = (out_width - width) // 2 if out_width > width else 0
    pad_top = (out_height - height) // 2 if out_height > height else 0
    padded = Image.new("RGB", (max(width, out_width), max(height, out_height)))
    padded.paste(image, (pad_left, pad_top))
    left = int(round((padded.width - out_width) / 2.0))
    top = int(round((padded.height - out_height) / 2.0))
    return padded.crop((left, top, left + out_width, top + out_height))


def resized():
    image = photo()
    cases = []

    def add(result, **case):
        name = f"resized{len(cases)}.rgb"
        (here / name).write_bytes(result.tobytes())
        cases.append({"file": name, **case})

    for height, width in [(24, 32), (45, 61), (20, 61), (70, 50)]:
        add(image.resize((width, height), Image.BILINEAR), kind="resize", size=[height, width])
    for box, (height, width) in [((7, 5, 47, 35), (16, 20)), ((0, 0, 13, 45), (24, 24)), ((30, 9, 61, 45), (36, 31))]:
        add(image.crop(box).resize((width, height), Image.BILINEAR), kind="crop", box=list(box), size=[height, width])
    for size, resize in [((24, 24), 32), ((24, 24), 28), ((20, 31), None), ((60, 40), None), ((50, 50), 40), ((32, 32), 32), ((45, 45), 45), ((33, 28), 64)]:
        add(center_crop(image, size, resize), kind="center_crop", size=list(size), resize=resize)
    (here / "photo.rgb").write_bytes(struct.pack("<II", *image.size) + image.tobytes())
    (here / "resized.json").write_text(json.dumps(cases, indent=1) + "\n")


if __name__ == "__main__":
    jpegs()
    rasters()
    resized()
