"""Kokoro's graph and the port: text in sentence pieces, each through both halves, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

import numpy as np
from torch import Tensor

from models.kokoro import media
from models.kokoro.config import MAX_PHONEMES, SAMPLE_RATE
from models.kokoro.g2p import G2P
from models.kokoro.modules import Kokoro
from models.kokoro.nodes import FrameHalf, Manner, Noise, TextHalf
from models.kokoro.request import Deployment, SpeakKnobs
from models.kokoro.swift import SwiftFrameHalf
from models.kokoro.voices import Voices
from serving.core.contract import Edge, Emit, Graph, Options, Packed, Piece, Steps, Task
from serving.core.streams import Each, Whole
from serving.errors import BadRequest

EDGES = (
    Edge("client.tokens", "text_half.tokens", Whole()),
    Edge("text_half.frames", "noise.frames", Whole()),
    Edge("text_half.frames", "frame_half.frames", Whole()),
    Edge("text_half.encoded", "frame_half.encoded", Whole(), device=True),
    Edge("noise.noise", "frame_half.noise", Whole(), device=True),
    Edge("frame_half.pcm", "client.audio", Each(), rate=SAMPLE_RATE),
)
WALKS = {"speak": ("text_half", "noise", "frame_half")}


@dataclass(frozen=True, slots=True)
class Job:
    """A prepared request: the phonemes of each piece, worked out as they are needed, and how they are spoken."""

    phonemes: Iterator[str]
    table: Tensor  # [510, 256] the voice's styles by length
    speed: float
    seed: int
    voice: str
    language: str
    live: bool  # played as it is made


class KokoroPort:
    """The port: `serving.core.contract.Model`."""

    def __init__(self, net: Kokoro, voices: Voices, g2p: G2P, options: Options, deployment: Deployment) -> None:
        cpu = options.device == "cpu"
        rows = deployment.batch_rows or (1 if cpu or options.numerics == "invariant" else 4)
        captured = deployment.captured_length or (128 if cpu else 512)
        self.net, self.d, self.device = net, deployment, options.device
        self._voices, self._g2p = voices, g2p
        self.modules = {"kokoro": net}
        frames = SwiftFrameHalf(net) if cpu and options.profile != "exact" else net.frame_half
        nodes = (
            TextHalf(net, deployment.text_buckets, rows, captured),
            Noise(net, options.device),
            FrameHalf(net, deployment.frame_buckets, rows, captured, frames),
        )
        self.graph = Graph({node.name: node for node in nodes}, EDGES, {}, WALKS)

    def voices(self) -> Sequence[str]:
        """The voices that this server can speak now: those whose language has its G2P here."""
        return [name for name in self._voices.names if self._g2p.speakable(name[0])]

    def prepare(self, task: Task) -> Job:
        """Text to phonemes in pieces, voice to styles. Raises `BadRequest` naming the field."""
        knobs: SpeakKnobs = task.knobs
        table = self._voices.table(knobs.voice)
        language = knobs.lang_code or self.d.lang_code or self._voices.languages(knobs.voice)[0]
        if knobs.phonemes is not None:
            pieces = self._given(knobs.phonemes, knobs.speed)
        else:
            pieces = self._from_text(str(task.inputs["text"]), language, knobs.speed)
        return Job(pieces, table, knobs.speed, task.seed, knobs.voice, language, task.live)

    def _from_text(self, text: str, language: str, speed: float) -> Iterator[str]:
        if not text.strip():
            raise BadRequest("The text is empty.", param="input")
        known = self.net.config.vocab

        @lru_cache(maxsize=64)  # a part is measured before it is said
        def phonemize(part: str) -> str:
            return "".join(p for p in self._g2p(language, part) if p in known)

        nothing = BadRequest("Nothing in the text can be pronounced: give it some words.", param="input")
        return self._pieces(text, phonemize, speed, nothing)

    def _given(self, phonemes: str, speed: float) -> Iterator[str]:
        known = self.net.config.vocab
        unknown = sorted({p for p in phonemes if p not in known})
        if unknown:
            message = f"Not phonemes of this model: {' '.join(unknown)}. Known: {''.join(known)}"
            raise BadRequest(message, param="phonemes")
        return self._pieces(phonemes, str, speed, BadRequest("There is no phoneme to pronounce.", param="phonemes"))

    def _pieces(self, text: str, phonemize: Callable[[str], str], speed: float, nothing: BadRequest) -> Iterator[str]:
        """The pieces, read up to the first in which something is pronounced; `nothing` is raised if none is."""
        first, target = self.d.first_chunk_target_phonemes, self.d.chunk_target_phonemes
        pieces = media.pieces(text, phonemize, speed, first, target)
        read = []
        for piece in pieces:
            read.append(piece)
            if any(p.isalpha() for p in piece):
                return chain(read, pieces)
        raise nothing

    def in_flight(self, job: Job) -> int:
        """One where it is played on a CPU: the next piece's first half would delay this one's second."""
        return 1 if self.device == "cpu" and job.live else 2

    def pieces(self, job: Job) -> Steps:
        """Every piece goes through the whole walk."""
        count = phonemes = 0
        for count, piece in enumerate(job.phonemes, 1):
            style = job.table[min(len(piece), MAX_PHONEMES) - 1].to(self.device)
            manner = Manner(style, job.speed, (job.seed + count - 1) % 2**63)
            phonemes += len(piece)
            yield Piece("speak", {"text_half.tokens": Packed.one(media.tokens(piece, self.net.config.vocab))}, manner)
        facts = {"voice": job.voice, "language": job.language, "pieces": count, "phonemes": phonemes}
        yield Emit("info", Packed.one([facts]))

    def present(self, port: str, items: Packed) -> np.ndarray | dict[str, object]:
        """Samples float32 [T] at 24 kHz; facts about the whole."""
        if port == "info":
            return items.values[0]
        return np.asarray(items.values, np.float32)
