"""chatterbox-tts from speech tokens to audio, on tiny random weights: flow, vocoder, voice prompt; PerTh's real mark.

The flow and vocoder cases run the package's own `inference` and keep the noise that it drew, in its order.
"""

# ruff: noqa: E402 (torchaudio has to be imported first, by itself)

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

_glob = Path.glob
with mock.patch.object(Path, "glob", lambda path, name: [] if name.endswith(".so") else _glob(path, name)):
    import torchaudio.compliance.kaldi as kaldi  # without its compiled half, which needs CUDA

import chatterbox.models.s3gen.transformer.upsample_encoder as upsample
import librosa
import numpy as np
import torch
from chatterbox.models.s3gen import s3gen as reference
from chatterbox.models.s3gen.configs import CFM_PARAMS
from chatterbox.models.s3gen.decoder import ConditionalDecoder
from chatterbox.models.s3gen.f0_predictor import ConvRNNF0Predictor
from chatterbox.models.s3gen.flow import CausalMaskedDiffWithXvec
from chatterbox.models.s3gen.flow_matching import CausalConditionalCFM
from chatterbox.models.s3gen.hifigan import HiFTGenerator
from chatterbox.models.s3gen.utils.mel import mel_spectrogram
from chatterbox.models.s3gen.xvector import CAMPPlus, extract_feature
from chatterbox.models.s3tokenizer.s3tokenizer import S3Tokenizer
from perth import PerthImplicitWatermarker
from s3tokenizer.model_v2 import ModelConfig, S3TokenizerV2
from torch import Tensor, nn
from torch.distributions.uniform import Uniform

from parity.harness import Spec, recipe_for
from parity.harness.record import Recording

CASES = {
    "s3gen_whole": {"kind": "speech", "tokens": 24, "prompt": 10, "steps": 10, "seed": 5, "taps": True, "names": True},
    "s3gen_short": {"kind": "speech", "tokens": 3, "prompt": 4, "odd": 1, "steps": 4, "seed": 6},
    "s3gen_turbo": {"kind": "speech", "tokens": 15, "prompt": 7, "steps": 2, "seed": 7, "turbo": True},
    "s3gen_voice": {"kind": "voice", "seconds": 2.7, "seed": 8},
    "s3gen_watermark": {"kind": "watermark", "seconds": 2.0, "seed": 9},
}
STRIDE = 7  # coprime to the widths
MELS = 80


def encoder() -> nn.Module:
    """The package's encoder at a width of 64; two of its layers have a width of their own."""
    ahead, up = upsample.PreLookaheadLayer, upsample.Upsample1D
    with (
        mock.patch.object(upsample, "PreLookaheadLayer", lambda channels, **k: ahead(channels=64, **k)),
        mock.patch.object(upsample, "Upsample1D", lambda channels, out_channels, **k: up(64, 64, **k)),
    ):
        return upsample.UpsampleConformerEncoder(
            output_size=64,
            attention_heads=4,
            linear_units=96,
            num_blocks=2,
            input_layer="linear",
            pos_enc_layer_type="rel_pos_espnet",
            selfattention_layer_type="rel_selfattn",
            input_size=64,
            macaron_style=False,
        )


def estimator(turbo: bool) -> nn.Module:
    return ConditionalDecoder(
        in_channels=4 * MELS,
        out_channels=MELS,
        channels=[32],
        attention_head_dim=16,
        n_blocks=2,
        num_mid_blocks=2,
        num_heads=2,
        act_fn="gelu",
        meanflow=turbo,
    )


def vocoder() -> nn.Module:
    return HiFTGenerator(
        base_channels=64,
        sampling_rate=24_000,
        upsample_rates=[8, 5, 3],
        upsample_kernel_sizes=[16, 11, 7],
        source_resblock_kernel_sizes=[7, 7, 11],
        source_resblock_dilation_sizes=[[1, 3, 5]] * 3,
        f0_predictor=ConvRNNF0Predictor(cond_channels=32),
    )


class Tiny(reference.S3Token2Wav):
    """The package's S3Gen, which has its dimensions written into its constructor, at small ones."""

    def __init__(self, turbo: bool = False) -> None:
        nn.Module.__init__(self)
        small = ModelConfig(n_audio_state=128, n_audio_head=2, n_audio_layer=2)
        with mock.patch.object(S3TokenizerV2.__init__, "__defaults__", (small,)):
            self.tokenizer = S3Tokenizer("speech_tokenizer_v2_25hz")
        self.mel_extractor = mel_spectrogram
        self.speaker_encoder = CAMPPlus(growth_rate=8, init_channels=16, memory_efficient=False)
        self.meanflow = turbo
        decoder = CausalConditionalCFM(spk_emb_dim=MELS, cfm_params=CFM_PARAMS, estimator=estimator(turbo))
        self.flow = CausalMaskedDiffWithXvec(input_size=64, encoder=encoder(), decoder=decoder)
        self.mel2wav = vocoder()
        rise = (torch.cos(torch.linspace(torch.pi, 0, 480)) + 1) / 2  # the package's own lines
        self.register_buffer("trim_fade", torch.cat([torch.zeros(480), rise]), persistent=False)


