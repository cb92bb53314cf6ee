"""OpenAI's routes as the bench uses them: a workload's item to request bytes, a response to its reader."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpx

from perf.client.artefacts import OutputReader, PictureReader
from perf.client.clock import Clock
from perf.client.http import Dial, Pool
from perf.client.live import Dialogue, Generate, Output, Realtime, converse
from perf.client.readers import AudioReader, Reader, TextReader
from perf.schema import Record
from perf.workloads.base import Item
from serving.errors import BadRequest, nearest

PATHS = {
    "speech": "/v1/audio/speech",
    "transcription": "/v1/audio/transcriptions",
    "chat": "/v1/chat/completions",
    "image": "/v1/images/generations",
    "video": "/v1/videos/generations",
    "generate": "/generate",
    "live": "/generate/ws",
    "realtime": "/v1/realtime",
}
READERS: Mapping[str, type[Reader]] = {
    "speech": AudioReader,
    "transcription": TextReader,
    "chat": TextReader,
    "image": PictureReader,
    "video": PictureReader,
    "generate": OutputReader,
}
SESSIONS = ("live", "realtime")
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "speech": {"response_format": "wav", "stream": True},
    "transcription": {"response_format": "json"},
    "chat": {"stream": True, "stream_options": {"include_usage": True}},
    "image": {},
    "video": {},
    "generate": {"stream": True},
    "live": {},
    "realtime": {},
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
        self._clock, self._dial = clock, dial or _dialler(target.url)
        self._pool = Pool(clock, self._dial)

    def prepare(self, items: list[Item]) -> None:
        """Encode the requests before anything is measured."""
        if self.route not in SESSIONS:
            self._encoded = {item.id: self._encode(item) for item in items}

    async def __call__(self, item: Item, record: Record) -> None:
        """Send and fill the record; raises `RequestFailed`."""
        keep = item.id in self.keep
        record.part, fields = item.part, {**self._body, **item.body}
        if fields.get("ignore_eos"):
            record.wanted = fields.get("max_tokens")
        if item.seconds is not None:
            record.input_seconds, record.reference = item.seconds, item.text or None
        if self.route in SESSIONS:
            return await self._converse(item, record, keep)
        reader = READERS[self.route](record, declared_rate=self._declared_rate, keep=keep)
        await self._pool.send(self._encoded.get(item.id) or self._encode(item), reader)
        reader.finish()
        if reader.kept is not None:
            self.outputs[record.digest or ""] = bytes(reader.kept)

    async def _converse(self, item: Item, record: Record, keep: bool) -> None:
        """A live session."""
        if item.stream is None:
            raise BadRequest(f"The {self.route} route needs a workload of streams.", param="workload")
        output, url = Output(record, keep), "ws" + self.target.url.rstrip("/").removeprefix("http") + PATHS[self.route]
        talk: Dialogue = Realtime(output, item.stream)
        if self.route == "realtime":
            url += f"?{urlencode({'model': self.target.model})}"
        else:
            talk = Generate(output, item.stream, self._fields(item))
        await converse(self._dial, url, self.target.headers(), self._clock, item.stream, talk, record)
        output.finish()
        if output.kept is not None:
            self.outputs[record.digest or ""] = bytes(output.kept)

    def _fields(self, item: Item) -> dict[str, Any]:
        fields = {"model": self.target.model, **self._body, **item.body}
        return {name: value for name, value in fields.items() if value is not None}  # None: leave a default out

    def close(self) -> None:
        self._pool.close()

    def _encode(self, item: Item) -> bytes:
        request = httpx.Request(
            "POST",
            self.target.url.rstrip("/") + PATHS[self.route],
            headers={"accept": "*/*", **self.target.headers()},
            **_content(self.route, item, self._fields(item)),
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
    if route in ("image", "video"):
        return {"json": {**fields, "prompt": item.text, **_picture(item, "image")}}
    if route == "generate":
        return {"json": {**fields, "text": item.text, **_picture(item, "image")}}
    shown = [{"type": "image_url", "image_url": {"url": url}} for url in _picture(item, "url").values()]
    content = [{"type": "text", "text": item.text}, *shown] if shown else item.text
    return {"json": {**fields, "messages": [{"role": "user", "content": content}]}}


def _picture(item: Item, name: str) -> dict[str, str]:
    """An item's picture as a data URL."""
    return {name: f"data:image/png;base64,{base64.b64encode(item.image).decode()}"} if item.image else {}


def _form(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _dialler(url: str) -> Dial:
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    context = ssl.create_default_context() if secure else None

    async def dial(factory: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.create_connection(factory, parts.hostname or "", port, ssl=context)

    return dial
