"""chatterbox-tts up to its speech tokens, on tiny random weights: T3 of the three models, speaker encoder, text.

The T3 cases keep the logits of every lane step by step, what the filters leave of them, and the tokens. A draw is the
token at which the cumulative probability passes a recorded uniform number, or the most likely one, so that both
sides can make the same choice.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import chatterbox.models.t3.inference.alignment_stream_analyzer as analyzer
import chatterbox.models.t3.llama_configs as llama_configs
import chatterbox.models.t3.modules.cond_enc as cond_enc
import chatterbox.models.t3.t3 as reference
import chatterbox.models.tokenizers.tokenizer as tokenizers_module
import chatterbox.models.voice_encoder.voice_encoder as voice_encoder
import librosa
import numpy as np
import torch
from chatterbox import mtl_tts, tts, tts_turbo
from chatterbox.models.t3.modules.perceiver import Perceiver
from chatterbox.models.t3.modules.t3_config import T3Config
from threadpoolctl import threadpool_limits
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor

from parity.harness import Spec, recipe_for
from parity.harness.record import Recording

CASES = {
    "english": {"kind": "t3", "text": 9, "prompt": 20, "steps": 24, "cfg_weight": 0.5, "seed": 1, "taps": True},
    "english_drawn": {
        "kind": "t3",
        "text": 9,
        "prompt": 20,
        "steps": 24,
        "cfg_weight": 0.3,
        "seed": 1,
        "sampling": {"temperature": 0.8, "min_p": 0.02, "top_p": 0.9, "repetition_penalty": 1.2},
    },
    "english_unguided": {"kind": "t3", "text": 6, "prompt": 12, "steps": 16, "cfg_weight": 0.0, "seed": 1},
    "multilingual": {"kind": "t3", "text": 14, "prompt": 20, "steps": 24, "cfg_weight": 0.5, "seed": 2, "taps": True},
    "multilingual_drawn": {
        "kind": "t3",
        "text": 8,
        "prompt": 20,
        "steps": 40,
        "cfg_weight": 0.5,
        "seed": 2,
        "sampling": {"temperature": 1.3, "min_p": 0.0, "top_p": 1.0, "repetition_penalty": 2.0},
    },
    "turbo": {"kind": "turbo", "text": 9, "prompt": 20, "steps": 24, "seed": 3, "taps": True},
    "turbo_drawn": {
        "kind": "turbo",
        "text": 7,
        "prompt": 16,
        "steps": 24,
        "seed": 3,
        "sampling": {"temperature": 0.8, "top_k": 60, "top_p": 0.9, "repetition_penalty": 1.2},
    },
    "speaker": {"kind": "speaker", "seconds": 3.3, "seed": 4},
    "speaker_short": {"kind": "speaker", "seconds": 0.9, "seed": 4},
    "clip": {"kind": "clip", "rate": 44100, "seconds": 5.5, "seed": 6},
    "clip_low": {"kind": "clip", "rate": 16000, "seconds": 6.2, "seed": 7},
    "text": {"kind": "text"},
    "analyser": {
        "kind": "analyser",
        "seed": 5,
        "scripts": {
            "steady": {
                "text": 12,
                "at": [0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11],
            },
            "goes_back": {
                "text": 12,
                "at": [0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4],
            },
            "false_start": {"text": 10, "at": [9, 9, 8, 0, 1, 2, 9, 3, 4, 5, 6, 7, 8, 9, 9]},
            "jumps": {"text": 20, "at": [0, 1, 12, 2, 3, 15, 4, 5, 11, 12, 18, 19, 19]},
            "short": {"text": 6, "at": [0, 1, 2, 3, 4, 5, 5, 5, 5, 5, 5, 5]},
            "stutters": {"text": 12, "at": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], "tokens": [7, 7, 8, 9, 9, 9, 3, 4, 4, 5]},
        },
    },
}
WIDTH, HEADS, LAYERS = 128, 2, 4
MULTILINGUAL = 2454
STRIDE = 13  # coprime to the vocabularies
TEXTS = (
    "",
    "hello there  world",
    "Wait… what — really: yes; no - “maybe” ‘so’ , ok...",
    "It is done.",
    "Ends with a comma,",
    "Ünïcode keeps – its case",
    "你好世界。",
    "안녕하세요",
)
LANGUAGES = {
    "en": "Hello World, it's 9 o'clock.",
    "de": "Größe über Äpfel",
    "fr": "Ça va, l'été?",
    "ko": "안녕하세요 세계",
    "zh": "你好 世界",
    "ja": "こんにちは カタカナ",
    "ru": "Привет мир",
    "he": "שלום עולם",
    "ar": "مرحبا",
    "tr": "İstanbul Iğdır",
}
CANGJIE = ("你\toned", "好\tvnd", "世\tpt", "界\twlli", "們\tonlk", "们\toned")


def words(case: Recording) -> np.random.Philox:
    return np.random.Philox(1000 + case.config["seed"])


def uniform(draws: np.random.Philox, count: int) -> np.ndarray:
    """float64 in [0, 1)."""
    return (draws.random_raw(count) >> np.uint64(11)) * 2.0**-53


@contextlib.contextmanager
def tiny() -> Iterator[None]:
    """Sizes that the reference keeps in constants, made small."""
    llama = {
        "hidden_size": WIDTH,
        "intermediate_size": 192,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
    }
    gpt2 = {"n_embd": WIDTH, "hidden_size": WIDTH, "n_head": HEADS, "n_layer": 3, "n_positions": 256, "vocab_size": 300}
    llama_configs.LLAMA_CONFIGS["tiny"] = llama_configs.LLAMA_520M_CONFIG_DICT | llama
    llama_configs.LLAMA_CONFIGS["tiny_gpt2"] = llama_configs.GPT2_MEDIUM_CONFIG | gpt2
    real = cond_enc.Perceiver, analyzer.LLAMA_ALIGNED_HEADS
    cond_enc.Perceiver = lambda: Perceiver(pre_attention_query_size=WIDTH, embedding_dim=WIDTH)
    analyzer.LLAMA_ALIGNED_HEADS = [(layer % LAYERS, head % HEADS) for layer, head in real[1]]
    yield
    cond_enc.Perceiver, analyzer.LLAMA_ALIGNED_HEADS = real


def config_of(case: Recording) -> T3Config:
    """The hyper-parameters of the case's model."""
    if case.config["kind"] == "turbo":
        made = T3Config(text_tokens_dict_size=300)
        made.llama_config_name = "tiny_gpt2"
        made.speech_tokens_dict_size = 6563
        made.input_pos_emb, made.use_perceiver_resampler, made.emotion_adv = None, False, False
        return made
    made = T3Config(MULTILINGUAL if case.name.startswith("multilingual") else 704)
    made.llama_config_name = "tiny"
    made.max_text_tokens, made.max_speech_tokens = 60, 124
    return made


