"""The toy's networks put together from libraries: torch's transformer layer, scipy's filter, diffusers' scheduler.

No cache, no chunks, no batch: every token is a whole forward pass of both guidance lanes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from scipy.signal import lfilter
from torch import Tensor, nn
from torch.nn import functional as F

from parity.harness import Spec, recipe_for
from parity.harness.record import Recording

CASES = {
    "tiny": {"seed": 11, "vocab": 64, "width": 32, "heads": 2, "layers": 2, "samples": 4, "frame": 4, "memory": 16}
}
SIZE = 48  # a patch of 4 x 4 pixels, 3 colours
POSITIONS = 512
WEIGHT, NEW = 1.5, 12  # guidance, tokens
STEPS, GUIDANCE, UNTIL, PATCHES = 6, 2.0, 3, 4


class Reference(nn.Module):
    """All parameters of the toy, under this module's own names."""

    def __init__(self, c: dict[str, int]) -> None:
        super().__init__()
        width = c["width"]
        self.tokens, self.positions = nn.Embedding(c["vocab"], width), nn.Embedding(POSITIONS, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, c["heads"], 2 * width, 0.0, "gelu", norm_first=True)
            for _ in range(c["layers"])
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, c["vocab"])
        self.table, self.mix = nn.Embedding(c["vocab"], c["samples"]), nn.Parameter(torch.zeros(4))
        self.pole = nn.Parameter(torch.zeros(1))
        self.text = nn.Embedding(c["vocab"], width)
        self.inner, self.outer = nn.Linear(SIZE + width + 1, 2 * width), nn.Linear(2 * width, SIZE)
        self.gate, self.input = nn.Linear(c["frame"], c["memory"]), nn.Linear(c["frame"], c["memory"])
        self.said = nn.Linear(c["memory"], c["vocab"])

    def forward(self, ids: Tensor) -> Tensor:
        """Logits [T, vocab] of a whole sequence [T]."""
        x = self.tokens(ids) + self.positions(torch.arange(len(ids)))
        mask = nn.Transformer.generate_square_subsequent_mask(len(ids))
        for layer in self.layers:
            x = layer(x, src_mask=mask)
        return self.head(self.norm(x))

    def speak(self, prompt: list[int]) -> list[int]:
        """Greedy tokens under guidance, never ending early."""
        said: list[int] = []
        for _ in range(NEW):
            cond, blank = (self(torch.tensor(start + said))[-1] for start in (prompt, [0] * len(prompt)))
            said.append(int((cond + WEIGHT * (cond - blank)).argmax()))
        return said

    def sound(self, said: list[int]) -> Tensor:
        """Samples [T * samples]: rows mixed over time, then y[t] = x[t] + pole * y[t - 1]."""
        rows = F.pad(self.table(torch.tensor(said)), (0, 0, 2, 1), value=0.0)
        silent = self.table.weight[0]
        rows[0], rows[1], rows[-1] = silent, silent, silent
        mixed = F.conv1d(rows.T[:, None], self.mix[None, None])[:, 0].T.reshape(-1)
        pole = float(torch.sigmoid(self.pole))
        return torch.from_numpy(lfilter([1.0], [1.0, -pole], mixed.double().numpy())).float()

    def velocity(self, x: Tensor, time: float, text: Tensor) -> Tensor:
        around = torch.cat([text, torch.tensor([time])]).expand(len(x), -1)
        return self.outer(F.silu(self.inner(torch.cat([x, around], -1))))

    def paint(self, noise: Tensor, ids: list[int]) -> Tensor:
        """Patches after the scheduler's steps, the first of them guided."""
        scheduler: Any = FlowMatchEulerDiscreteScheduler()
        scheduler.set_timesteps(sigmas=np.linspace(1.0, 1.0 / STEPS, STEPS).tolist())
        x, text = noise, self.text(torch.tensor(ids)).mean(0)
        for step, t in enumerate(scheduler.timesteps):
            time = float(scheduler.sigmas[step])
            v = self.velocity(x, time, text)
            if step < UNTIL:
                v = v + GUIDANCE * (v - self.velocity(x, time, torch.zeros_like(text)))
            x = scheduler.step(v, t, x).prev_sample
        return x

    def listen(self, samples: Tensor) -> list[int]:
        """A token for each frame of 4 samples."""
        state, heard = torch.zeros(self.said.in_features), []
        for frame in samples.view(-1, self.gate.in_features):
            keep = torch.sigmoid(self.gate(frame))
            state = keep * state + (1 - keep) * torch.tanh(self.input(frame))
            heard.append(int(self.said(state).argmax()))
        return heard


def record(case: Recording) -> None:
    torch.backends.mha.set_fastpath_enabled(False)  # the fused path calls no module, so taps would see nothing
    model = Reference(dict(case.config)).eval()
    recipe = recipe_for(model, case.config["seed"], overrides={"mix": Spec((4,), scale=0.7)})
    model.load_state_dict(recipe.build())
    case.recipe(recipe)
    words = np.random.Philox(case.config["seed"] + 1)
    prompt = [2, *(int(word % 60) + 4 for word in words.random_raw(14))]
    noise = Spec((PATCHES, SIZE)).draw(words)
    samples = Spec((40,)).draw(words)
    case.inputs(ids=torch.tensor(prompt), noise=noise, samples=samples)
    with case.taps(model):
        case.outputs(logits=model(torch.tensor(prompt)))
    said = model.speak(prompt)
    case.values["tokens"] = said
    case.values["heard"] = model.listen(samples)
    case.outputs(audio=model.sound(said), picture=model.paint(noise, prompt))
