"""S3Gen's nodes: speech tokens to mel frames, mel frames to samples; whole, or chunk by chunk of a stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.chatterbox.flow import Flow, Window
from models.chatterbox.s3gen_config import FRAMES_PER_TOKEN, MELS, SAMPLE_RATE
from models.chatterbox.s3gen_noise import Draws, field_offsets, flow_field, source_field
from models.chatterbox.stream import TAIL, StreamPlan, joined
from models.chatterbox.vocoder import HiFT
from models.chatterbox.vocoder_source import HARMONICS, Phase
from serving.core.contract import Batch, Chunk, Node, Offer, Packed, Row, Settled, Verdict

QUIET = SAMPLE_RATE // 50  # samples of silence at the start, and as many of rise: the prompt spills into them
Mark = Callable[[Tensor], Tensor]  # samples [B, T] to samples that are marked


@dataclass(frozen=True, slots=True)
class Span:
    """A chunk of tokens in the frames of one row's solve."""

    prompt: int  # frames of the prompt's tokens
    fresh: int  # frames of the new tokens
    kept: int  # frames that are solved
    new: slice  # frames that are given out

    @classmethod
    def of(cls, chunk: Chunk, row: Row, whole: bool) -> Span:
        tokens = prompt_of(row), chunk.stop - chunk.fresh, prompt_of(row) + chunk.stop - chunk.start
        prompt, fresh, kept = (FRAMES_PER_TOKEN * n for n in tokens)
        return cls(prompt, fresh, kept, slice(kept - fresh + (odd_frame(row) if whole else 0), kept))


def prompt_of(row: Row) -> int:
    """Tokens of the prompt of the row's voice."""
    return int(row.knobs.voice.gen.prompt_token.shape[1])


def odd_frame(row: Row) -> int:
    """1 where a clip's mel has a frame more than its tokens: in the package that is the first frame of the speech."""
    return int(row.knobs.voice.gen.prompt_feat.shape[1]) - FRAMES_PER_TOKEN * prompt_of(row)


