"""CTranslate2, Whisper in C++ of its own, on real tiny.en: greedy tokens and their logits in float32.

It runs in a process without torch: each brings an OpenMP runtime. Its input is openai-whisper's log-mel.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import soundfile
import torch
from whisper.audio import log_mel_spectrogram, pad_or_trim

from oracles import speech
from parity.harness.record import Recording

CASES = {"tiny_en_real": {"clips": 3, "prompt": [50_257, 50_362], "needs": ["model", "config", "tokenizer"]}}
LOGIT_STRIDE = 29
RUN = """
import json, sys
import ctranslate2, numpy
folder, mel, out, prompt = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
model = ctranslate2.models.Whisper(folder, compute_type="float32", intra_threads=1)
mels = numpy.load(mel)
for index in range(len(mels)):
    (found,) = model.generate(
        ctranslate2.StorageView.from_array(mels[index : index + 1]),
        [prompt],
        beam_size=1,
        suppress_blank=False,
        suppress_tokens=[],
        return_logits_vocab=True,
    )
    logits = numpy.stack([numpy.array(step) for step in found.logits[0]])
    numpy.savez(f"{out}/{index}.npz", ids=found.sequences_ids[0], logits=logits)
"""


def vocabulary(tokenizer: Path) -> list[str]:
    """Tokens by id, which CTranslate2 reads from a file of their own."""
    held = json.loads(tokenizer.read_text())
    ids = dict(held["model"]["vocab"]) | {token["content"]: token["id"] for token in held["added_tokens"]}
    return sorted(ids, key=ids.__getitem__)


def checkpoint(case: Recording, folder: Path) -> None:
    """The packaged files as CTranslate2 wants them."""
    (folder / "model.bin").symlink_to(case.external("model"))
    (folder / "config.json").symlink_to(case.external("config"))
    (folder / "vocabulary.json").write_text(json.dumps(vocabulary(case.external("tokenizer"))))


def record(case: Recording) -> None:
    sounds = [soundfile.read(one.path, dtype="int16")[0] for one in speech.clips()[: case.config["clips"]]]
    mels = []
    for index, samples in enumerate(sounds):
        case.inputs(**{f"audio_{index}": torch.from_numpy(samples)})
        heard = torch.from_numpy(samples).float() / 32768.0
        mels.append(pad_or_trim(log_mel_spectrogram(heard, padding=480_000), 3000).numpy())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        checkpoint(case, folder)
        np.save(folder / "mel.npy", np.stack(mels))
        arguments = [str(folder), str(folder / "mel.npy"), name, json.dumps(case.config["prompt"])]
        subprocess.run([sys.executable, "-c", RUN, *arguments], check=True)
        found = [np.load(folder / f"{index}.npz") for index in range(len(sounds))]
    case.values["tokens"] = [one["ids"].tolist() for one in found]
    for index, one in enumerate(found):
        case.outputs(stride=LOGIT_STRIDE, **{f"logits_{index}": torch.from_numpy(one["logits"].astype(np.float32))})
