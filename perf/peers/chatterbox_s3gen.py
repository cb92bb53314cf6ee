"""chatterbox-tts's S3Gen in the recorder's environment: writes its random weights, then speaks as often as asked."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from safetensors.torch import save_file
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
STUBS = {"onnx": "no checkpoint of that format is read", "pyloudnorm": "no clip is levelled"}


def package() -> Any:
    """The package's module, without torchaudio's compiled half, which needs CUDA."""
    sys.path.append(str(ROOT))
    from oracles import stubs

    sys.path.remove(str(ROOT))
    stubs.install(STUBS)
    glob = Path.glob
    with mock.patch.object(Path, "glob", lambda path, name: [] if name.endswith(".so") else glob(path, name)):
        from chatterbox.models.s3gen import s3gen
    return s3gen


def inputs(tokens: int, prompt: int) -> dict[str, Tensor]:
    return {
        "tokens": torch.randint(0, 6561, (tokens,)),
        "prompt_token": torch.randint(0, 6561, (1, prompt)),
        "prompt_feat": torch.randn(1, 2 * prompt, 80),
        "embedding": torch.randn(1, 192),
    }


def main(folder: Path, tokens: int, prompt: int, steps: int, threads: int) -> None:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = package().S3Token2Wav().eval()
    given = inputs(tokens, prompt)
    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, folder / "s3gen.safetensors")
    save_file(given, folder / "inputs.safetensors")
    said = given.pop("tokens")
    voice = {**given, "prompt_token_len": torch.tensor([prompt]), "prompt_feat_len": None}
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        began, busy = time.monotonic(), time.process_time()
        for _ in range(int(line)):
            model.inference(said, ref_dict=dict(voice), n_cfm_timesteps=steps)
        print(json.dumps({"seconds": time.monotonic() - began, "cpu": time.process_time() - busy}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
