"""A Python client of a toolkit server, sync (`Client`) and async (`AsyncClient`). Imports no torch.

    with Client("http://127.0.0.1:8000") as client:
        print(client.transcribe("speech.wav")["text"])
        Path("hello.wav").write_bytes(client.speak("Hello.", voice="af_heart"))

Both have the same methods; where no `model` is given, the first loaded one that serves the route is used. What the
server refuses is an `APIError` with the server's own message.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Generic, TypeVar, cast

import httpx

T = TypeVar("T")
File = str | Path | bytes | tuple[str, bytes] | IO[bytes]
DEFAULT_URL = "http://127.0.0.1:8000"
TIMEOUT = httpx.Timeout(600.0, connect=10.0)


class APIError(Exception):
    """What the server answered instead of a result."""

    def __init__(self, status: int, error: Mapping[str, Any], request_id: str | None = None) -> None:
        super().__init__(f"{error.get('message') or 'no message'} (HTTP {status})")
        self.status, self.request_id = status, request_id
        self.message, self.type = error.get("message"), error.get("type")
        self.param, self.code = error.get("param"), error.get("code")


@dataclass(frozen=True, slots=True)
class Ask(Generic[T]):
    """One request as data, and how to read its response."""

    path: str
    read: Callable[[httpx.Response], T]
    json: dict[str, Any] | None = None
    data: dict[str, Any] | None = None
    files: list[tuple[str, tuple[str, bytes | IO[bytes]]]] = field(default_factory=list)

    @property
    def body(self) -> dict[str, Any]:
        fields = self.json if self.json is not None else self.data
        assert fields is not None
        return fields

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of httpx."""
        if self.json is not None:
            return {"json": self.json}
        return {"data": self.data, "files": self.files}


class Requests:
    """Every method as an `Ask`; `Client` and `AsyncClient` only send them."""

    @staticmethod
    def transcribe(file: File, *, translate: bool = False, **fields: Any) -> Ask[Any]:
        """Text of speech. The result is a dict for json and verbose_json, else the text of the format."""
        path = "/v1/audio/translations" if translate else "/v1/audio/transcriptions"
        return Ask(path, _json_or_text, data=_form(fields), files=[("file", _upload(file))])

    @staticmethod
    def speak(text: str, *, voice: str = "default", response_format: str = "wav", **fields: Any) -> Ask[bytes]:
        """Speech of a text, as a file of `response_format`."""
        body = {"input": text, "voice": voice, "response_format": response_format, **fields}
        return Ask("/v1/audio/speech", _bytes, json=body)

    @staticmethod
    def chat(messages: str | Sequence[Mapping[str, Any]], **fields: Any) -> Ask[dict[str, Any]]:
        """A chat completion; a string stands for one user message."""
        said = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        return Ask("/v1/chat/completions", _dict, json={"messages": said, **fields})

    @staticmethod
    def generate_image(prompt: str, **fields: Any) -> Ask[list[bytes]]:
        """Image files for a prompt."""
        return Ask("/v1/images/generations", _media, json={"prompt": prompt, **fields})

    @staticmethod
    def edit_image(image: File | Sequence[File], prompt: str, **fields: Any) -> Ask[list[bytes]]:
        """Image files made from an image, or several, and a prompt."""
        images: list[File] = [*image] if isinstance(image, list) else [cast(File, image)]
        files = [("image[]" if len(images) > 1 else "image", _upload(one)) for one in images]
        return Ask("/v1/images/edits", _media, data=_form({"prompt": prompt, **fields}), files=files)

    @staticmethod
    def generate_video(prompt: str, *, image: File | None = None, **fields: Any) -> Ask[list[bytes]]:
        """Video files for a prompt, with or without a first image."""
        files = [("image", _upload(image))] if image is not None else []
        if files:
            return Ask("/v1/videos/generations", _media, data=_form({"prompt": prompt, **fields}), files=files)
        return Ask("/v1/videos/generations", _media, json={"prompt": prompt, **fields})

    @staticmethod
    def generate(text: str | None = None, *, audio: File | None = None, **fields: Any) -> Ask[dict[str, Any]]:
        """Any model's own outputs by port, through `/generate`."""
        given = {**({} if text is None else {"text": text}), **fields}
        if audio is not None:
            return Ask("/generate", _dict, data=_form(given), files=[("audio", _upload(audio))])
        return Ask("/generate", _dict, json=given)


