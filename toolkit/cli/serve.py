"""`toolkit serve`: load keys, start the server, print its address once it takes requests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from toolkit.cli import console

KeyList = Annotated[list[str], typer.Argument(help="Registry keys, config names or YAML files.", metavar="KEY...")]


def serve(
    keys: KeyList,
    host: Annotated[str | None, typer.Option(help="Address to listen on; 127.0.0.1 unless given.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 8000 unless given, 0 takes a free one.")] = None,
    settings: Annotated[Path | None, typer.Option(help="YAML file of server settings.")] = None,
    numerics: Annotated[str | None, typer.Option(help="invariant or fast.")] = None,
    profile: Annotated[str | None, typer.Option(help="exact, default or fast.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...")] = None,
    max_concurrent_requests: Annotated[int | None, typer.Option(help="Requests running at once, for each key.")] = None,
    queue_size: Annotated[int | None, typer.Option(help="Requests that may wait; one more gets a 503.")] = None,
    weights: Annotated[str | None, typer.Option(help="Folder of weights instead of the key's source.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    experimental: Annotated[bool, typer.Option("--experimental", help="Allow keys whose port is not done.")] = False,
) -> None:
    """Serve one or more keys behind OpenAI's routes. The address is printed when the server is ready.

    Examples:

      toolkit serve whisper_tiny_en

      toolkit serve whisper_tiny_en kokoro --port 0 --numerics invariant

      TOOLKIT_API_KEYS=secret toolkit serve configs/whisper_tiny_en.yaml --host 0.0.0.0

    Then, from anywhere:

      curl -F file=@speech.wav -F model=whisper_tiny_en http://127.0.0.1:8000/v1/audio/transcriptions
    """
    from serving.settings import load_settings

    server = load_settings(settings, host=host, port=port, queue_size=queue_size, log_level=log_level)
    from serving.api.server import bind
    from serving.api.server import serve as run
    from toolkit.deploy import build, deployments

    chosen = deployments(
        keys,
        experimental=experimental,
        numerics=numerics,
        profile=profile,
        device=device,
        max_concurrent_requests=max_concurrent_requests,
        weights=weights,
    )
    at = bind(server)
    app = build(chosen, server, progress=console.say)
    names = ", ".join(one.model for one in chosen)
    run(app, server, lambda url: console.write(f"Serving {names} at {url}"), at)


def register(app: typer.Typer) -> None:
    app.command("serve", no_args_is_help=True)(serve)