def network(case: Recording) -> reference.T3:
    """T3 with the weights of the case's recipe. Its speech embedding is loud, or it would say one token for ever."""
    with tiny():
        model = reference.T3(config_of(case)).eval()
    loud = {"speech_emb.weight": Spec(tuple(model.speech_emb.weight.shape), scale=0.5)}
    recipe = recipe_for(model, case.config["seed"], overrides=loud)
    case.recipe(recipe)
    model.load_state_dict(recipe.build())
    case.values["names"] = {name: "x".join(map(str, value.shape)) for name, value in model.state_dict().items()}
    return model


def conditioning(case: Recording, draws: np.random.Philox) -> cond_enc.T3Cond:
    """A voice: unit speaker embedding, prompt tokens, emotion."""
    speaker = torch.from_numpy(uniform(draws, 256)).float()[None]
    speaker = speaker / speaker.norm()
    prompt = torch.from_numpy((uniform(draws, case.config["prompt"]) * 6561).astype(np.int64))[None]
    emotion = torch.full((1, 1, 1), 0.7)
    case.inputs(speaker=speaker, prompt=prompt, emotion=emotion)
    return cond_enc.T3Cond(speaker_emb=speaker, cond_prompt_speech_tokens=prompt, emotion_adv=emotion)


def text_of(case: Recording, draws: np.random.Philox, model: reference.T3) -> Tensor:
    """Text ids [1, T], with start and stop tokens where the model has them."""
    ids = (uniform(draws, case.config["text"]) * 200 + 1).astype(np.int64)
    if not model.is_gpt:
        ids = np.array([model.hp.start_text_token, *ids, model.hp.stop_text_token])
    found = torch.from_numpy(ids)[None]
    case.inputs(text=found)
    return found