class Client:
    """The synchronous client. Usable as a context manager."""

    def __init__(self, url: str = DEFAULT_URL, *, api_key: str | None = None, **options: Any) -> None:
        self.http = httpx.Client(**_options(url, api_key, options))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.http.close()

    def models(self) -> list[dict[str, Any]]:
        """What is loaded, with capabilities."""
        return list(_dict(self.http.get("/v1/models"))["data"])

    def ready(self) -> bool:
        """Whether the server takes requests now."""
        try:
            return self.http.get("/health/ready").status_code == 200
        except httpx.TransportError:
            return False

    def send(self, ask: Ask[T]) -> T:
        """Send a request and read its response. Raises `APIError`."""
        self._choose_model(ask)
        return ask.read(self.http.post(ask.path, **ask.arguments()))

    def transcribe(self, file: File, **fields: Any) -> Any:
        return self.send(Requests.transcribe(file, **fields))

    def speak(self, text: str, **fields: Any) -> bytes:
        return self.send(Requests.speak(text, **fields))

    def chat(self, messages: str | Sequence[Mapping[str, Any]], **fields: Any) -> dict[str, Any]:
        return self.send(Requests.chat(messages, **fields))

    def generate_image(self, prompt: str, **fields: Any) -> list[bytes]:
        return self.send(Requests.generate_image(prompt, **fields))

    def edit_image(self, image: File | Sequence[File], prompt: str, **fields: Any) -> list[bytes]:
        return self.send(Requests.edit_image(image, prompt, **fields))

    def generate_video(self, prompt: str, **fields: Any) -> list[bytes]:
        return self.send(Requests.generate_video(prompt, **fields))

    def generate(self, text: str | None = None, **fields: Any) -> dict[str, Any]:
        return self.send(Requests.generate(text, **fields))

    def stream(self, method: str, *args: Any, **fields: Any) -> Iterator[Any]:
        """The same request with its answer as it is made: bytes of audio, or events as dicts.

        `client.stream("chat", "Hello")`, `client.stream("speak", "Hello.", response_format="pcm")`.
        """
        ask: Ask[Any] = getattr(Requests, method)(*args, **{**fields, "stream": True})
        self._choose_model(ask)
        with self.http.stream("POST", ask.path, **ask.arguments()) as response:
            if response.is_error:
                response.read()
            _check(response)
            if _is_audio(response):
                yield from response.iter_raw()
                return
            for line in response.iter_lines():
                yield from _events(line, response)

    def _choose_model(self, ask: Ask[Any]) -> None:
        if not ask.body.get("model"):
            ask.body["model"] = _serving(self.models(), ask.path)


