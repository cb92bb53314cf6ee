"""A centred STFT and its inverse over rows of different lengths, each row as `torch.stft` would treat it alone."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.kokoro.layers import Span


class Spectrum(nn.Module):
    """Periodic Hann window; `hop` divides `n_fft`. Buffers are constants of the code, not of a checkpoint."""

    window: Tensor

    def __init__(self, n_fft: int, hop: int) -> None:
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        window = torch.hann_window(n_fft, periodic=True, device="cpu")
        self.register_buffer("window", window, persistent=False)

    def forward_transform(self, x: Tensor, lengths: Tensor) -> Tensor:
        """x [B, S], row i real up to lengths[i] -> magnitude over phase [B, n_fft + 2, S / hop + 1], zero past it."""
        half = self.n_fft // 2
        last = lengths[:, None] - 1
        at = torch.arange(-half, x.shape[1] + half, device=x.device).abs()
        mirrored = last - (last - at).abs()  # both ends reflect, the right one where the row really ends
        framed = x.gather(1, mirrored.clamp(min=0)).unfold(1, self.n_fft, self.hop)
        spectrum = torch.fft.rfft(framed * self.window).transpose(1, 2)
        mask = Span.of(lengths // self.hop + 1, spectrum.shape[2]).mask
        return torch.cat([spectrum.abs(), spectrum.angle()], 1) * mask

    def inverse_transform(self, magnitude: Tensor, phase: Tensor, span: Span) -> Tensor:
        """[B, n_fft / 2 + 1, steps] -> [B, (steps - 1) * hop]; `magnitude` is zero past a row's end."""
        frames = torch.fft.irfft(torch.polar(magnitude, phase), dim=1, n=self.n_fft)
        window = self.window[None, :, None]
        audio = self._overlap_add(frames * window)
        weight = self._overlap_add(window.square() * span.mask)
        samples = ((span.lengths - 1) * self.hop)[:, None]
        real = torch.arange(audio.shape[1], device=audio.device) < samples
        return torch.where(real, audio / weight.clamp(min=1e-11), 0)

    def _overlap_add(self, frames: Tensor) -> Tensor:
        """[B, n_fft, steps] -> [B, (steps - 1) * hop]: the half windows before the first and after the last cut off."""
        size = (frames.shape[2] - 1) * self.hop + self.n_fft
        shape = {"output_size": (1, size), "kernel_size": (1, self.n_fft), "stride": (1, self.hop)}
        half = self.n_fft // 2
        return F.fold(frames, **shape)[:, 0, 0, half:-half]
