"""OpenAI's routes as the bench uses them: a workload's item to request bytes, a response to its reader."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx

from perf.client.clock import Clock
from perf.client.http import Connection, Dial, Pool
from perf.client.readers import AudioReader, Reader, TextReader
from perf.schema import Record
from perf.workloads.base import Item
from serving.errors import BadRequest, nearest

PATHS = {
    "speech": "/v1/audio/speech",
    "transcription": "/v1/audio/transcriptions",
    "chat": "/v1/chat/completions",
}
READERS: Mapping[str, type[Reader]] = {"speech": AudioReader, "transcription": TextReader, "chat": TextReader}
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "speech": {"response_format": "wav", "stream": True},
    "transcription": {"response_format": "json"},
    "chat": {"stream": True, "stream_options": {"include_usage": True}},
}


@dataclass(frozen=True, slots=True)
class Target:
    """A server: base URL, the model's name there, and a bearer key that is never recorded."""

    url: str
    model: str
    label: str = "server"
    api_key: str | None = field(default=None, repr=False)

    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}


class Sender:
    """Sends items of one route to one target. `outputs`: digest -> answer, for the items named in `keep`."""

    def __init__(
        self,
        target: Target,
        route: str,
        clock: Clock,
        *,
        body: Mapping[str, Any] | None = None,
        declared_rate: int | None = None,
        dial: Dial | None = None,
    ) -> None:
        if route not in PATHS:
            raise BadRequest(f'No bench for route "{route}".{nearest(route, PATHS)}', param="route")
        self.target, self.route = target, route
        self.keep: set[str] = set()
        self.outputs: dict[str, bytes] = {}
        self._body = {**DEFAULTS[route], **(body or {})}
        self._declared_rate = declared_rate
        self._encoded: dict[str, bytes] = {}
        self._pool = Pool(clock, dial or _dialler(target.url))

    def prepare(self, items: list[Item]) -> None:
        """Encode the requests before anything is measured."""
        self._encoded = {item.id: self._encode(item) for item in items}

    async def __call__(self, item: Item, record: Record) -> None:
        """Send and fill the record; raises `RequestFailed`."""
        keep = item.id in self.keep
        reader = READERS[self.route](record, declared_rate=self._declared_rate, keep=keep)
        if item.audio is not None:
            record.input_seconds, record.reference = item.seconds, item.text or None
        await self._pool.send(self._encoded.get(item.id) or self._encode(item), reader)
        reader.finish()
        if reader.kept is not None:
            self.outputs[record.digest or ""] = bytes(reader.kept)

    def close(self) -> None:
        self._pool.close()

    def _encode(self, item: Item) -> bytes:
        fields = {"model": self.target.model, **self._body, **item.body}
        fields = {name: value for name, value in fields.items() if value is not None}  # None: leave a default out
        request = httpx.Request(
            "POST",
            self.target.url.rstrip("/") + PATHS[self.route],
            headers={"accept": "*/*", **self.target.headers()},
            **_content(self.route, item, fields),
        )
        head = [f"POST {request.url.raw_path.decode()} HTTP/1.1"]
        head += [f"{name}: {value}" for name, value in request.headers.items()]
        return "\r\n".join([*head, "", ""]).encode("latin-1") + request.read()


def _content(route: str, item: Item, fields: dict[str, Any]) -> dict[str, Any]:
    """The body in httpx's terms."""
    if route == "transcription":
        form = {name: _form(value) for name, value in fields.items()}
        return {"data": form, "files": {"file": (f"{item.id}.wav", item.audio or b"", "audio/wav")}}
    if route == "speech":
        return {"json": {"voice": "default", **fields, "input": item.text}}
    return {"json": {**fields, "messages": [{"role": "user", "content": item.text}]}}


def _form(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _dialler(url: str) -> Dial:
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    context = ssl.create_default_context() if secure else None

    async def dial(factory: Any) -> tuple[asyncio.BaseTransport, Connection]:
        loop = asyncio.get_running_loop()
        return await loop.create_connection(factory, parts.hostname or "", port, ssl=context)

    return dial
