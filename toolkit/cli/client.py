"""`toolkit transcribe` and `toolkit speak`: one request from the command line, to a server or in this process."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolkit.cli import console

if TYPE_CHECKING:
    from toolkit.client import AsyncClient

Url = Annotated[str | None, typer.Option(help="Server to ask; without it the model runs in this process.")]
Key = Annotated[str | None, typer.Option(envvar="TOOLKIT_API_KEY", help="API key of the server.")]
Experimental = Annotated[bool, typer.Option("--experimental", help="Allow keys whose port is not done.")]
Knob = Annotated[list[str] | None, typer.Option("--set", help="A knob of the model, NAME=VALUE; may be repeated.")]

FORMATS = ("text", "json", "verbose_json", "srt", "vtt")
SUFFIXES = {f".{name}": name for name in ("wav", "flac", "mp3", "opus", "aac", "pcm")} | {".ogg": "opus"}


def transcribe(
    files: Annotated[list[Path], typer.Argument(help="Sound files.", metavar="FILE...")],
    model: Annotated[str, typer.Option(help="Registry key.")] = "whisper_tiny_en",
    fmt: Annotated[str, typer.Option("--format", help=f"One of: {', '.join(FORMATS)}.")] = "text",
    language: Annotated[str | None, typer.Option(help="Language of the speech; without it, detected.")] = None,
    translate: Annotated[bool, typer.Option("--translate", help="Into English.")] = False,
    knobs: Knob = None,
    url: Url = None,
    api_key: Key = None,
    experimental: Experimental = False,
) -> None:
    """Write down what is said in sound files.

    Examples:

      toolkit transcribe speech.wav

      toolkit transcribe *.mp3 --format srt --model whisper

      toolkit transcribe talk.flac --url http://127.0.0.1:8000
    """
    import asyncio

    from serving.errors import nearest

    if fmt not in FORMATS:
        raise console.UsageError(f'No format "{fmt}".{nearest(fmt, FORMATS)}')
    for file in files:
        if not file.is_file():
            beside = [path.name for path in file.parent.glob("*") if path.is_file()]
            raise console.UsageError(f"No file {file}.{nearest(file.name, beside)}")
    fields = {"model": model, "response_format": fmt, "translate": translate, **read_knobs(knobs)}
    if language:
        fields["language"] = language
    asyncio.run(_transcribe(files, fields, url, api_key, experimental))


async def _transcribe(
    files: list[Path], fields: dict[str, Any], url: str | None, api_key: str | None, experimental: bool
) -> None:
    async with reach(url, api_key, fields["model"], experimental) as client:
        for file in files:
            text = await client.transcribe(file, **fields)
            shown = text if isinstance(text, str) else json.dumps(text, ensure_ascii=False, indent=2)
            console.write(f"{file}: {shown}" if len(files) > 1 and fields["response_format"] == "text" else shown)


def speak(
    text: Annotated[str, typer.Argument(help="What to say.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The ending sets the format.")] = Path("speech.wav"),
    voice: Annotated[str, typer.Option(help="Voice of the model.")] = "default",
    model: Annotated[str, typer.Option(help="Registry key.")] = "kokoro",
    speed: Annotated[float, typer.Option(help="0.25 to 4.")] = 1.0,
    knobs: Knob = None,
    url: Url = None,
    api_key: Key = None,
    experimental: Experimental = False,
) -> None:
    """Say a text and write the sound to a file.

    Examples:

      toolkit speak "Hello there." -o hello.wav

      toolkit speak "Good morning." --voice af_heart --speed 0.9 -o hello.mp3 --url http://127.0.0.1:8000
    """
    import asyncio

    from serving.errors import nearest

    fmt = SUFFIXES.get(output.suffix.lower())
    if fmt is None:
        raise console.UsageError(f'No format has the ending "{output.suffix}".{nearest(output.suffix, SUFFIXES)}')
    if not output.parent.is_dir():
        raise console.UsageError(f"No folder {output.parent}.")
    fields = {"model": model, "voice": voice, "response_format": fmt, "speed": speed, **read_knobs(knobs)}

    async def run() -> None:
        async with reach(url, api_key, model, experimental) as client:
            output.write_bytes(await client.speak(text, **fields))
        console.write(str(output))

    asyncio.run(run())


@asynccontextmanager
async def reach(url: str | None, api_key: str | None, model: str, experimental: bool) -> AsyncIterator[AsyncClient]:
    """A client of the server at `url`, or of the model in this process."""
    from toolkit.client import AsyncClient

    if url:
        async with AsyncClient(url, api_key=api_key) as client:
            yield client
        return
    from toolkit.deploy import deployments, local

    async with local(deployments([model], experimental=experimental), console.say) as client:
        yield client


def read_knobs(pairs: list[str] | None) -> dict[str, Any]:
    """`["a=1", "b=x"]` as {"a": 1, "b": "x"}: a value is JSON where it can be."""
    knobs: dict[str, Any] = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise console.UsageError(f'--set wants NAME=VALUE, got "{pair}".')
        try:
            knobs[name] = json.loads(value)
        except ValueError:
            knobs[name] = value
    return knobs


def register(app: typer.Typer) -> None:
    app.command("transcribe", no_args_is_help=True)(transcribe)
    app.command("speak", no_args_is_help=True)(speak)
