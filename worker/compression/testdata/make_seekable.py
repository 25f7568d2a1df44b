"""Writes `seekable.zst` in the seekable format of zstd: several frames, and a seek table in a skippable frame.

    pip install pyzstd==0.20.0
    python make_seekable.py

The tests of feedline-compression and feedline-sources read the file.
"""

from pathlib import Path

from pyzstd import CParameter, SeekableZstdFile

HERE = Path(__file__).parent
FRAME_BYTES = 4096

content = "".join(f"row {row}, {row * row % 977}\n" for row in range(1000)).encode()
file = HERE / "seekable.zst"
options = {CParameter.compressionLevel: 3, CParameter.checksumFlag: 1}
with SeekableZstdFile(file, "w", level_or_option=options, max_frame_content_size=FRAME_BYTES) as writer:
    writer.write(content)
with SeekableZstdFile(file, "r") as reader:
    assert reader.read() == content
    reader.seek(FRAME_BYTES + 5)
    assert reader.read(9) == content[FRAME_BYTES + 5 :][:9]
assert b"\x5e\x2a\x4d\x18" in file.read_bytes() and file.read_bytes().endswith(b"\xb1\xea\x92\x8f")