class AsyncClient:
    """The asynchronous client. Usable as an async context manager."""

    def __init__(self, url: str = DEFAULT_URL, *, api_key: str | None = None, **options: Any) -> None:
        self.http = httpx.AsyncClient(**_options(url, api_key, options))

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self.http.aclose()

    async def models(self) -> list[dict[str, Any]]:
        """What is loaded, with capabilities."""
        return list(_dict(await self.http.get("/v1/models"))["data"])

    async def ready(self) -> bool:
        """Whether the server takes requests now."""
        try:
            return (await self.http.get("/health/ready")).status_code == 200
        except httpx.TransportError:
            return False

    async def send(self, ask: Ask[T]) -> T:
        """Send a request and read its response. Raises `APIError`."""
        await self._choose_model(ask)
        return ask.read(await self.http.post(ask.path, **ask.arguments()))

    async def transcribe(self, file: File, **fields: Any) -> Any:
        return await self.send(Requests.transcribe(file, **fields))

    async def speak(self, text: str, **fields: Any) -> bytes:
        return await self.send(Requests.speak(text, **fields))

    async def chat(self, messages: str | Sequence[Mapping[str, Any]], **fields: Any) -> dict[str, Any]:
        return await self.send(Requests.chat(messages, **fields))

    async def generate_image(self, prompt: str, **fields: Any) -> list[bytes]:
        return await self.send(Requests.generate_image(prompt, **fields))

    async def edit_image(self, image: File | Sequence[File], prompt: str, **fields: Any) -> list[bytes]:
        return await self.send(Requests.edit_image(image, prompt, **fields))

    async def generate_video(self, prompt: str, **fields: Any) -> list[bytes]:
        return await self.send(Requests.generate_video(prompt, **fields))

    async def generate(self, text: str | None = None, **fields: Any) -> dict[str, Any]:
        return await self.send(Requests.generate(text, **fields))

    async def stream(self, method: str, *args: Any, **fields: Any) -> AsyncIterator[Any]:
        """As `Client.stream`."""
        ask: Ask[Any] = getattr(Requests, method)(*args, **{**fields, "stream": True})
        await self._choose_model(ask)
        async with self.http.stream("POST", ask.path, **ask.arguments()) as response:
            if response.is_error:
                await response.aread()
            _check(response)
            if _is_audio(response):
                async for data in response.aiter_raw():
                    yield data
                return
            async for line in response.aiter_lines():
                for event in _events(line, response):
                    yield event

    async def _choose_model(self, ask: Ask[Any]) -> None:
        if not ask.body.get("model"):
            ask.body["model"] = _serving(await self.models(), ask.path)


def _options(url: str, api_key: str | None, options: dict[str, Any]) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    return {"base_url": url, "headers": headers, "timeout": TIMEOUT, **options}


def _serving(models: Sequence[Mapping[str, Any]], path: str) -> str:
    for model in models:
        if path in model["capabilities"]["routes"]:
            return str(model["id"])
    loaded = ", ".join(str(model["id"]) for model in models) or "none"
    raise APIError(404, {"message": f"No loaded model serves {path}; loaded: {loaded}.", "code": "route_not_served"})


def _upload(file: File) -> tuple[str, bytes | IO[bytes]]:
    if isinstance(file, tuple):
        return file
    if isinstance(file, bytes):
        return "upload", file
    if isinstance(file, str | Path):
        return Path(file).name, Path(file).read_bytes()
    return Path(str(getattr(file, "name", "upload"))).name, file


def _form(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Form values: lists under "name[]", other JSON as text."""
    form: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, list | tuple):
            form[f"{name}[]"] = [str(one) for one in value]
        elif value is not None:
            form[name] = value if isinstance(value, str) else json.dumps(value)
    return form


def _check(response: httpx.Response) -> None:
    if not response.is_error:
        return
    try:
        error = response.json()["error"]
    except (ValueError, KeyError, TypeError):
        error = {"message": response.text[:200]}
    raise APIError(response.status_code, error, response.headers.get("x-request-id"))


def _bytes(response: httpx.Response) -> bytes:
    _check(response)
    return response.content


def _dict(response: httpx.Response) -> dict[str, Any]:
    _check(response)
    return dict(response.json())


def _json_or_text(response: httpx.Response) -> Any:
    _check(response)
    return response.json() if response.headers["content-type"].startswith("application/json") else response.text


def _media(response: httpx.Response) -> list[bytes]:
    return [base64.b64decode(item["b64_json"]) for item in _dict(response)["data"]]


def _is_audio(response: httpx.Response) -> bool:
    return response.headers["content-type"].startswith(("audio/", "video/"))


def _events(line: str, response: httpx.Response) -> Iterator[dict[str, Any]]:
    """The event of one line of SSE or NDJSON, if there is one; an error in-band is raised."""
    text = line.removeprefix("data: ") if line.startswith("data: ") else line if line.startswith("{") else ""
    if not text or text == "[DONE]":
        return
    event = json.loads(text)
    if event.get("error"):
        raise APIError(response.status_code, event["error"], response.headers.get("x-request-id"))
    yield event
