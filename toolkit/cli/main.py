"""`toolkit`: parses, wires the command groups, and turns every error into one line and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from toolkit.cli import bench, client, console, demo, models, oracle, parity, profile, serve
from toolkit.cli.console import Exit

HELP = """Multimodal models that compute what their reference computes, served and measured.

Start here:

  toolkit demo                      real weights, served, measured

  toolkit models                    what there is

  toolkit serve whisper_tiny_en     an OpenAI-compatible server

  toolkit parity whisper_tiny_en    compared with its reference

  toolkit bench whisper_tiny_en     how fast it is
"""
EPILOG = (
    "Exit codes: 0 done, 1 the answer is no, 2 the command is written wrongly, "
    "3 something outside is missing, 130 stopped. Server settings may also come from TOOLKIT_* variables."
)

# Errors that say no, by name: their modules are too heavy to import for a comparison.
ANSWERS = {"APIError", "NotAccepted", "RecordingFailed", "EnvironmentRefused"}

app = typer.Typer(
    help=HELP,
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for group in (demo, models, serve, client, parity, oracle, bench, profile):
    group.register(app)


def run(arguments: Sequence[str]) -> int:
    """Run a command line; its exit code."""
    try:
        code = app(list(arguments), standalone_mode=False)
    except KeyboardInterrupt:
        return Exit.STOPPED
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else Exit.NO
    except Exception as error:
        return _explain(error)
    return code if isinstance(code, int) else Exit.OK


def _explain(error: Exception) -> int:
    """One line for every error that is not a fault of ours; those keep their traceback."""
    if type(error).__name__ == "Abort":
        return Exit.STOPPED
    code = Exit.USAGE if hasattr(error, "format_message") else _code(error)
    if code is None:
        raise error
    text = error.format_message() if hasattr(error, "format_message") else str(error)
    if text:
        console.fail(text)
    return code


def _code(error: Exception) -> Exit | None:
    from serving.errors import BadRequest, ToolkitError

    if isinstance(error, console.UsageError | BadRequest):
        return Exit.USAGE
    if isinstance(error, console.OutsideError | ToolkitError | OSError):
        return Exit.OUTSIDE
    if type(error).__name__ in ANSWERS:
        return Exit.NO
    return Exit.OUTSIDE if type(error).__module__.startswith("httpx") else None


def main() -> None:
    """The console script."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