@contextlib.contextmanager
def chosen(case: Recording, draws: np.random.Philox, model: reference.T3) -> Iterator[None]:
    """Keep every step's logits and probabilities, and choose by the case's rule instead of torch's generator."""
    logits: list[Tensor] = []
    kept: list[Tensor] = []
    drawn: list[float] = []

    def choose(probabilities: Tensor, num_samples: int) -> Tensor:
        kept.append(probabilities[0].clone())
        if "sampling" not in case.config:
            return probabilities.argmax(-1, keepdim=True)
        drawn.append(float(uniform(draws, 1)[0]))
        mass = probabilities[0].double().cumsum(-1)
        return torch.searchsorted(mass, mass[-1] * drawn[-1], right=True).view(1, 1)

    original, torch.multinomial = torch.multinomial, choose  # type: ignore[assignment]
    hook = model.speech_head.register_forward_hook(lambda _, args, out: logits.append(out[:, -1].clone()))
    try:
        yield
    finally:
        torch.multinomial = original
        hook.remove()
    case.put("taps", {"logits": torch.stack(logits[: len(kept)]), "kept": torch.stack(kept)}, stride=STRIDE)
    if drawn:
        case.inputs(drawn=torch.tensor(drawn, dtype=torch.float64))


@contextlib.contextmanager
def analysed(case: Recording) -> Iterator[None]:
    """Keep what the alignment analyser saw and did: where in the text it is, and its word on the end token."""
    seen: list[list[int]] = []
    original = analyzer.AlignmentStreamAnalyzer.step

    def step(self: Any, logits: Tensor, next_token: Any = None) -> Tensor:
        before = logits.clone()
        found = original(self, logits, next_token)
        end = float(found[0, self.eos_idx])
        word = 1 if end == 2**15 else -1 if end == -(2**15) and float(before[0, self.eos_idx]) != end else 0
        seen.append([int(self.text_position), int(self.started), int(self.complete), word])
        return found

    analyzer.AlignmentStreamAnalyzer.step = step
    try:
        yield
    finally:
        analyzer.AlignmentStreamAnalyzer.step = original
    if seen:
        case.put("taps", {"analysis": torch.tensor(seen)})


def prefill_taps(case: Recording, model: reference.T3, voice: Callable[[], Any], text: Tensor) -> None:
    """Conditioning, input embeddings of every lane, and each layer over them."""
    start = torch.full_like(text[:, :1], model.hp.start_speech_token)
    weight = case.config.get("cfg_weight", 0.0)
    case.put("taps", {"conditioning": model.prepare_conditioning(voice())})
    embeds, _ = model.prepare_input_embeds(t3_cond=voice(), text_tokens=text, speech_tokens=start, cfg_weight=weight)
    case.put("taps", {"embeds": embeds})
    layers = model.tfmr.h if model.is_gpt else model.tfmr.layers
    kept: dict[str, Tensor] = {}
    hooks = [
        layer.register_forward_hook(
            lambda _, args, out, i=i: kept.update({f"layer{i}": out if torch.is_tensor(out) else out[0]})
        )
        for i, layer in enumerate(layers)
    ]
    kept["hidden"] = model.tfmr(inputs_embeds=embeds)[0]
    for hook in hooks:
        hook.remove()
    case.put("taps", kept)


