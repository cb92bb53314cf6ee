"""MPEG audio layer III frame headers (ISO/IEC 11172-3 and 13818-3), as far as lengths need them."""

from __future__ import annotations

from collections.abc import Iterator

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