def overrides(model: nn.Module) -> dict[str, Spec]:
    """Gains, slopes and the pitch, where a default would give silence, clipping or a division by nothing."""
    chosen = {}
    for name, tensor in model.state_dict().items():
        shape = tuple(tensor.shape)
        if name.endswith("original0"):
            chosen[name] = Spec(shape, mean=0.3 if "conv_post" in name else 0.8, scale=0.1)
        elif name.endswith("alpha"):
            chosen[name] = Spec(shape, mean=1.0, scale=0.3)
        elif name.startswith("mel2wav.f0_predictor.classifier"):
            chosen[name] = Spec(shape, mean=120.0 if shape == (1,) else 0.0, scale=60.0)
        elif name == "mel2wav.conv_post.bias":
            chosen[name] = Spec(shape, mean=-2.0, scale=0.5)
        elif name.endswith("project_down.weight"):
            chosen[name] = Spec(shape, scale=0.5)
    return chosen


def made(case: Recording, parts: tuple[str, str]) -> Tiny:
    """The tiny model; two of its parts have the weights of a recipe, the others are not run."""
    model = Tiny(case.config.get("turbo", False)).eval()
    constants = {"tokenizer._mel_filters", "tokenizer.window"}
    others = {name for name in model.state_dict() if name.partition(".")[0] not in parts}
    recipe = recipe_for(model, case.config["seed"], overrides=overrides(model), keep=constants | others)
    model.load_state_dict(recipe.build(), strict=False)
    case.recipe(recipe)
    return model


@contextmanager
def drawn(found: dict[str, list[Tensor]]) -> Iterator[None]:
    """Keep every draw of normal and uniform noise, in order."""
    randn, like, sample = torch.randn, torch.randn_like, Uniform.sample

    def keep(kind: str, value: Tensor) -> Tensor:
        found.setdefault(kind, []).append(value.clone())
        return value

    with (
        mock.patch.object(torch, "randn", lambda *a, **k: keep("randn", randn(*a, **k))),
        mock.patch.object(torch, "randn_like", lambda *a, **k: keep("like", like(*a, **k))),
        mock.patch.object(Uniform, "sample", lambda *a, **k: keep("phase", sample(*a, **k))),
    ):
        yield


def prompt(words: np.random.Philox, count: int, odd: int) -> dict[str, Any]:
    """Random conditioning of `count` prompt tokens; a clip's mel may have an odd frame behind theirs."""
    return {
        "prompt_token": torch.from_numpy((words.random_raw(count) % 6561).astype(np.int64))[None],
        "prompt_token_len": torch.tensor([count]),
        "prompt_feat": Spec((1, 2 * count + odd, MELS), scale=1.5).draw(words),
        "prompt_feat_len": None,
        "embedding": Spec((1, 192)).draw(words),
    }


