"""A checkpoint folder to a port: T3, the speaker encoder, the synthesiser, voices, the tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from pydantic import TypeAdapter
from torch import nn

from models.chatterbox import media, s3gen_weights, stream, watermark, weights
from models.chatterbox.conditioning import Conditionals, GenPart, T3Part, Voices
from models.chatterbox.config import SAMPLE_RATE, VARIANTS, Variant
from models.chatterbox.graph import ChatterboxPort
from models.chatterbox.modules import Chatterbox
from models.chatterbox.request import Deployment
from models.chatterbox.s3gen_config import TOKEN_RATE, TURBO, S3GenConfig
from models.chatterbox.s3gen_nodes import FlowNode, Mark, VocoderNode
from models.chatterbox.stream import WHOLE, StreamPlan
from models.chatterbox.t3 import T3
from models.chatterbox.tokenizer import English, Multilingual, Tokenizer, Turbo
from models.chatterbox.voice_prompt import LONGEST, prompt, prompt_tokens
from models.weights.sources import Hub, Local, fetch
from serving.core.contract import Audio, Edge, Node, Options, Resource
from serving.errors import SetupError

S3GEN_FILES = {
    "chatterbox": "s3gen.safetensors",
    "chatterbox_multilingual": "s3gen.pt",
    "chatterbox_turbo": "s3gen_meanflow.safetensors",
}
ENGLISH_HUB = Hub(
    "ResembleAI/chatterbox",
    "1b475dffa71fb191cb6d5901215eb6f55635a9b6",
    ("ve.safetensors", "t3_cfg.safetensors", "s3gen.safetensors", "tokenizer.json", "conds.pt"),
)
EXACT, PADDED = 1, 16  # tokens to whose multiples a solve is padded; 1 gives the package's own bits


class Speech:
    """`models.chatterbox.graph.Synthesiser`: S3Gen behind T3, and clips to voices.

    What is not played as it is made is spoken whole, whatever the plan for what is.
    """

    def __init__(self, nets: Chatterbox, variant: Variant, plan: StreamPlan, options: Options, d: Deployment) -> None:
        self.net, self.speaker, self.variant = nets.s3gen, nets.speaker, variant
        self.mark = marker(options) if d.watermark else None
        plans = (WHOLE,) if plan.whole else (WHOLE, plan)
        self.walks: dict[str, tuple[str, ...]] = {"whole": WHOLE.nodes, "stream": plan.nodes}
        self.nodes: Sequence[Node] = [node for one in plans for node in self._nodes(one, options, d)]
        self.edges: Sequence[Edge] = [edge for one in plans for edge in stream.edges(one)]
        self.resources: dict[str, Resource] = {}
        self.modules: dict[str, nn.Module] = {"s3gen": nets.s3gen, "speaker": nets.speaker}

    def _nodes(self, plan: StreamPlan, options: Options, d: Deployment) -> tuple[FlowNode, VocoderNode]:
        net, rows = self.net, d.s3gen_max_batch_size
        meanflow, speaker, bucket = net.flow.decoder.meanflow, net.config.speaker.embedding, bucket_of(plan, options)
        ladder = ladder_of(plan, options, d)
        # A step of many rows is no faster on a CPU than as many steps, and buckets of them would take minutes to warm.
        together = 1 if options.capture == "static" and options.device == "cpu" else rows
        flow = FlowNode(net.flow, plan, together, bucket, speaker, ladder)
        return flow, VocoderNode(net.mel2wav, meanflow, plan, options.rows, rows, self.mark)

    @torch.inference_mode()
    def voice(self, audio: Audio) -> Conditionals:
        """The voice of a clip, as the package prepares it."""
        high, low = media.heard(audio, level=self.variant.levelled)
        tokens = prompt_tokens(self.net, low, self.variant.prompt_seconds, self.variant.prompt_tokens)
        return Conditionals(T3Part(self.speaker.embed(low), tokens), GenPart(*prompt(self.net, high)))


def bucket_of(plan: StreamPlan, options: Options) -> int:
    """Tokens that a solve is padded to a multiple of, so that requests of other lengths share it.

    A whole utterance has the package's own bits, but for `fast` on an accelerator: on a CPU nothing is gained by it.
    """
    shared = options.profile == "fast" and options.device != "cpu" and options.numerics == "fast"
    return EXACT if plan.whole and not shared else PADDED


def ladder_of(plan: StreamPlan, options: Options, d: Deployment) -> tuple[int, ...]:
    """Lengths that a stream's solves are padded to where they are captured: of the chunks behind the longest prompt.

    In `invariant` whether they are captured or not, since padding to another length may move a convolution's bits. A
    rung from which it is less than a tenth to the next is left out.
    """
    if plan.whole or (options.capture == "eager" and options.numerics == "fast"):
        return ()
    prompt, found = TOKEN_RATE * LONGEST, list[int]()
    for seen in reversed(plan.seen(d.max_new_tokens_limit)):
        length = PADDED * -(-(prompt + seen) // PADDED)
        if not found or 1.1 * length <= found[0]:
            found.insert(0, length)
    return tuple(found)


def marker(options: Options) -> Mark | None:
    """The watermark as the vocoder puts it on; None, said in the log, where the package cannot be had."""
    net = watermark.found()
    if net is None:
        return None
    net = net.to(options.device)
    return lambda samples: net.mark(samples, SAMPLE_RATE)


def load_port(key: str, options: Options) -> ChatterboxPort:
    """The port of a key. Raises `SetupError`."""
    folder, variant, d = folder_of(key, options), VARIANTS[key], Deployment(**options.model)
    nets = networks(key, folder, getattr(torch, d.t3_dtype)).to(options.device)
    synthesiser = Speech(nets, variant, plan_of(variant, d), options, d)
    voices = Voices.find(folder, d.voices_dir)
    return ChatterboxPort(variant, nets.t3, tokenizer_of(key, folder), voices, synthesiser, options, d)


def networks(key: str, folder: Path, dtype: torch.dtype = torch.float32) -> Chatterbox:
    """Every network of a checkpoint; T3 in `dtype`."""
    variant = VARIANTS[key]
    t3 = weights.load_t3(weights.read(folder / variant.t3_file), dtype)
    speaker = weights.load_speaker(weights.read(folder / variant.speaker_file))
    s3gen = s3gen_weights.s3gen(weights.read(folder / S3GEN_FILES[key]), sizes_of(folder, t3))
    return Chatterbox(t3, speaker, s3gen)


def folder_of(key: str, options: Options) -> Path:
    """Where the checkpoint is."""
    if options.weights:
        return fetch(Local(options.weights))
    if key == "chatterbox":
        return fetch(ENGLISH_HUB)
    raise SetupError(f"{key} is loaded from a folder: set `weights`", param="weights")


def sizes_of(folder: Path, net: T3) -> S3GenConfig:
    """S3Gen's sizes: the published ones, unless the folder says otherwise in `s3gen_config.json`."""
    path = folder / "s3gen_config.json"
    if path.is_file():
        return TypeAdapter(S3GenConfig).validate_json(path.read_text())
    return TURBO if net.config.turbo else S3GenConfig()


def tokenizer_of(key: str, folder: Path) -> Tokenizer:
    """The tokenizer of a checkpoint."""
    if key == "chatterbox_turbo":
        return Turbo(folder)
    made = Multilingual if key == "chatterbox_multilingual" else English
    return made(folder / VARIANTS[key].tokenizer_file)


def plan_of(variant: Variant, d: Deployment) -> StreamPlan:
    """How sound is cut for streaming, by the deployment."""
    return StreamPlan(
        d.stream_first_chunk_tokens or variant.first_chunk,
        d.stream_chunk_tokens,
        d.stream_chunk_growth,
        d.stream_max_chunk_tokens,
        d.stream_context_tokens,
    )