def generate(case: Recording, model: reference.T3, voice: cond_enc.T3Cond, text: Tensor) -> Tensor:
    """Speech tokens [n]."""
    c = case.config
    sampling = {"temperature": 1.0, "top_p": 1.0, "repetition_penalty": 1.2} | c.get("sampling", {})
    if c["kind"] == "turbo":
        return model.inference_turbo(voice, text, **{"top_k": 0, **sampling}, max_gen_len=c["steps"] - 1)[0]
    arguments = {"min_p": 0.0, **sampling, "max_new_tokens": c["steps"], "cfg_weight": c["cfg_weight"]}
    return model.inference(t3_cond=voice, text_tokens=text, **arguments)[0]


def record_t3(case: Recording) -> None:
    """One utterance of a T3."""
    model, draws = network(case), words(case)
    voice = conditioning(case, draws)
    text = text_of(case, draws, model)
    if not model.is_gpt:
        text = torch.cat([text, text])
    held = vars(voice).copy()
    if case.config.get("taps"):
        prefill_taps(case, model, lambda: cond_enc.T3Cond(**held), text)
    with tiny(), chosen(case, draws, model), analysed(case):
        tokens = generate(case, model, voice, text)
    case.outputs(tokens=tokens)


def clip(case: Recording, rate: int) -> np.ndarray:
    """A voice-like sound with silent ends, float32 [T]; an input of the case."""
    count = int(case.config["seconds"] * rate)
    t = np.arange(count) / rate
    voiced = sum(np.sin(2 * np.pi * k * 130 * t + 3 * np.sin(2 * np.pi * 2.3 * t)) / k for k in range(1, 9))
    hiss = uniform(words(case), count) - 0.5
    inside = (t > 0.2) & (t < case.config["seconds"] - 0.2)
    sound = (0.2 * voiced * inside + 0.001 * hiss).astype(np.float32)
    case.inputs(sound=torch.from_numpy(sound))
    return sound


def record_clip(case: Recording) -> None:
    """A reference clip at the rates that the encoders hear, and as loud as Turbo wants it."""
    rate = case.config["rate"]
    sound = clip(case, rate)
    high = librosa.resample(sound, orig_sr=rate, target_sr=24_000)
    levelled = tts_turbo.ChatterboxTurboTTS.norm_loudness(None, high, 24_000)
    case.outputs(at_24k=torch.from_numpy(high), at_16k=torch.from_numpy(at_16k(high)), stride=STRIDE)
    case.outputs(levelled_16k=torch.from_numpy(at_16k(levelled)), stride=STRIDE)


def at_16k(sound: np.ndarray) -> np.ndarray:
    return librosa.resample(sound, orig_sr=24_000, target_sr=16_000)


def record_speaker(case: Recording) -> None:
    """A clip with silent ends to its mel, the embeddings of its parts, and that of the voice."""
    model = voice_encoder.VoiceEncoder().eval()
    recipe = recipe_for(model, case.config["seed"])
    case.recipe(recipe)
    model.load_state_dict(recipe.build())
    sound = clip(case, 16_000)
    parts: list[Tensor] = []
    mels: list[Tensor] = []

    def keep(_: Any, args: tuple[Tensor], out: Tensor) -> None:
        mels.append(args[0].clone())
        parts.append(out.clone())

    hook = model.register_forward_hook(keep)
    with threadpool_limits(1):  # numpy's products are split by threads, and their sums with them
        found = model.embeds_from_wavs([sound], sample_rate=16_000)
    hook.remove()
    case.put("taps", {"partials": torch.cat(mels), "parts": torch.cat(parts)})
    case.outputs(embedding=torch.from_numpy(found))
    case.values["parameters"] = sum(parameter.numel() for parameter in model.parameters())


def attention(script: dict[str, Any], draws: np.random.Philox) -> Tensor:
    """Attention [3 heads, steps + 1, text] of the start and of every step: most of it where the script says."""
    spots = [script["at"][0], *script["at"]]
    noise = torch.from_numpy(uniform(draws, 3 * len(spots) * script["text"])).view(3, len(spots), -1) * 0.02
    noise[:, range(len(spots)), spots] += 0.7
    return noise.float()


