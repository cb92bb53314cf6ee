"""What chatterbox-tts loads a published checkpoint from, and how it speaks where it is told nothing.

Each model is made as its users make it, with the hub and the networks replaced: the files that it asks the hub for,
those that it opens, the names and shapes of the tensors that its networks have at their real sizes, the defaults of
`generate`, and how much of a clip it hears.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from chatterbox import mtl_tts, tts, tts_turbo
from chatterbox.models.t3.t3 import T3
from chatterbox.models.voice_encoder import VoiceEncoder

from parity.harness.record import Recording

CASES = {
    "chatterbox": {"class": "ChatterboxTTS"},
    "chatterbox_multilingual": {"class": "ChatterboxMultilingualTTS"},
    "chatterbox_turbo": {"class": "ChatterboxTurboTTS"},
}
MODULES: dict[str, ModuleType] = {
    "chatterbox": tts,
    "chatterbox_multilingual": mtl_tts,
    "chatterbox_turbo": tts_turbo,
}
REPLACED = (
    "T3", "S3Gen", "VoiceEncoder", "EnTokenizer", "MTLTokenizer", "AutoTokenizer", "load_file", "load_safetensors",
    "hf_hub_download", "snapshot_download", "perth",
)  # fmt: skip


@contextlib.contextmanager
def replaced(module: ModuleType, folder: Path) -> Iterator[dict[str, mock.MagicMock]]:
    """The hub and the networks of a module, each a mock that remembers its calls."""
    mocks = {name: mock.MagicMock() for name in REPLACED if hasattr(module, name)}
    if "hf_hub_download" in mocks:
        mocks["hf_hub_download"].side_effect = lambda filename, **_: str(folder / filename)
    if "snapshot_download" in mocks:
        mocks["snapshot_download"].return_value = str(folder)
    mocks["torch.load"] = mock.MagicMock()
    mocks["conds"] = mock.MagicMock()
    with contextlib.ExitStack() as stack:
        for name, made in mocks.items():
            if name not in ("torch.load", "conds"):
                stack.enter_context(mock.patch.object(module, name, made))
        stack.enter_context(mock.patch.object(torch, "load", mocks["torch.load"]))
        stack.enter_context(mock.patch.object(module.Conditionals, "load", mocks["conds"]))
        yield mocks


def asked(mocks: dict[str, mock.MagicMock]) -> dict[str, Any]:
    """The hub's repository, and the files or patterns of it."""
    if "hf_hub_download" in mocks:
        calls = [call.kwargs for call in mocks["hf_hub_download"].call_args_list]
        return {"repository": calls[0]["repo_id"], "files": [call["filename"] for call in calls]}
    given = mocks["snapshot_download"].call_args.kwargs
    return {"repository": given["repo_id"], "files": given["allow_patterns"]}


def opened(mocks: dict[str, mock.MagicMock], folder: Path) -> list[str]:
    """Names of the files that were read, in the folder; "." is the folder itself."""
    readers = [mocks[name] for name in ("load_file", "load_safetensors", "torch.load", "conds") if name in mocks]
    readers += [mocks[name] for name in ("EnTokenizer", "MTLTokenizer") if name in mocks]
    if "AutoTokenizer" in mocks:
        readers.append(mocks["AutoTokenizer"].from_pretrained)
    found = [Path(call.args[0]) for reader in readers for call in reader.call_args_list]
    return sorted(str(path.relative_to(folder)) for path in found)


def shapes(model: torch.nn.Module) -> dict[str, str]:
    return {name: "x".join(map(str, value.shape)) for name, value in model.state_dict().items()}


def record(case: Recording) -> None:
    """A model, as `from_pretrained` makes it."""
    module = MODULES[case.name]
    model = getattr(module, case.config["class"])
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "conds.pt").touch()
        with replaced(module, folder) as mocks:
            model.from_pretrained("cpu")
        case.values |= {**asked(mocks), "opened": opened(mocks, folder)}
    made = mocks["T3"].call_args
    with torch.device("meta"):
        net = T3(*made.args)
    case.values["t3"] = shapes(net)
    case.values["speaker"] = shapes(VoiceEncoder())
    case.values["meanflow"] = bool(mocks["S3Gen"].call_args.kwargs.get("meanflow", False))
    parameters = inspect.signature(model.generate).parameters.values()
    case.values["defaults"] = {p.name: p.default for p in parameters if isinstance(p.default, int | float)}
    case.values["prompt_tokens"] = net.hp.speech_cond_prompt_len
    case.values["prompt_seconds"] = model.ENC_COND_LEN // 16_000
    case.values["heard_seconds"] = model.DEC_COND_LEN // 24_000
    case.values["languages"] = sorted(getattr(module, "SUPPORTED_LANGUAGES", {"en": ""}))
