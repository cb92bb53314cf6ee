"""Whisper on the core: encoder and decoder for every window, encoder and aligner where words are timed."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from models.whisper.config import WhisperConfig
from models.whisper.head import quick_head
from models.whisper.languages import LANGUAGES
from models.whisper.media import Sound
from models.whisper.modules import Whisper
from models.whisper.nodes import Aligner, Decoder, Encoder
from models.whisper.profiles import profile_of
from models.whisper.quick import QuickEncoder
from models.whisper.request import TranscribeKnobs
from models.whisper.tokenizer import Tokenizer
from models.whisper.transcribe import Job, rules_of, transcribe
from serving.core.contract import Audio, Edge, Graph, Options, Packed, Resource, Steps, Task
from serving.core.streams import Whole
from serving.errors import BadRequest, nearest
from serving.resources import PagedKV, Sampler

EDGES = (
    Edge("encoder.ready", "decoder.ready", Whole()),
    Edge("encoder.ready", "aligner.ready", Whole()),
)
WALKS = {"window": ("encoder", "decoder"), "align": ("encoder", "aligner")}


class WhisperPort:
    """The port: `serving.core.contract.Model`."""

    def __init__(self, config: WhisperConfig, net: Whisper, tokenizer: Tokenizer, options: Options) -> None:
        self.config, self.tokenizer = config, tokenizer
        self.modules: dict[str, nn.Module] = {"whisper": net}
        resources = _resources(config, options)
        self.lanes = max(2, int(options.model.get("parallel_windows", options.rows // 2)))
        windows = int(options.model.get("encoder_windows", 1 if options.device == "cpu" else 8))
        sampler = resources["sampler"]
        assert isinstance(sampler, Sampler)
        self.profile = profile_of(options)
        quick = QuickEncoder(net.encoder) if self.profile.quick else None
        head = quick_head(net.decoder.head, tokenizer.timestamps) if self.profile.quick else None
        nodes = (
            Encoder(config, net, windows, quick),
            Decoder(config, net, tokenizer, sampler, options.rows, options.device, head),
            Aligner(config, net, tokenizer.eot),
        )
        self.graph = Graph({node.name: node for node in nodes}, EDGES, resources, WALKS)

    def prepare(self, task: Task) -> Job:
        """Features of the sound, tokens of the prompt."""
        audio, knobs = task.inputs["audio"], task.knobs
        assert isinstance(audio, Audio)
        assert isinstance(knobs, TranscribeKnobs)
        self._check(knobs)
        sound = Sound(audio, self.config.n_mels)
        initial = self.tokenizer.encode(f" {knobs.prompt.strip()}", "prompt") if knobs.prompt else []
        prefix = self.tokenizer.encode(f" {knobs.prefix.strip()}", "prefix") if knobs.prefix else []
        if len(prefix) >= self.config.n_text_ctx // 2:
            raise BadRequest(
                f"The prefix has {len(prefix)} tokens; at most {self.config.n_text_ctx // 2 - 1} fit.", param="prefix"
            )
        rules = rules_of(self.tokenizer, self.config, knobs)
        job = Job(self.config, self.tokenizer, knobs, sound, initial, prefix, rules)
        job.lanes = self.lanes if knobs.windowing == "parallel" else 1
        job.profile = self.profile
        return job

    def _check(self, knobs: TranscribeKnobs) -> None:
        if knobs.task == "translate" and not self.tokenizer.multilingual:
            raise BadRequest('This model knows English only: task must be "transcribe".', param="task")
        known = self.tokenizer.languages if self.tokenizer.multilingual else ("en",)
        if knobs.language is not None and knobs.language not in known:
            raise BadRequest(
                f'This model has no language "{knobs.language}".{nearest(knobs.language, known)}', param="language"
            )
        if any(token >= self.config.n_vocab for token in knobs.suppress_tokens):
            raise BadRequest(f"Token ids end at {self.config.n_vocab - 1}.", param="suppress_tokens")

    def in_flight(self, job: Job) -> int:
        """Each window depends on the one before, unless the sound is cut into stretches."""
        return job.lanes

    def pieces(self, job: Job) -> Steps:
        return transcribe(job)

    def present(self, port: str, items: Packed) -> Any:
        """Segments as a list; facts as one mapping, with the language by its English name, as OpenAI writes it."""
        if port != "info":
            return list(items.values)
        facts = dict(items.values[0])
        return facts | {"language": LANGUAGES[facts["language"]]} if "language" in facts else facts


def _resources(config: WhisperConfig, options: Options) -> dict[str, Resource]:
    """One page a window or a transcript, so that a CPU reads every cache where it lies."""

    def cache(label: str, length: int) -> PagedKV:
        sizes = {"pages": options.rows, "page_size": length} | dict(options.resources.get(label, {}))
        return PagedKV(
            layers=config.n_text_layer,
            kv_heads=config.n_text_head,
            head_dim=config.head_dim,
            slots=options.rows,
            max_len=length,
            dtype=torch.float32,
            device=options.device,
            numerics=options.numerics,
            **sizes,
        )

    return {
        "cross_kv": cache("cross_kv", config.n_audio_ctx),
        "decoder_kv": cache("decoder_kv", config.n_text_ctx),
        "align_kv": cache("align_kv", config.n_text_ctx),
        "sampler": Sampler(slots=options.rows, vocab=config.n_vocab, device=options.device),
    }
