"""Typed settings: what a server is asked for (`ServerSettings`) and what a deployment is (`Deployment`).

One loader each. Precedence of server settings: command line, environment (TOOLKIT_*, nested with `__`), YAML file,
defaults. A key that no setting has is an error everywhere; it names the nearest valid one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from serving.errors import BadRequest, SetupError, nearest
from serving.strict import check, explain, unknown

if TYPE_CHECKING:
    from serving.core.contract import Options

ENV_PREFIX = "TOOLKIT_"
CLIENT_VARIABLES = ("TOOLKIT_API_KEY",)  # read by the command line for its clients, not by a server
ROOT = Path(__file__).resolve().parent.parent
CONFIG_FOLDERS = (ROOT / "toolkit" / "configs", ROOT / "configs")  # in the wheel; in the repository

Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Limits(Section):
    """The most that one request may bring or ask for; shown by `/v1/server_info`."""

    json_bytes: Count = 32 << 20
    upload_bytes: Count = 512 << 20
    message_bytes: Count = 4 << 20  # one WebSocket message
    form_fields: Count = 64
    field_bytes: Count = 1 << 20
    audio_seconds: Seconds = 4 * 3600.0
    decoded_bytes: Count = 1 << 30  # float32 samples after decoding
    channels: Count = 8
    sample_rate: Count = 384_000
    text_chars: Count = 100_000
    images: Count = 16
    image_pixels: Count = 1 << 24
    videos: Count = 4
    video_frames: Count = 4096
    n: Count = 10
    voice_bytes: Count = 10 << 20
    voice_seconds: Seconds = 60.0
    voices: Count = 1000


class Timeouts(Section):
    """Seconds each phase of a request may take."""

    body: Seconds = 300.0  # between two chunks of a body
    queue: Seconds = 120.0
    first_output: Seconds = 600.0
    idle_output: Seconds = 120.0
    idle_input: Seconds = 60.0
    slow_client: Seconds = 30.0  # a client that does not read


class MediaOptions(Section):
    """Where media may come from besides the request itself, and where voices are kept."""

    remote_hosts: tuple[str, ...] = ()  # "host" or "host:port" that media URLs may name; none: URLs are refused
    remote_seconds: Seconds = 10.0
    remote_bytes: Count = 32 << 20
    voices: Path | None = None  # folder of uploaded voices; None: uploads are refused


class ServerSettings(BaseSettings):
    """One server process."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True)

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    api_keys: Annotated[tuple[SecretStr, ...], NoDecode] = ()
    queue_size: Annotated[int, Field(ge=0)] = 64
    drain_seconds: Annotated[float, Field(ge=0)] = 30.0
    workers: Count = 4  # threads that decode and encode media
    lanes: Count | None = None  # steps that run at once; None: as many as cores, where the models' steps can
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    limits: Limits = Limits()
    timeouts: Timeouts = Timeouts()
    media: MediaOptions = MediaOptions()
    memory_bytes: Count | None = None  # most that all models together may hold on their device
    weights: Path | None = None  # folder of real weights that no package ships
    cache: Path | None = None  # folder of converted weights

    @field_validator("api_keys", mode="before")
    @classmethod
    def _split_keys(cls, value: Any) -> Any:
        return tuple(key for key in value.split(",") if key) if isinstance(value, str) else value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)  # `load_settings` is the only reader of the environment


class Deployment(Section):
    """One `configs/<name>.yaml`: a registry key and how to run it."""

    model: str
    numerics: Literal["invariant", "fast"] = "fast"
    profile: Literal["exact", "default", "fast"] = "default"
    device: Annotated[str, Field(pattern=r"^(cpu|mps|(cuda|xpu)(:\d+)?)$")] = "cpu"
    max_concurrent_requests: Count = 8
    capture: Literal["eager", "static"] = "eager"  # steps at their exact size, or padded to declared buckets
    resources: dict[str, dict[str, Any]] = {}
    admission: dict[str, Literal["worst_case", "expected"]] = {}  # by resource; `expected` overbooks, and preempts
    options: dict[str, Any] = {}  # the port's own
    weights: str | None = None
    parity: str | None = None  # a parity.json, whose finding on this key `/v1/models` shows

    def to_options(self) -> Options:
        """What the port is built with."""
        from serving.core.contract import Options  # brings torch, which reading settings does not need

        return Options(
            device=self.device,
            profile=self.profile,
            numerics=self.numerics,
            capture=self.capture,
            rows=self.max_concurrent_requests,
            weights=self.weights,
            resources=self.resources,
            admission=self.admission,
            model=self.options,
        )


def load_settings(file: Path | None = None, **overrides: Any) -> ServerSettings:
    """Server settings from the command line (`overrides`; None: not given), environment, file and defaults."""
    refuse_unknown_environment(os.environ)
    given = {name: value for name, value in overrides.items() if value is not None}
    environment = EnvSettingsSource(ServerSettings)()
    try:
        return ServerSettings(**_merge(_merge(read_yaml(file) if file else {}, environment), given))
    except ValidationError as error:
        found = explain(error, ServerSettings)
        raise SetupError(f"Server settings: {found.message}", param=found.param) from None


def refuse_unknown_environment(environment: Mapping[str, str]) -> None:
    """`SetupError` for a TOOLKIT_ variable that no setting has."""
    valid = {*CLIENT_VARIABLES, *(ENV_PREFIX + name.upper() for name in _paths(ServerSettings))}
    for name in environment:
        if name.startswith(ENV_PREFIX) and name.upper() not in valid:
            raise SetupError(f'Unknown environment variable "{name}".{nearest(name, valid)}', param=name)


def config_files() -> dict[str, Path]:
    """Deployment name -> its YAML; what the repository has overrides what is installed."""
    return {path.stem: path for folder in CONFIG_FOLDERS for path in sorted(folder.glob("*.yaml"))}


def load_deployment(name: str, **overrides: Any) -> Deployment:
    """The deployment of a path, of a config's name, or, for a name without a config, the key with the defaults."""
    path = Path(name)
    if path.suffix not in {".yaml", ".yml"}:
        path = config_files().get(name, path)
    given = {key: value for key, value in overrides.items() if value is not None}
    data = read_yaml(path) if path.suffix in {".yaml", ".yml"} else {"model": name}
    try:
        for key in data:
            if key not in Deployment.model_fields:
                raise unknown(str(key), Deployment.model_fields)
        return check(Deployment, {**data, **given})
    except BadRequest as error:
        raise SetupError(f"{path}: {error.message}", param=error.param) from None


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file whose top is a mapping."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SetupError(f"{path}: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise SetupError(f"{path}: not YAML: {error}") from None
    if data is not None and not isinstance(data, dict):
        raise SetupError(f"{path}: expected a mapping, found {type(data).__name__}")
    return data or {}


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        held = merged.get(key)
        merged[key] = _merge(held, value) if isinstance(held, dict) and isinstance(value, dict) else value
    return merged


def _paths(model: type[BaseModel]) -> Iterator[str]:
    for name, info in model.model_fields.items():
        yield name
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield from (f"{name}__{inner}" for inner in _paths(info.annotation))