def record_analyser(case: Recording) -> None:
    """Scripted attention through the alignment analyser: its state and its word on the end token at every step."""
    draws = words(case)
    for name, script in case.config["scripts"].items():
        seen, text = attention(script, draws), script["text"]
        hooked = SimpleNamespace(layers=[SimpleNamespace(self_attn=torch.nn.Identity()) for _ in range(14)])
        under_test = analyzer.AlignmentStreamAnalyzer(hooked, None, (0, text), eos_idx=3)
        tokens = [6561, *script.get("tokens", range(100, 100 + len(script["at"])))]
        found = []
        for step in range(len(script["at"])):
            rows = seen[:, :2] if step == 0 else seen[:, step + 1 : step + 2]
            if step == 0:  # what the analyser slices off: the text's own rows
                rows = torch.cat([torch.zeros(3, text, text), rows], 1)
            under_test.last_aligned_attns = list(rows)
            logits = under_test.step(torch.zeros(1, 5), next_token=tokens[step])
            word = int(logits[0, 3].sign())
            found.append([int(under_test.text_position), int(under_test.started), int(under_test.complete), word])
        case.inputs(**{f"{name}_attention": seen, f"{name}_tokens": torch.tensor(tokens)})
        case.outputs(**{name: torch.tensor(found)})  # type: ignore[arg-type]


def vocabulary() -> dict[str, int]:
    """Ids of a small grapheme vocabulary: the special tokens, languages, Cangjie keys, and characters."""
    special = ["[STOP]", "[UNK]", "[SPACE]", "[START]", *(f"[{code}]" for code in mtl_tts.SUPPORTED_LANGUAGES)]
    keys = [f"[cj_{key}]" for key in "abcdefghijklmnopqrstuvwxyz0123456789."]
    ranges = ((33, 127), (0xE0, 0x100), (0x300, 0x310), (0x430, 0x450), (0x5D0, 0x5EB), (0x620, 0x64B))
    jamo = ((0x1100, 0x1113), (0x1161, 0x1176), (0x11A8, 0x11C3), (0x3041, 0x30FB))
    letters = [chr(code) for low, high in (*ranges, *jamo) for code in range(low, high)]
    return {token: i for i, token in enumerate(dict.fromkeys([*special, *keys, *letters]))}


def tokenizer_file(folder: Path) -> Path:
    """A `tokenizers` file in the layout of the checkpoint's: BPE without merges over characters."""
    ids = vocabulary()
    made = Tokenizer(models.BPE(vocab=ids, merges=[], unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens([token for token in ids if token.startswith("[") and len(token) > 1])
    path = folder / "tokenizer.json"
    made.save(str(path))
    return path


def record_text(case: Recording) -> None:
    """Punctuation of the three models, and ids of the English and the multilingual tokenizer."""
    for name, module in {"english": tts, "turbo": tts_turbo, "multilingual": mtl_tts}.items():
        case.values[f"punctuation_{name}"] = {text: module.punc_norm(text) for text in TEXTS}
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "Cangjie5_TC.json").write_text(json.dumps(CANGJIE))
        tokenizers_module.hf_hub_download = lambda filename, **_: str(folder / filename)
        path = tokenizer_file(folder)
        english, multilingual = tokenizers_module.EnTokenizer(str(path)), tokenizers_module.MTLTokenizer(str(path))
        case.values["tokenizer"] = path.read_text()
        case.values["cangjie"] = list(CANGJIE)
        case.values["english"] = {text: english.encode(text) for text in TEXTS}
        case.values["multilingual"] = {
            code: [text, multilingual.encode(text, language_id=code)] for code, text in LANGUAGES.items()
        }


def record(case: Recording) -> None:
    """A case of any kind."""
    kinds = {
        "t3": record_t3,
        "turbo": record_t3,
        "speaker": record_speaker,
        "text": record_text,
        "analyser": record_analyser,
        "clip": record_clip,
    }
    kinds[case.config["kind"]](case)
