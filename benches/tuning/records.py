"""Writes TFRecord files of `tf.train.Example` with only Python's standard library."""

import struct

# CRC-32C (Castagnoli), one byte at a time. This loop is slow, but each photograph is checksummed only once.
TABLE = []
for byte in range(256):
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    TABLE.append(byte)


def masked_crc(data):
    """Returns the checksum that TFRecord stores for lengths and data."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def varint(number):
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def field(number, data):
    """Encodes a length-delimited field of a message."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def feature(value):
    """Encodes bytes, a list of integers or a list of floats as a `tf.train.Feature`."""
    if isinstance(value, bytes):
        return field(1, field(1, value))
    if all(isinstance(each, int) for each in value) and value:
        return field(3, field(1, b"".join(map(varint, value))))
    return field(2, field(1, struct.pack(f"<{len(value)}f", *value))) if value else b""


def record(features):
    """Encodes one row, a mapping from name to value, as a record of the file."""
    entries = (field(1, name.encode()) + field(2, feature(value)) for name, value in features.items())
    example = field(1, b"".join(field(1, entry) for entry in entries))
    length = struct.pack("<Q", len(example))
    return length + struct.pack("<I", masked_crc(length)) + example + struct.pack("<I", masked_crc(example))