def watch(model: Tiny, found: dict[str, Tensor], states: list[Tensor]) -> None:
    """Keep what the stages give: encoder, every Euler step, pitch, excitation."""
    model.flow.encoder_proj.register_forward_hook(lambda _, args, out: found.update(encoded=args[0], mu=out))
    model.mel2wav.f0_predictor.register_forward_hook(lambda _, args, out: found.update(f0=out))  # type: ignore[union-attr]
    model.mel2wav.m_source.register_forward_hook(lambda _, args, out: found.update(source=out[0]))  # type: ignore[union-attr]
    inner = model.flow.decoder.estimator.forward

    def velocity(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        out = inner(x, *args, **kwargs)
        states.append(x[:1].clone())
        found.setdefault("velocity", out)
        return out

    model.flow.decoder.estimator.forward = velocity


def layers(name: str, module: nn.Module) -> bool:
    """The taps inside the encoder."""
    head, last = ["", *name.split(".")][-2:]
    return (last.isdigit() and head in ("encoders", "up_encoders")) or last in ("pre_lookahead_layer", "after_norm")


def full_names(turbo: bool) -> dict[str, str]:
    """Every tensor of the package's own checkpoint at its real dimensions."""
    with torch.device("meta"):
        model = reference.S3Token2Wav(meanflow=turbo)
    return {name: "x".join(map(str, value.shape)) for name, value in model.state_dict().items()}


def speech(case: Recording) -> None:
    """A whole utterance, with its seed's noise."""
    c = case.config
    model = made(case, ("flow", "mel2wav"))
    words = np.random.Philox(c["seed"] + 100)
    tokens = torch.from_numpy((words.random_raw(c["tokens"]) % 6561).astype(np.int64))
    ref = prompt(words, c["prompt"], c.get("odd", 0))
    case.inputs(tokens=tokens, **{name: value for name, value in ref.items() if isinstance(value, Tensor)})
    found: dict[str, Tensor] = {}
    states: list[Tensor] = []
    noise: dict[str, list[Tensor]] = {}
    watch(model, found, states)
    torch.manual_seed(c["seed"])
    with drawn(noise):
        if c.get("taps"):
            with case.taps(model.flow.encoder, prefix="encoder", select=layers, inputs=False):
                mel = model.flow_inference(tokens, ref_dict=ref, n_cfm_timesteps=c["steps"], finalize=True)
        else:
            mel = model.flow_inference(tokens, ref_dict=ref, n_cfm_timesteps=c["steps"], finalize=True)
        audio, _ = model.hift_inference(mel, None)
    case.inputs(start=states[0], phase=noise["phase"][0])
    case.put("inputs", {"noise": noise["like"][1]}, stride=STRIDE)
    case.put("taps", {f"step{i}": state for i, state in enumerate(states)}, stride=STRIDE)
    case.put("taps", found, stride=STRIDE)
    torch.manual_seed(c["seed"])
    whole, _ = model.inference(tokens, ref_dict=ref, n_cfm_timesteps=c["steps"])
    case.outputs(mel=mel, audio=audio, faded=whole)
    if c.get("names"):
        plain, turbo = full_names(False), full_names(True)
        case.values["names"] = plain
        case.values["names_turbo_adds"] = {name: turbo[name] for name in turbo if name not in plain}


def clip(words: np.random.Philox, seconds: float, rate: int) -> np.ndarray:
    """A voice-like sound: gliding harmonics under a slow envelope, and noise."""
    t = np.arange(int(seconds * rate)) / rate
    pitch = 140 + 40 * np.sin(2 * math.pi * 0.9 * t)
    phase = 2 * math.pi * np.cumsum(pitch) / rate
    voice = sum(np.sin(k * phase) / k for k in range(1, 24))
    envelope = 0.5 + 0.5 * np.sin(2 * math.pi * 3.1 * t)
    hiss = Spec((len(t),)).draw(words).numpy()
    return (0.12 * voice * envelope + 0.01 * hiss).astype(np.float32)


def voice(case: Recording) -> None:
    """A clip to a voice: what the package's `prepare_conditionals` computes, stage by stage."""
    c = case.config
    model = made(case, ("tokenizer", "speaker_encoder"))
    words = np.random.Philox(c["seed"] + 100)
    original = clip(words, c["seconds"], 44_100)
    wav = librosa.resample(original, orig_sr=44_100, target_sr=24_000)
    heard = librosa.resample(wav, orig_sr=24_000, target_sr=16_000)
    ref = model.embed_ref(wav, 24_000)
    short, _ = model.tokenizer.forward([heard[: 2 * 16_000]], max_len=30)
    case.inputs(clip=torch.from_numpy(original))
    case.put("taps", {"at24": torch.from_numpy(wav), "at16": torch.from_numpy(heard)}, stride=STRIDE)
    lower = reference.get_resampler(24_000, 16_000, torch.device("cpu"))(torch.from_numpy(wav)[None])
    case.put("taps", {"sinc16": lower}, stride=STRIDE)
    case.put("taps", {"fbank": kaldi.fbank(lower, num_mel_bins=80)}, stride=STRIDE)
    case.put("taps", {"features": extract_feature(lower)[0]}, stride=STRIDE)
    mel = model.tokenizer.log_mel_spectrogram(lower)
    case.put("taps", {"tokenizer_mel": mel}, stride=STRIDE)
    hidden, _ = model.tokenizer.encoder(mel, torch.tensor([mel.shape[-1]]))
    case.put("taps", {"tokenizer_hidden": hidden}, stride=STRIDE)
    case.outputs(**{name: value for name, value in ref.items() if isinstance(value, Tensor)})  # type: ignore[arg-type]
    case.outputs(short=short)


def watermark(case: Recording) -> None:
    """PerTh with the package's own weights: the mark, and what its detector makes of sound with and without it."""
    c = case.config
    marker = PerthImplicitWatermarker()
    plain = clip(np.random.Philox(c["seed"]), c["seconds"], 24_000)
    marked = marker.apply_watermark(plain, sample_rate=24_000)
    case.inputs(plain=torch.from_numpy(plain))
    magnitude, _ = marker.perth_net.ap.signal_to_magphase(librosa.resample(plain, orig_sr=24_000, target_sr=32_000))
    encoded, mask = marker.perth_net.encoder(magnitude[None])
    case.put("taps", {"magnitude": magnitude, "encoded": encoded, "mask": mask}, stride=STRIDE)
    heard = [marker.perth_net.decoder(sound) for sound in (magnitude[None], encoded)]
    case.put("taps", {"decoded": torch.cat(heard)})
    case.outputs(marked=torch.from_numpy(marked))
    for name, sound in (("on_marked", marked), ("on_plain", plain)):
        case.values[name] = float(marker.get_watermark(sound, sample_rate=24_000, round=False))


def record(case: Recording) -> None:
    {"speech": speech, "voice": voice, "watermark": watermark}[case.config["kind"]](case)
