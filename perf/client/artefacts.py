"""Readers of pictures, films and a model's own outputs."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

from perf.client.http import RequestFailed
from perf.client.live import array_items
from perf.client.readers import Reader, document, message_of

# How files of the formats begin: PNG, JPEG, WebP, GIF, MP4.
MAGIC = ((0, b"\x89PNG"), (0, b"\xff\xd8\xff"), (8, b"WEBP"), (0, b"GIF8"), (4, b"ftyp"))


class PictureReader(Reader):
    """Pictures or films: a document of files in base64, each of a known format."""

    def start(self, headers: Mapping[str, str]) -> None:
        self._body, self._last = bytearray(), 0.0

    def take(self, t: float, data: bytes, complete: bool) -> None:
        self._last = t
        self._body += data

    def close(self) -> None:
        files = [_file(one) for one in document(bytes(self._body)).get("data") or ()]
        if not files:
            raise RequestFailed("empty", "no picture in the answer")
        self.record.made = len(files)
        self.add(self._last, sum(map(len, files)), b"".join(files))


def _file(one: Mapping[str, Any]) -> bytes:
    try:
        data = base64.b64decode(one["b64_json"], validate=True)
    except (KeyError, TypeError, binascii.Error):
        raise RequestFailed("malformed", "a picture that is not base64") from None
    if not any(data[at : at + len(magic)] == magic for at, magic in MAGIC):
        raise RequestFailed("malformed", f"a picture of no known format: {data[:8]!r}")
    return data


class OutputReader(Reader):
    """`/generate`: outputs by port, one a line as they come, or all in a document. Facts of the run are no output."""

    def start(self, headers: Mapping[str, str]) -> None:
        self._lines = "ndjson" in headers.get("content-type", "")
        self._body, self._last, self._done = bytearray(), 0.0, False

    def take(self, t: float, data: bytes, complete: bool) -> None:
        self._last = t
        self._body += data
        while self._lines and (stop := self._body.find(b"\n")) >= 0:
            line = bytes(self._body[:stop])
            del self._body[: stop + 1]
            self._line(t, document(line))

    def _line(self, t: float, event: Mapping[str, Any]) -> None:
        if event.get("type") == "error":
            raise RequestFailed("in_band", message_of(event))
        self._done |= event.get("type") == "done"
        if event.get("type") == "output" and event.get("port") != "info":
            self.add(t, *array_items(event.get("data")))

    def close(self) -> None:
        if self._lines and not self._done:
            raise RequestFailed("truncated", "the outputs stopped without their last line")
        if not self._lines:
            outputs = document(bytes(self._body)).get("outputs") or {}
            found = [array_items(value) for values in outputs.values() for value in values]
            data = json.dumps(outputs, sort_keys=True).encode()
            self.add(self._last, sum(items for items, _ in found), data)
        self.record.made = sum(c.size for c in self.record.chunks)
        if not self.record.made:
            raise RequestFailed("empty", "no output")
