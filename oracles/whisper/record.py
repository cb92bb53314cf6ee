"""openai-whisper, network and greedy decoding, on tiny random weights and on the real tiny.en.

`tiny_en` has a short window, so that every tap is kept whole; `tiny_en_30s` is the same network with the real window
of 30 s, for what depends on it; `tiny_multilingual_30s` also detects the language and translates; `tiny_en_real` hears
the packaged speech, and needs the float weights of tiny.en under openai-whisper's names.
"""

from __future__ import annotations

import numpy as np
import soundfile
import torch
import whisper
from safetensors.torch import load_file
from torch import Tensor, nn
from whisper.audio import SAMPLE_RATE, log_mel_spectrogram, pad_or_trim
from whisper.decoding import DecodingOptions
from whisper.model import ModelDimensions, Whisper
from whisper.tokenizer import get_tokenizer

from oracles import speech
from parity.harness import Spec, recipe_for
from parity.harness.record import Recording
from parity.harness.tokens import noise_floor

HEARD = ("query", "key", "value", "out")
CASES = {
    "tiny_en": {
        "seed": 7,
        "seconds": 0.64,
        "dims": {
            "n_mels": 80,
            "n_audio_ctx": 32,
            "n_audio_state": 64,
            "n_audio_head": 2,
            "n_audio_layer": 2,
            "n_vocab": 51864,
            "n_text_ctx": 48,
            "n_text_state": 64,
            "n_text_head": 2,
            "n_text_layer": 2,
        },
    },
    "tiny_en_30s": {
        "seed": 7,
        "seconds": 3.0,
        "dims": {
            "n_mels": 80,
            "n_audio_ctx": 1500,
            "n_audio_state": 64,
            "n_audio_head": 2,
            "n_audio_layer": 2,
            "n_vocab": 51864,
            "n_text_ctx": 48,
            "n_text_state": 64,
            "n_text_head": 2,
            "n_text_layer": 2,
        },
    },
    "tiny_multilingual_30s": {
        "seed": 15,
        "seconds": 3.0,
        "dims": {
            "n_mels": 80,
            "n_audio_ctx": 1500,
            "n_audio_state": 64,
            "n_audio_head": 2,
            "n_audio_layer": 2,
            "n_vocab": 51865,
            "n_text_ctx": 48,
            "n_text_state": 64,
            "n_text_head": 2,
            "n_text_layer": 2,
        },
    },
    "tiny_en_real": {
        "dims": {
            "n_mels": 80,
            "n_audio_ctx": 1500,
            "n_audio_state": 384,
            "n_audio_head": 6,
            "n_audio_layer": 4,
            "n_vocab": 51864,
            "n_text_ctx": 448,
            "n_text_state": 384,
            "n_text_head": 6,
            "n_text_layer": 4,
        },
        "needs": ["weights"],
    },
}
# With unit gain everywhere a decoder with tied embeddings says one token for ever, whatever it hears: positions and
# what is heard weigh more here than the token before.
LOUD = {
    "decoder.positional_embedding": Spec((48, 64), scale=1.0),
    **{f"decoder.blocks.{i}.cross_attn.{part}.weight": Spec((64, 64), scale=0.5) for i in range(2) for part in HEARD},
}
# Languages and tasks differ in one token of the prompt, and a clip in a tenth of its window: what is heard, and what
# was said, must weigh more still, and the token before less, or every clip has one language and both tasks one text.
ATTENTIVE = {
    "decoder.token_embedding.weight": Spec((51865, 64), scale=0.1),
    "decoder.positional_embedding": Spec((48, 64), scale=0.5),
    **{f"decoder.blocks.{i}.attn.{part}.weight": Spec((64, 64), scale=1.0) for i in range(2) for part in HEARD},
    **{f"decoder.blocks.{i}.cross_attn.{part}.weight": Spec((64, 64), scale=1.0) for i in range(2) for part in HEARD},
    **{
        f"decoder.blocks.{i}.cross_attn.{part}.weight": Spec((64, 64), scale=3.0)
        for i in range(2)
        for part in HEARD[:2]
    },
}
CLIPS = 3
FORCED = 8  # steps of the greedy answer on which random networks are teacher-forced
SENTENCE = " The quick brown fox jumps over the lazy dog near the river bank."  # the same for real weights
LOGIT_STRIDE, TABLE_STRIDE = 29, 97  # coprime to the widths, so that a sample meets every row and column


def clip(seed: int, seconds: float) -> Tensor:
    """A voice-like signal, 16 kHz: harmonics of a gliding pitch, in syllables, over faint noise.

    int16 [T], as a file would hold it.
    """
    words = np.random.Philox(seed)
    count = int(seconds * SAMPLE_RATE)
    t = np.arange(count) / SAMPLE_RATE
    draws = (words.random_raw(8) >> np.uint64(11)) * 2.0**-53
    pitch = 90.0 + 120.0 * draws[0] + 20.0 * np.sin(2 * np.pi * (0.4 + draws[1]) * t)
    phase = 2 * np.pi * np.cumsum(pitch) / SAMPLE_RATE
    voice = sum(np.sin(k * phase) / k for k in range(1, 9))
    syllables = np.maximum(0.0, np.sin(2 * np.pi * (2.0 + 2.0 * draws[2]) * t))
    hiss = (words.random_raw(count) >> np.uint64(11)) * 2.0**-53 - 0.5
    return torch.from_numpy(np.round((0.2 * voice * syllables + 0.01 * hiss) * 32767).astype(np.int16))


