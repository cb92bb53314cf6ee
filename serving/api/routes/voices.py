"""`/v1/audio/voices`: what can be spoken here; upload and delete clips for models that take a reference."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from serving.api.media.decode import decode_audio
from serving.api.run import Call
from serving.api.state import Api, Spec
from serving.api.voices import Uploaded, Voiced
from serving.errors import TooLarge
from serving.strict import check


class Upload(BaseModel):
    """Fields of an upload, the clip aside."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(min_length=1, max_length=64)]
    text: Annotated[str, Field(max_length=4096)] = ""  # what the clip says, for models that need it
    type: Literal["audio_sample"] = "audio_sample"
    consent: str | None = None  # OpenAI's; accepted without effect


async def voices(request: Request) -> Response:
    """Every voice with the models that speak it."""
    api: Api = request.app.state.api
    own: dict[str, list[str]] = {}
    for key, loaded in api.models.items():
        if isinstance(loaded.model, Voiced):
            for name in loaded.model.voices():
                own.setdefault(name, []).append(key)
    data: list[dict[str, Any]] = [
        {"id": n, "name": n, "object": "audio.voice", "models": keys} for n, keys in own.items()
    ]
    return JSONResponse({"object": "list", "data": data + [_shown(voice) for voice in api.voices.list()]})


async def upload(call: Call) -> Response:
    """Keep a clip as a voice."""
    fields = check(Upload, call.body.fields, text=True)
    file = call.body.file("audio_sample")
    limit = call.api.settings.limits.voice_bytes
    if (file.size or 0) > limit:
        raise TooLarge(f'"audio_sample" is larger than the limit of {limit} bytes.', param="audio_sample")
    if fields.consent is not None:
        call.ignore("consent")
    audio = await call.host(decode_audio, file.file, call.api.settings.limits, "audio_sample")
    return JSONResponse(_shown(await call.host(call.api.voices.add, fields.name, audio, fields.text)))


async def delete(request: Request) -> Response:
    """Forget an uploaded voice."""
    api: Api = request.app.state.api
    name = request.path_params["name"]
    api.voices.remove(name)
    return JSONResponse({"id": name, "object": "audio.voice.deleted", "deleted": True})


def _shown(voice: Uploaded) -> dict[str, Any]:
    shown = asdict(voice)
    return {"id": voice.name, "object": "audio.voice", "created_at": shown.pop("created"), "uploaded": True, **shown}


ROUTES = (
    Spec("/v1/audio/voices", voices, summary="The voices of this server"),
    Spec(
        "/v1/audio/voices",
        upload,
        "POST",
        encodings=("form",),
        files={"audio_sample": True},
        schema=Upload,
        summary="Upload a voice",
    ),
    Spec("/v1/audio/voices/{name}", delete, "DELETE", summary="Delete an uploaded voice"),
)
