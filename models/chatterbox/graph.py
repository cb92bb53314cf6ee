"""Chatterbox on the core: a voice and a text to a prompt, speech tokens, sound; long text in groups of sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from models.chatterbox import media
from models.chatterbox.alignment import Alignment
from models.chatterbox.conditioning import Conditionals, VoiceCache, Voices
from models.chatterbox.config import Variant
from models.chatterbox.nodes import BOTH, COND, Conditioner, T3Node, Utterance, order_of
from models.chatterbox.request import Deployment, SpeakKnobs
from models.chatterbox.t3 import T3
from models.chatterbox.tokenizer import Tokenizer
from serving.core.contract import (
    Audio,
    Edge,
    Emit,
    Graph,
    Need,
    Node,
    Options,
    Packed,
    Piece,
    Resource,
    Steps,
    Task,
)
from serving.core.streams import Whole
from serving.errors import BadRequest
from serving.resources import PagedKV, Sampler


class Synthesiser(Protocol):
    """Speech tokens to sound, and clips to voices: what stands behind T3."""

    @property
    def nodes(self) -> Sequence[Node]:
        """What runs after `t3`."""

    @property
    def walks(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the nodes after `t3`, in order: "whole" once it has ended, "stream" while it goes on."""

    @property
    def edges(self) -> Sequence[Edge]:
        """From "t3.tokens" to "client.audio", of both walks."""

    @property
    def resources(self) -> Mapping[str, Resource]: ...
    @property
    def modules(self) -> Mapping[str, nn.Module]: ...

    def voice(self, audio: Audio) -> Conditionals:
        """The voice of a clip."""


@dataclass(frozen=True, slots=True)
class Job:
    """A prepared request."""

    walk: str
    utterances: tuple[Utterance, ...]
    voice: str
    language: str


class ChatterboxPort:
    """The port: `serving.core.contract.Model`."""

    def __init__(
        self,
        variant: Variant,
        net: T3,
        tokenizer: Tokenizer,
        voices: Voices,
        synthesiser: Synthesiser,
        options: Options,
        deployment: Deployment,
    ) -> None:
        self.variant, self.tokenizer, self.d = variant, tokenizer, deployment
        self.synthesiser, self._voices = synthesiser, voices
        self._clips = VoiceCache(synthesiser.voice, deployment.voices_kept)
        self.modules = {"t3": net, **synthesiser.modules}
        self.config = net.config
        resources = t3_resources(net, variant, options, deployment)
        first = t3_nodes(net, variant, resources, options, deployment)
        edges = (Edge("conditioner.prompt", "t3.prompt", Whole()), *synthesiser.edges)
        walks = {name: (*(node.name for node in first), *then) for name, then in synthesiser.walks.items()}
        nodes = {node.name: node for node in (*first, *synthesiser.nodes)}
        self.graph = Graph(nodes, edges, {**resources, **synthesiser.resources}, walks)

    def voices(self) -> Sequence[str]:
        """The voices that this server speaks without a clip."""
        return self._voices.names

    def prepare(self, task: Task) -> Job:
        """Text to ids, clip or name to a voice. Raises `BadRequest` naming the field."""
        knobs: SpeakKnobs = task.knobs
        clip = task.inputs.get("voice")
        if clip is not None:
            media.check_clip(clip)
        texts = self._texts(str(task.inputs["text"]), knobs)
        voice = self._voices.get(knobs.voice) if clip is None else self._clip(clip)
        prompt = voice.t3.cond_prompt_speech_tokens.shape[1]
        if prompt > self.variant.prompt_tokens:
            most = self.variant.prompt_tokens
            raise BadRequest(
                f"The voice was made for another model: its prompt has {prompt} tokens, not {most}.", param="voice"
            )
        limit = self._limit(knobs)
        utterances = (Utterance(voice, ids, knobs, limit, (task.seed + i) % 2**63) for i, ids in enumerate(texts))
        walk, name = "stream" if task.live else "whole", "" if clip is not None else knobs.voice
        return Job(walk, tuple(utterances), name, self._language(knobs))

    def _clip(self, clip: Audio) -> Conditionals:
        with torch.inference_mode():
            return self._clips.get(clip)

    def _language(self, knobs: SpeakKnobs) -> str:
        return getattr(knobs, "language_id", None) or self.d.default_language

    def _limit(self, knobs: SpeakKnobs) -> int:
        most = token_limit(self.config.speech_positions, self.d)
        if knobs.max_new_tokens is not None and knobs.max_new_tokens > most:
            raise BadRequest(
                f'"max_new_tokens" must be at most {most} on this server, got {knobs.max_new_tokens}.',
                param="max_new_tokens",
            )
        return knobs.max_new_tokens or most

    def _texts(self, text: str, knobs: SpeakKnobs) -> list[np.ndarray]:
        """Ids of each piece of the text."""
        if not text.strip():
            raise BadRequest("The text is empty.", param="input")
        language, most = self._language(knobs), self.d.max_text_tokens

        def count(part: str) -> int:
            return len(self.tokenizer(part, language))

        parts = media.groups(text, count, most) if knobs.sentence_chunking else [text]
        texts = [self.tokenizer(part, language) for part in parts]
        longest = max(map(len, texts))
        if longest > most:
            hint = "shorten it, or send sentence_chunking"
            raise BadRequest(
                f"The text has {longest} tokens; at most {most} are spoken at once: {hint}.", param="input"
            )
        return texts

    def in_flight(self, job: Job) -> int:
        return 2

    def pieces(self, job: Job) -> Steps:
        """A group of sentences a piece, each through the whole walk."""
        for one in job.utterances:
            need = Need(one.units(self.config) + one.limit, one.lanes)
            yield Piece(job.walk, {"conditioner.text": Packed.one(one.text)}, one, needs={"t3_kv": need})
        counts = {"pieces": len(job.utterances), "input_tokens": sum(len(one.text) for one in job.utterances)}
        yield Emit("info", Packed.one([{"voice": job.voice, "language": job.language, **counts}]))

    def present(self, port: str, items: Packed) -> Any:
        """Samples float32 [T] at 24 kHz; facts about the whole."""
        return items.values[0] if port == "info" else np.asarray(items.values, np.float32)