def sounds(case: Recording) -> list[Tensor]:
    """The clips of a case, int16 [T] at 16 kHz: the packaged speech for real weights."""
    if "seed" in case.config:
        return [clip(100 + index, case.config["seconds"]) for index in range(CLIPS)]
    return [torch.from_numpy(soundfile.read(one.path, dtype="int16")[0]) for one in speech.clips()[:CLIPS]]


def mels(case: Recording) -> list[Tensor]:
    """Log-mel windows [80, 2 * n_audio_ctx] of the clips; the audio of each is an input of the case."""
    frames = 2 * case.config["dims"]["n_audio_ctx"]
    found = []
    for index, samples in enumerate(sounds(case)):
        case.inputs(**{f"audio_{index}": samples})
        audio = samples.float() / 32768.0  # as `whisper.load_audio` scales
        padding = frames * whisper.audio.HOP_LENGTH - len(audio)
        found.append(pad_or_trim(log_mel_spectrogram(audio, padding=max(0, padding)), frames))
    return found


def network(case: Recording) -> Whisper:
    """The reference with the weights of the case: a recipe's, or real ones."""
    model = Whisper(ModelDimensions(**case.config["dims"])).eval()
    if "seed" in case.config:
        words = Spec((model.dims.n_vocab, model.dims.n_text_state), scale=0.25)
        loud = ATTENTIVE if model.is_multilingual else LOUD | {"decoder.token_embedding.weight": words}
        recipe = recipe_for(model, case.config["seed"], overrides=loud)
        case.recipe(recipe)
        model.load_state_dict(recipe.build())
    else:
        held = load_file(case.external("weights"))
        held.pop("decoder.head.weight", None)  # the port's name of the tied projection
        model.load_state_dict({name: tensor.float() for name, tensor in held.items()})
    return model


def greedy(model: Whisper, mel: Tensor) -> list[int]:
    """The tokens of one window without timestamps, as `whisper.decode` gives them: no prompt, no end."""
    options = DecodingOptions(language="en", without_timestamps=True, fp16=False, temperature=0.0)
    found = whisper.decode(model, mel, options)
    assert isinstance(found, whisper.DecodingResult)
    return [int(token) for token in found.tokens]


def heard(model: Whisper, samples: Tensor) -> dict[str, object]:
    """The language that `transcribe` detects, and the tokens of both tasks, with every gate open."""
    gates = {"compression_ratio_threshold": None, "logprob_threshold": None, "no_speech_threshold": None}
    options = {"temperature": 0.0, "fp16": False, "without_timestamps": True, **gates}
    found: dict[str, object] = {}
    for task in ("transcribe", "translate"):
        result = model.transcribe(samples.float() / 32768.0, task=task, **options)
        found["language"] = result["language"]
        found[task] = [token for segment in result["segments"] for token in segment["tokens"]]
    return found


def forced_ids(case: Recording, model: Whisper, said: list[int]) -> list[int]:
    """The prompt without timestamps, and then what the decoder is fed whatever it would choose."""
    tokenizer = get_tokenizer(model.is_multilingual, num_languages=model.num_languages)
    case.values["prompt"] = [*tokenizer.sot_sequence_including_notimestamps]
    answer = said[:FORCED] if "seed" in case.config else tokenizer.encode(SENTENCE)
    return [*case.values["prompt"], *answer]


def below_the_root(path: str, module: nn.Module) -> bool:
    """Encoder and decoder themselves are left out: what they give is an output of the case."""
    return path not in ("encoder", "decoder")


def teacher_forced(case: Recording, model: Whisper, features: Tensor, tokens: list[int]) -> None:
    """Logits of the first steps, their noise against those of shorter runs, and the taps of the decoder."""
    ids = torch.tensor([tokens])
    case.inputs(ids=ids)
    whole = "seed" in case.config and case.name == "tiny_en"
    if whole:
        with case.taps(model.decoder, prefix="decoder", select=below_the_root):
            logits = model.decoder(ids, features)
    else:
        logits = model.decoder(ids, features)
    steps = [model.decoder(ids[:, : n + 1], features)[:, -1] for n in range(ids.shape[1])]
    case.outputs(logits=logits, stride=LOGIT_STRIDE)
    case.outputs(argmax=logits.argmax(dim=-1))
    case.values["noise"] = noise_floor(logits[0], torch.cat(steps))


def record(case: Recording) -> None:
    model = network(case)
    windows = mels(case)
    whole = case.name == "tiny_en"
    for index, mel in enumerate(windows):
        case.outputs(stride=1 if whole else TABLE_STRIDE, **{f"mel_{index}": mel})
    mel = windows[0][None]
    if whole:
        with case.taps(model.encoder, prefix="encoder", select=below_the_root):
            features = model.encoder(mel)
    else:
        features = model.encoder(mel)
    case.outputs(stride=1 if whole else TABLE_STRIDE, features=features)
    said = [greedy(model, window) for window in windows]
    case.values["tokens"] = said
    if model.is_multilingual:
        case.values["heard"] = [heard(model, samples) for samples in sounds(case)]
    teacher_forced(case, model, features, forced_ids(case, model, said[0]))
