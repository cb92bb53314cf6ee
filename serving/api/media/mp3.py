"""MPEG audio layer III frame headers (ISO/IEC 11172-3 and 13818-3), as far as lengths need them."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

KBITS = {
    3: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),  # MPEG-1
    2: (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),  # MPEG-2 and 2.5
}
HZ = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}
TAGS = (b"Xing", b"Info", b"VBRI")


def frame_bytes(header: bytes) -> int:
    """Length of the layer III frame that starts with these 4 bytes; 0 when they start none."""
    word = int.from_bytes(header[:4], "big")
    version, layer, bits, rate = word >> 19 & 3, word >> 17 & 3, word >> 12 & 15, word >> 10 & 3
    if word >> 21 != 0x7FF or layer != 1 or version == 1 or bits in {0, 15} or rate == 3:
        return 0
    kbits = KBITS[3 if version == 3 else 2][bits]
    return (144 if version == 3 else 72) * kbits * 1000 // HZ[version][rate] + (word >> 9 & 1)


def frames(data: bytes, start: int = 0) -> Iterator[tuple[int, int]]:
    """(offset, length) of consecutive frames from `start` on; ends at the first byte that starts none."""
    while length := frame_bytes(data[start : start + 4]):
        yield start, length
        start += length


def with_table(file: BinaryIO) -> BinaryIO:
    """The file, led by a Xing table if it has none: without one a decoder guesses the length from the first bit rate
    and stops there, which cuts off files of variable bit rate."""
    start = _after_id3(file)
    first = _read(file, start, 4)
    length = frame_bytes(first)
    if not length or any(tag in _read(file, start, length) for tag in TAGS):
        file.seek(0)
        return file
    count, offset = 0, start
    while step := frame_bytes(_read(file, offset, 4)):
        count, offset = count + 1, offset + step
    # The smallest frame of this rate that holds the table: same header, a bit rate of at least 64 kbit/s.
    header = bytes([first[0], first[1] | 1, max(first[2] & 0xF0, 0x80) | first[2] & 0x0C, first[3]])
    mono, mpeg1 = first[3] >> 6 == 3, first[1] >> 3 & 3 == 3
    side = (17 if mono else 32) if mpeg1 else (9 if mono else 17)
    table = header + bytes(side) + b"Xing" + struct.pack(">II", 1, count)
    return cast(BinaryIO, Joined(table.ljust(frame_bytes(header), b"\0"), file, start))


class Joined(io.RawIOBase):
    """Some bytes, then a file from an offset on."""

    def __init__(self, head: bytes, file: BinaryIO, start: int) -> None:
        self._head, self._file, self._start, self._at = head, file, start, 0
        self._size = len(head) + file.seek(0, io.SEEK_END) - start

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        if self._at < len(self._head):
            data = self._head[self._at : self._at + len(buffer)]
        else:
            data = _read(self._file, self._start + self._at - len(self._head), len(buffer))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def _after_id3(file: BinaryIO) -> int:
    """Where the frames begin: behind an ID3v2 tag, whose size is in 7-bit bytes."""
    head = _read(file, 0, 10)
    if head[:3] != b"ID3" or len(head) < 10:
        return 0
    return 10 + sum(byte << shift for byte, shift in zip(head[6:10], (21, 14, 7, 0), strict=True))


def _read(file: BinaryIO, at: int, size: int) -> bytes:
    file.seek(at)
    return file.read(size)