def token_limit(positions: int, d: Deployment) -> int:
    """Most speech tokens of a piece: the deployment's, and the positions that T3 has."""
    return min(d.max_new_tokens_limit, positions or d.max_new_tokens_limit)


def longest(net: T3, variant: Variant, d: Deployment) -> int:
    """Most tokens of a sequence of T3."""
    c = net.config
    return c.prefix(variant.prompt_tokens) + d.max_text_tokens + 2 + token_limit(c.speech_positions, d)


def t3_resources(net: T3, variant: Variant, options: Options, d: Deployment) -> dict[str, Resource]:
    """T3's cache and sampler. On a CPU a sequence has one page, which is read where it lies."""
    c, length = net.config, longest(net, variant, d)
    lanes = COND if c.turbo else BOTH
    size = int(options.resources.get("t3_kv", {}).get("page_size", length if options.device == "cpu" else 64))
    sizes = {"page_size": size, "pages": options.rows * len(lanes) * -(-length // size)}
    kv = PagedKV(
        layers=c.layers,
        kv_heads=c.heads,
        head_dim=c.width // c.heads,
        slots=options.rows,
        max_len=length,
        lanes=lanes,
        dtype=net.speech_emb.weight.dtype,
        device=options.device,
        numerics=options.numerics,
        **{**sizes, **options.resources.get("t3_kv", {})},
    )
    sampler = Sampler(slots=options.rows, vocab=c.speech_vocab, order=order_of(c), device=options.device)
    return {"t3_kv": kv, "t3_sampler": sampler}


def t3_nodes(
    net: T3, variant: Variant, resources: Mapping[str, Resource], options: Options, d: Deployment
) -> tuple[Conditioner, T3Node]:
    """The nodes up to speech tokens, which share the table of conditioning embeddings."""
    c, sampler = net.config, resources["t3_sampler"]
    assert isinstance(sampler, Sampler)
    shape = (options.rows + 1, c.prefix(variant.prompt_tokens), c.width)
    prefixes = torch.zeros(shape, dtype=net.speech_emb.weight.dtype, device=options.device)
    budget = d.prefill_tokens or (512 if options.device == "cpu" else 2048)
    alignment = None
    if variant.analysed:
        width = longest(net, variant, d)
        alignment = Alignment(options.rows, c, options.device, columns=d.max_text_tokens, width=width)
    return Conditioner(net, prefixes), T3Node(net, sampler, prefixes, budget, alignment, variant.silence)
