"""iSTFTNet with a harmonic source: phonemes laid out in frames, pitch and energy become a waveform."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.kokoro.config import SAMPLE_RATE, Config, VocoderConfig
from models.kokoro.layers import AdaIN1d, AdainResBlk1d, Span
from models.kokoro.spectrum import Spectrum

HARMONICS = 9  # the fundamental and eight overtones
SINE_AMPLITUDE = 0.1
NOISE_STD = 0.003
VOICED_ABOVE = 10.0  # Hz


def snake(x: Tensor, alpha: Tensor) -> Tensor:
    """x + sin²(alpha x) / alpha, the periodic activation of https://arxiv.org/abs/2006.08195."""
    return torch.addcmul(x, 1 / alpha, (alpha * x).sin_().square_())


class SnakeBlock(nn.Module):
    """Three pairs of styled convolutions, the first of each dilated, every pair with a residual."""

    def __init__(self, channels: int, kernel: int, dilations: tuple[int, ...], style_dim: int) -> None:
        super().__init__()

        def conv(dilation: int) -> nn.Conv1d:
            return nn.Conv1d(channels, channels, kernel, dilation=dilation, padding=dilation * (kernel - 1) // 2)

        self.convs1 = nn.ModuleList(conv(d) for d in dilations)
        self.convs2 = nn.ModuleList(conv(1) for _ in dilations)
        self.adain1 = nn.ModuleList(AdaIN1d(style_dim, channels) for _ in dilations)
        self.adain2 = nn.ModuleList(AdaIN1d(style_dim, channels) for _ in dilations)
        self.alpha1 = nn.ParameterList(torch.ones(1, channels, 1) for _ in dilations)
        self.alpha2 = nn.ParameterList(torch.ones(1, channels, 1) for _ in dilations)

    def forward(self, x: Tensor, style: Tensor, span: Span) -> Tensor:
        layers = (self.convs1, self.convs2, self.adain1, self.adain2, self.alpha1, self.alpha2)
        for conv1, conv2, norm1, norm2, alpha1, alpha2 in zip(*layers, strict=True):
            h = conv1(snake(norm1(x, style, span), alpha1))
            x = conv2(snake(norm2(h, style, span), alpha2)) + x
        return x


class HarmonicSource(nn.Module):
    """Sines at multiples of the pitch where the speech is voiced, noise elsewhere, mixed into one excitation."""

    def __init__(self, samples_per_value: int) -> None:
        super().__init__()
        self.samples_per_value = samples_per_value
        self.l_linear = nn.Linear(HARMONICS, 1)

    def forward(self, f0: Tensor, noise: Tensor) -> Tensor:
        """f0 [B, V] in Hz, noise [B, 9, V * samples_per_value] standard normal -> [B, samples].

        The phase is summed at one value a pitch frame and interpolated; the reference adds a random first phase,
        which its interpolation then steps over, so it has no part here.
        """
        each = self.samples_per_value
        multiples = torch.arange(1, HARMONICS + 1, device=f0.device, dtype=f0.dtype)[:, None]
        turns = (f0[:, None] * multiples / SAMPLE_RATE) % 1  # [B, 9, V]
        phase = torch.cumsum(turns, 2) * 2 * torch.pi
        phase = F.interpolate(phase * each, scale_factor=float(each), mode="linear")
        voiced = (f0 > VOICED_ABOVE).float().repeat_interleave(each, 1)[:, None]
        amplitude = voiced * NOISE_STD + (1 - voiced) * SINE_AMPLITUDE / 3
        waves = phase.sin() * SINE_AMPLITUDE * voiced + amplitude * noise
        return torch.tanh(self.l_linear(waves.transpose(1, 2)))[:, :, 0]


class Generator(nn.Module):
    """Upsamples to one step an STFT hop, adding the source's spectrum at each scale, and predicts a spectrum."""

    def __init__(self, config: VocoderConfig, style_dim: int) -> None:
        super().__init__()
        rates, kernels = config.upsample_rates, config.upsample_kernel_sizes
        bins = config.gen_istft_n_fft + 2
        self.rates = rates
        self.spectrum = Spectrum(config.gen_istft_n_fft, config.gen_istft_hop_size)
        self.m_source = HarmonicSource(math.prod(rates) * config.gen_istft_hop_size)
        widths = [config.upsample_initial_channel >> i for i in range(len(rates) + 1)]
        self.ups = nn.ModuleList(
            nn.ConvTranspose1d(widths[i], widths[i + 1], k, u, padding=(k - u) // 2)
            for i, (u, k) in enumerate(zip(rates, kernels, strict=True))
        )
        shapes = list(zip(config.resblock_kernel_sizes, config.resblock_dilation_sizes, strict=True))
        self.blocks_a_stage = len(shapes)
        self.resblocks = nn.ModuleList(SnakeBlock(w, k, d, style_dim) for w in widths[1:] for k, d in shapes)
        self.noise_convs, self.noise_res = nn.ModuleList(), nn.ModuleList()
        for i, width in enumerate(widths[1:], 1):
            last = i == len(rates)
            self.noise_convs.append(nn.Conv1d(bins, width, 1) if last else _down(bins, width, math.prod(rates[i:])))
            self.noise_res.append(SnakeBlock(width, 11 if last else 7, (1, 3, 5), style_dim))
        self.conv_post = nn.Conv1d(widths[-1], bins, 7, padding=3)

    def source(self, f0: Tensor, noise: Tensor, lengths: Tensor) -> Tensor:
        """Magnitude and phase [B, bins, steps + 1] of the excitation; `lengths` [B] counts pitch values."""
        samples = lengths * self.m_source.samples_per_value
        return self.spectrum.forward_transform(self.m_source(f0, noise), samples)

    def forward(self, x: Tensor, style: Tensor, source: Tensor, lengths: Tensor) -> Tensor:
        """x [B, C, V] with `lengths` [B] real values -> audio [B, samples], zero past each row's end."""
        span = None
        for i, up in enumerate(self.ups):
            lengths = lengths * self.rates[i]
            x = up(F.leaky_relu(x, 0.1))
            if i == len(self.rates) - 1:
                lengths = lengths + 1  # as many steps as the centred STFT has
                x = F.pad(x, (1, 0), mode="reflect")
            span = Span.of(lengths, x.shape[2])
            x = x + self.noise_res[i](self.noise_convs[i](source), style, span)
            blocks = self.resblocks[i * self.blocks_a_stage : (i + 1) * self.blocks_a_stage]
            x = sum(block(x, style, span) for block in blocks) / self.blocks_a_stage * span.mask
        assert span is not None
        magnitude, phase = self.conv_post(F.leaky_relu(x)).chunk(2, 1)
        return self.spectrum.inverse_transform(magnitude.exp() * span.mask, phase.sin(), span)


def _down(inputs: int, outputs: int, stride: int) -> nn.Conv1d:
    return nn.Conv1d(inputs, outputs, 2 * stride, stride, (stride + 1) // 2)


class Decoder(nn.Module):
    """The trunk over frames, and the generator behind it."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        channels, style, wide, side = config.hidden_dim, config.style_dim, 2 * config.hidden_dim, config.dim_in
        self.encode = AdainResBlk1d(channels + 2, wide, style)
        self.decode = nn.ModuleList(AdainResBlk1d(wide + 2 + side, wide, style) for _ in range(3))
        out = config.istftnet.upsample_initial_channel
        self.decode.append(AdainResBlk1d(wide + 2 + side, out, style, upsample=True))
        self.F0_conv = nn.Conv1d(1, 1, 3, stride=2, padding=1)
        self.N_conv = nn.Conv1d(1, 1, 3, stride=2, padding=1)
        self.asr_res = nn.Sequential(nn.Conv1d(channels, side, 1))
        self.generator = Generator(config.istftnet, style)

    def trunk(self, text: Tensor, f0: Tensor, energy: Tensor, style: Tensor, span: Span, twice: Span) -> Tensor:
        """text [B, C, T] with curves [B, 2T] -> [B, C, 2T]."""
        curves = torch.cat([self.F0_conv(f0[:, None]), self.N_conv(energy[:, None])], 1)
        x = self.encode(torch.cat([text, curves], 1), style, span, span)
        side = torch.cat([self.asr_res(text), curves], 1)
        for block in self.decode:
            x = block(torch.cat([x, side], 1), style, span, twice if block.upsample else span)
        return x * twice.mask