class FlowNode(Node):
    """Speech tokens to mel frames. Chunks of several requests share one padded solve.

    `bucket`: tokens that lengths are padded to a multiple of; 1 pads nothing and computes the package's own bits.
    `ladder`: lengths that solves are padded to instead, as far as it goes; each is captured at powers of two of rows.
    The knobs of a row have its `voice.gen` (prompt_token, prompt_feat, embedding), its `seed` and the request's
    `knobs` (n_cfm_timesteps).
    """

    uniform = True

    def __init__(
        self, net: Flow, plan: StreamPlan, rows: int, bucket: int, speaker: int, ladder: Sequence[int] = ()
    ) -> None:
        self.name = plan.nodes[0]
        self.net, self.plan, self.bucket, self.speaker = net, plan, bucket, speaker
        self.budget, self.ladder = float(rows), tuple(sorted(ladder))
        sizes = [n for n in (1, 2, 4, 8, 16, 32) if n < rows] + [rows]
        self.buckets = tuple((n, n * length) for n in sizes for length in self.ladder)
        nothing = self.ladder[0] if self.ladder else 1  # it computes nothing, in whatever bucket there is
        self.end = Offer(("end",), nothing, nothing, take=("tokens",))

    def cost(self, units: np.ndarray) -> float:
        return float(len(units))

    def padded(self, count: int) -> int:
        """The length that a row of so many tokens is padded to."""
        rung = next((length for length in self.ladder if length >= count), None)
        return rung or self.bucket * -(-count // self.bucket)

    def offer(self, row: Row) -> Offer | None:
        chunk = row.chunks["tokens"]
        if chunk is None:
            return None
        if chunk.stop == chunk.fresh:
            return self.end
        count = prompt_of(row) + chunk.seen - chunk.start
        length = self.padded(count)
        ahead = chunk.seen - chunk.stop if self.bucket == 1 else 0
        steps = row.knobs.knobs.n_cfm_timesteps
        return Offer(("solve", length, ahead, steps), length, length, take=("tokens",))

    def stage(self, b: Batch) -> None:
        chunks = b.chunks("tokens")
        if chunks and chunks[0].stop == chunks[0].fresh:
            return
        length = int(b.units[0]) if b.n else b.total // b.size  # the same for all rows of a step
        kept = [span.kept for span in self._spans(b)]
        frames = kept[0] if self.bucket == 1 and kept else FRAMES_PER_TOKEN * length
        window = self._window(b, length, frames)
        for part in window[:-1]:
            part.zero_()
        window.lengths.fill_(1)
        window.kept.fill_(1)
        for i, (row, chunk) in enumerate(zip(b.rows, chunks, strict=True)):
            self._fill(window, i, row, chunk, b.ins["tokens"].row(i))

    def _window(self, b: Batch, length: int, frames: int) -> Window:
        return Window(
            b.buffer("ids", (b.size, length), torch.int64),
            b.buffer("lengths", (b.size,), torch.int64),
            b.buffer("kept", (b.size,), torch.int64),
            b.buffer("prompt", (b.size, frames, MELS), torch.float32),
            b.buffer("speaker", (b.size, self.speaker), torch.float32),
            b.buffer("noise", (b.size, MELS, frames), torch.float32),
            self.bucket == 1,
        )

    def _fill(self, w: Window, i: int, row: Row, chunk: Chunk, tokens: Any) -> None:
        """Row i: the voice's prompt, then the chunk with its context and look-ahead."""
        voice, span = row.knobs.voice.gen, Span.of(chunk, row, self.plan.whole)
        count, known = prompt_of(row), span.prompt + (odd_frame(row) if self.plan.whole else 0)
        total = count + len(tokens)
        w.tokens[i, :count] = voice.prompt_token[0]
        w.tokens[i, count:total] = torch.as_tensor(tokens)
        w.lengths[i], w.kept[i] = total, span.kept
        w.prompt[i, :known] = voice.prompt_feat[0, :known]
        w.speaker[i] = voice.embedding[0]
        w.noise[i, :, : span.kept] = self.noise(row.knobs.seed, chunk, span)

    def noise(self, seed: int, chunk: Chunk, span: Span) -> Tensor:
        """Where the row's flow starts: [80, kept]."""
        if self.plan.whole:
            return Draws(seed).flow(span.prompt, span.fresh, self.net.decoder.meanflow)
        return flow_field(seed, span.prompt, FRAMES_PER_TOKEN * chunk.start, FRAMES_PER_TOKEN * chunk.stop)

    def launch(self, b: Batch) -> Mapping[str, Tensor]:
        chunks = b.chunks("tokens")
        if chunks and chunks[0].stop == chunks[0].fresh:
            return {"mel": torch.zeros(b.size, 0, MELS, device=b.slots.device)}
        steps = b.rows[0].knobs.knobs.n_cfm_timesteps if b.rows else 1
        held = b.buffers
        window = self._window(b, held["ids"].shape[1], held["noise"].shape[2])
        return {"mel": self.net(window, steps).transpose(1, 2)}

    def settle(self, b: Batch, out: Mapping[str, Any]) -> Settled:
        mel = [out["mel"][i, span.new] if span.fresh else out["mel"][i, :0] for i, span in enumerate(self._spans(b))]
        lengths = np.array([len(one) for one in mel], np.int64)
        verdicts = np.where([chunk.final for chunk in b.chunks("tokens")], Verdict.DONE, Verdict.WAIT)
        return Settled(verdicts, {"mel": Packed(torch.cat(mel), lengths)})

    def _spans(self, b: Batch) -> list[Span]:
        return [Span.of(chunk, row, self.plan.whole) for chunk, row in zip(b.chunks("tokens"), b.rows, strict=True)]


class VocoderNode(Node):
    """Mel frames to samples. Rows of a step have the same number of frames, so that nothing is padded.

    A stream's chunk comes with the last frames of the one before, which are made again, the last of them cross-faded
    into what was held back of that one; its own last frames are held back unless it is final.
    """

    def __init__(self, net: HiFT, meanflow: bool, plan: StreamPlan, slots: int, rows: int, mark: Mark | None) -> None:
        self.name = plan.nodes[1]
        self.net, self.meanflow, self.plan, self.mark = net, meanflow, plan, mark
        self.budget, self.each, device = float(rows), net.c.samples_per_frame, net.conv_pre.weight.device
        self.held = torch.zeros(slots + 1, TAIL * self.each, device=device)
        self.turns = torch.zeros(slots + 1, HARMONICS, device=device)
        self.fade = torch.cat([torch.zeros(QUIET), _rise_from_silence()]).to(device)

    def cost(self, units: np.ndarray) -> float:
        return float(len(units))

    def begin(self, row: Row) -> None:
        self.turns[row.slot] = 0

    def offer(self, row: Row) -> Offer | None:
        chunk = row.chunks["mel"]
        if chunk is None:
            return None
        marked = self.mark is not None and row.knobs.knobs.watermark
        frames = 0 if chunk.stop == chunk.fresh else chunk.stop - chunk.start
        return Offer((frames, chunk.fresh - chunk.start, chunk.final, marked, chunk.fresh == 0), take=("mel",))

    def launch(self, b: Batch) -> Mapping[str, Tensor]:
        """Every row's new samples [B, S]; the tables of sound held back and of turns are written last."""
        chunk = b.chunks("mel")[0]  # rows of a step differ in nothing but where their stream stands
        lead, overlap = self._again(chunk)
        held = self.held[b.slots, :overlap]
        if chunk.stop == chunk.fresh:
            return {"pcm": held}
        sound, turns = self._sound(b, b.ins["mel"].values.view(b.n, -1, MELS).transpose(1, 2))
        sound = sound[:, lead:]
        if overlap:
            sound = torch.cat([joined(held, sound[:, :overlap]), sound[:, overlap:]], 1)
        if chunk.final:
            return {"pcm": sound}
        tail = self.each * min(TAIL, chunk.stop)
        self.held[b.slots, :tail] = sound[:, -tail:]
        if tail < turns.shape[2]:
            self.turns[b.slots] = turns[:, :, -tail - 1] % 1
        return {"pcm": sound[:, :-tail]}

    def _again(self, chunk: Chunk) -> tuple[int, int]:
        """Samples at the chunk's start that are only led through, and those behind them that are cross-faded."""
        before = chunk.fresh - chunk.start
        return self.each * max(0, before - TAIL), self.each * min(TAIL, before)

    def _sound(self, b: Batch, mel: Tensor) -> tuple[Tensor, Tensor]:
        """Samples [B, S] and turns [B, 9, S] of frames [B, 80, T]. On a CPU row by row: a batch is no faster there."""
        chunks = b.chunks("mel")
        made = [self._speak(mel[i : i + 1], row, chunks[i]) for i, row in enumerate(b.rows)]
        sound, turns = (torch.cat(parts) for parts in zip(*made, strict=True))
        if chunks[0].fresh == 0:
            count = min(len(self.fade), sound.shape[1])
            sound[:, :count] *= self.fade[:count]
        if self.mark is not None and b.rows[0].knobs.knobs.watermark:
            sound = self.mark(sound)
        return sound, turns

    def _speak(self, mel: Tensor, row: Row, chunk: Chunk) -> tuple[Tensor, Tensor]:
        offsets, noise = self.noise(row, chunk)
        phase = Phase(self.turns[row.slot][None], offsets[None].to(mel.device), self._again(chunk)[0])
        source, turns = self.net.m_source(self.net.pitch(mel), phase, noise[None].to(mel.device))
        return self.net(mel, source), turns

    def noise(self, row: Row, chunk: Chunk) -> tuple[Tensor, Tensor]:
        """Where the row's sines start [9, 1], and the noise of its samples [9, S]."""
        seed, frames = row.knobs.seed, chunk.stop - chunk.start
        if not self.plan.whole:
            return field_offsets(seed), source_field(seed, chunk.start, chunk.stop, self.each)
        draws = Draws(seed)
        draws.flow(FRAMES_PER_TOKEN * prompt_of(row), frames + odd_frame(row), self.meanflow)
        return draws.offsets(), draws.source(self.each * frames)

    def settle(self, b: Batch, out: Mapping[str, Any]) -> Settled:
        pcm = out["pcm"][: b.n]
        verdict = Verdict.DONE if b.chunks("mel")[0].final else Verdict.WAIT
        lengths = np.full(b.n, pcm.shape[1], np.int64)
        return Settled(np.full(b.n, verdict), {"pcm": Packed(pcm.reshape(-1), lengths)})


def _rise_from_silence() -> Tensor:
    return (torch.cos(torch.linspace(torch.pi, 0, QUIET)) + 1) / 2
