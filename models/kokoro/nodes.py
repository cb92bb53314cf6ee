"""Kokoro's nodes: text to durations, the source's noise, frames to sound. Rows of a step share a padded length."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.kokoro.modules import Kokoro, draw_noise, frame_counts
from models.kokoro.vocoder import HARMONICS
from serving.core.contract import Batch, Node, Offer, Packed, Row, Settled, Verdict

Frames = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]  # `Kokoro.frame_half`, or what stands for it


@dataclass(frozen=True, slots=True)
class Manner:
    """How one piece is spoken: what every node of its walk finds in `row.knobs`."""

    style: Tensor  # [256], on the device
    speed: float
    seed: int


class Bucketed(Node):
    """A node whose rows are padded to a length of a ladder, so that few shapes are ever seen.

    oneDNN keeps a primitive for every shape it meets and the heap fragments around them: at exact lengths a
    process that speaks grows by hundreds of MiB. Lengths up to `captured` are declared as buckets; a longer row runs
    alone, padded all the same.
    """

    takes: tuple[str, ...]

    def __init__(self, net: Kokoro, ladder: Sequence[int], rows: int, captured: int) -> None:
        self.net = net
        self.ladder = tuple(sorted(ladder))
        short = [length for length in self.ladder if length <= captured] or self.ladder[:1]
        self.buckets = tuple((n, n * length) for n in range(1, rows + 1) for length in short)

    def bucket(self, length: int) -> int:
        """The padded length; past the ladder, multiples of its last step up."""
        fits = next((size for size in self.ladder if size >= length), None)
        last = self.ladder[-1]
        return fits or last * -(-length // last)

    def offer(self, row: Row) -> Offer | None:
        chunks = [row.chunks[port] for port in self.takes]
        first = chunks[0]
        if first is None or None in chunks:
            return None
        length = self.bucket(max(1, first.stop - first.fresh))
        return Offer((length,), length, length, take=self.takes)

    def common(self, b: Batch, port: str) -> tuple[int, np.ndarray]:
        """Stage each row's true length, style and speed; gives the padded length and the true ones, of real rows."""
        lengths = b.ins[port].lengths if port in b.ins else np.zeros(0, np.int64)  # a warm-up has sinks only
        width = self.net.config.style_dim * 2
        counts = b.buffer("lengths", (b.size,), torch.int64)
        style = b.buffer("style", (b.size, width), torch.float32)
        speed = b.buffer("speed", (b.size,), torch.float32)
        counts.zero_()
        counts[: b.n] = torch.from_numpy(lengths)
        speed.fill_(1.0)
        for i, row in enumerate(b.rows):
            style[i] = row.knobs.style
            speed[i] = row.knobs.speed
        length = int(b.units[0]) if b.n else b.total // b.size  # a bucket may have more rows than the step
        return length, lengths


class TextHalf(Bucketed):
    """Phonemes to their encoding, and for each frame of the speech to come the phoneme that it belongs to."""

    name = "text_half"
    takes = ("tokens",)
    compiles = ("net.bert",)

    def stage(self, b: Batch) -> None:
        length, lengths = self.common(b, "tokens")
        tokens = b.buffer("tokens", (b.size, length), torch.int64)
        tokens.zero_()
        for i, n in enumerate(lengths.tolist()):
            tokens[i, :n] = torch.as_tensor(b.ins["tokens"].row(i))

    def launch(self, b: Batch) -> Mapping[str, Any]:
        held = b.buffers
        encoded = self.net.text_half(held["tokens"], held["lengths"], held["style"], held["speed"])
        return {
            "encoded": {"prosody": encoded.prosody, "text": encoded.text},
            "counts": frame_counts(encoded.durations),
        }

    def settle(self, b: Batch, out: Mapping[str, Any]) -> Settled:
        lengths = b.ins["tokens"].lengths
        frames = [np.repeat(np.arange(n), out["counts"][i, :n]) for i, n in enumerate(lengths)]
        real = {
            name: torch.cat([values[i, :n] for i, n in enumerate(lengths.tolist())])
            for name, values in out["encoded"].items()
        }
        counts = np.array([len(one) for one in frames], np.int64)
        emits = {"encoded": Packed(real, lengths), "frames": Packed(np.concatenate(frames), counts)}
        return Settled(np.full(b.n, Verdict.DONE), emits)


class Noise(Node):
    """The noise of each piece's source, drawn from its own generator once the number of frames is known.

    A node of its own because the reference's order of drawing is slow (20 ms a second of speech) and cannot be
    captured: it runs on a lane, on the CPU, whatever the device.
    """

    name = "noise"

    def __init__(self, net: Kokoro, device: str) -> None:
        self.each, self.device = net.config.samples_per_frame, device

    def offer(self, row: Row) -> Offer | None:
        return Offer(("noise",), take=("frames",)) if row.chunks["frames"] is not None else None

    def launch(self, b: Batch) -> Mapping[str, Tensor]:
        drawn = []
        for row, frames in zip(b.rows, b.ins["frames"].lengths.tolist(), strict=True):
            noise = draw_noise(torch.Generator().manual_seed(row.knobs.seed), frames * self.each)
            drawn.append(noise.unflatten(1, (frames, self.each)).transpose(0, 1))
        return {"noise": torch.cat(drawn).to(self.device)}  # [frames, 9, samples a frame]

    def settle(self, b: Batch, out: Mapping[str, Any]) -> Settled:
        return Settled(np.full(b.n, Verdict.DONE), {"noise": Packed(out["noise"], b.ins["frames"].lengths)})


class FrameHalf(Bucketed):
    """Encoded phonemes laid out in frames, and noise, to samples."""

    name = "frame_half"
    takes = ("frames", "encoded", "noise")

    def __init__(self, net: Kokoro, ladder: Sequence[int], rows: int, captured: int, frames: Frames) -> None:
        super().__init__(net, ladder, rows, captured)
        self.frames = frames
        self.compiles = ("net.decoder.generator",) if frames == net.frame_half else ()

    def stage(self, b: Batch) -> None:
        length, lengths = self.common(b, "frames")
        c, each = self.net.config, self.net.config.samples_per_frame
        widths = {"prosody": c.hidden_dim + c.style_dim, "text": c.hidden_dim}
        laid = {name: b.buffer(name, (b.size, length, width), torch.float32) for name, width in widths.items()}
        spread = b.buffer("noise", (b.size, HARMONICS, length * each), torch.float32)
        for buffer in (*laid.values(), spread):
            buffer.zero_()
        for i, n in enumerate(lengths.tolist()):
            at = torch.as_tensor(b.ins["frames"].row(i), device=b.slots.device)
            for name, values in b.ins["encoded"].row(i).items():
                laid[name][i, :n] = values[at]
            noise = b.ins["noise"].row(i).transpose(0, 1)
            spread[i, :, : n * each].unflatten(1, (n, each)).copy_(noise)

    def launch(self, b: Batch) -> Mapping[str, Tensor]:
        held = b.buffers
        audio = self.frames(held["prosody"], held["text"], held["lengths"], held["style"], held["noise"])
        return {"pcm": audio}

    def settle(self, b: Batch, out: Mapping[str, Any]) -> Settled:
        samples = b.ins["frames"].lengths * self.net.config.samples_per_frame
        pcm = np.concatenate([out["pcm"][i, :n] for i, n in enumerate(samples.tolist())])
        return Settled(np.full(b.n, Verdict.DONE), {"pcm": Packed(pcm, samples)})
