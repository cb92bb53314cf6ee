"""The port against what openai-whisper was recorded to do, and against transformers with the same weights.

A third is CTranslate2, as recorded. Packaged speech with real tiny.en; a random multilingual network for language
detection and both tasks.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import WhisperConfig, WhisperForConditionalGeneration

from models.components.audio.mel import log_mel
from models.weights.loading import load_strict, on_meta
from models.whisper import config
from models.whisper.graph import WhisperPort
from models.whisper.languages import LANGUAGES
from models.whisper.media import Sound
from models.whisper.modules import Whisper
from models.whisper.tests.reference import write_tokenizer
from models.whisper.tests.running import tokens, transcribed
from models.whisper.tokenizer import Tokenizer
from models.whisper.weights import TRANSFORMERS, renamed
from parity.families.whisper_naive import naive_decoder
from serving.core.contract import Audio, Options

KEY = "whisper_tiny_en"
UNTIMED = {"without_timestamps": True, "fallback_temperatures": ()}
OPEN = {"compression_ratio_threshold": None, "logprob_threshold": None, "no_speech_threshold": None}
pytestmark = pytest.mark.parametrize("key", [KEY])


@pytest.fixture
def case(oracle, key):
    return oracle("whisper", "tiny_en_real", key=key, rung="real")


@pytest.fixture
def ours(port, key):
    return port(key, rows=8).model


def heard(case) -> list[Audio]:
    return [Audio(case[f"audio_{i}"].numpy()[None] / 32768.0, 16_000) for i in range(3)]


def padded(audio: Audio) -> np.ndarray:
    """Samples [480_000]: the clip and silence up to 30 s."""
    return np.pad(audio.samples[0].astype(np.float32), (0, 480_000 - audio.samples.shape[1]))


def mel_of(audio: Audio) -> torch.Tensor:
    """Log-mel [80, 3000] of a clip and silence up to 30 s, as the recorder computes it."""
    return log_mel(torch.from_numpy(padded(audio)), 80)[:, :3000]


def test_real_weights_on_speech(key, case, ours, check):
    clips, net = heard(case), ours.modules["whisper"]
    for index, audio in enumerate(clips):
        check(case, f"mel_{index}", mel_of(audio))
    with torch.inference_mode():
        features = net.encoder(mel_of(clips[0])[None])
        hidden = naive_decoder(net.decoder, case["ids"][0], features)
        logits = F.linear(hidden, net.decoder.head.weight)  # engines of other tests have packed the head itself
    check(case, "features", features)
    check(case, "logits", logits[None])
    assert torch.equal(logits.argmax(-1), case["argmax"][0])


def test_tokens_of_speech(key, case, ours):
    """As `decode` hears a clip: the silence up to 30 s is sound, where `transcribe` pads features."""
    found = transcribed(ours, [Audio(padded(clip)[None], clip.rate) for clip in heard(case)], **UNTIMED)
    assert [tokens(one) for one in found] == case.values["tokens"]


def second(ours: WhisperPort) -> WhisperForConditionalGeneration:
    """transformers' network with the port's weights."""
    dims = ours.config
    made = WhisperForConditionalGeneration(
        WhisperConfig(
            vocab_size=dims.n_vocab,
            num_mel_bins=dims.n_mels,
            d_model=dims.n_audio_state,
            encoder_layers=dims.n_audio_layer,
            decoder_layers=dims.n_text_layer,
            encoder_attention_heads=dims.n_audio_head,
            decoder_attention_heads=dims.n_text_head,
            encoder_ffn_dim=4 * dims.n_audio_state,
            decoder_ffn_dim=4 * dims.n_text_state,
            max_source_positions=dims.n_audio_ctx,
            max_target_positions=dims.n_text_ctx,
            **{f"{name}_token_id": 50_256 for name in ("pad", "bos", "eos", "decoder_start")},
        )
    )
    state = ours.modules["whisper"].state_dict()
    made.load_state_dict({name: state[renamed(name, TRANSFORMERS)] for name in made.state_dict()})
    return made.eval()


def test_the_second_reference_gives_the_same_logits(key, case, ours):
    net, ids, mel = ours.modules["whisper"], case["ids"], mel_of(heard(case)[0])[None]
    with torch.inference_mode():
        expected = second(ours)(input_features=mel, decoder_input_ids=ids).logits[0]
        logits = net.decoder.head(naive_decoder(net.decoder, ids[0], net.encoder(mel)))
    assert (logits - expected).abs().max() <= 1e-4


@pytest.mark.parametrize("index", [0, 1, 2], ids=lambda i: f"clip{i}")
def test_ctranslate2_chooses_the_same_tokens_by_the_same_logits(key, oracle, check, ours, index):
    """An implementation that shares no code with either: it was recorded in a process of its own."""
    case = oracle("whisper_ct2", "tiny_en_real", key=key, rung="real")
    net, said = ours.modules["whisper"], case.values["tokens"][index]
    ids = torch.tensor([*case.config["prompt"], *said])
    audio = Audio(case[f"audio_{index}"].numpy()[None] / 32768.0, 16_000)
    mel = Sound(audio, 80).mel(0, 3000)[None]
    with torch.inference_mode():
        logits = net.decoder.head(naive_decoder(net.decoder, ids, net.encoder(mel)))[1:]
    check(case, f"logits_{index}", logits)
    assert logits.argmax(-1).tolist() == [*said, ours.tokenizer.eot][: len(logits)]


def test_language_detection_and_both_tasks(key, oracle, tmp_path):
    case = oracle("whisper", "tiny_multilingual_30s", key=key)
    dims = config.from_openai(case.config["dims"])
    net = load_strict(on_meta(lambda: Whisper(dims)), case.recipe().build()).eval()
    tokenizer = Tokenizer(write_tokenizer(tmp_path, multilingual=True), dims)
    multilingual = WhisperPort(dims, net, tokenizer, Options(rows=3))
    for task in ("transcribe", "translate"):
        found = transcribed(multilingual, heard(case), rows=3, task=task, **UNTIMED, **OPEN)
        assert [tokens(one) for one in found] == [one[task] for one in case.values["heard"]]
        assert [one["info"]["language"] for one in found] == [
            LANGUAGES[one["language"]] for one in case.values["heard"]
        ]
