"""A network with one of everything that a fault can hit, and its case as a reference would record it."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from parity.harness.numerics import EXACT, applied
from parity.harness.recipes import recipe_for
from parity.harness.record import Recording

WIDTH, HEADS, LENGTH, VOCABULARY = 16, 2, 6, 20


class Rotary(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.register_buffer("inv_freq", 10_000.0 ** (-torch.arange(0, size, 2) / size), persistent=False)

    def forward(self, x):
        angles = torch.outer(torch.arange(x.shape[-2]).float(), self.inv_freq)
        cos, sin = angles.cos(), angles.sin()
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.rotary = Rotary(WIDTH // HEADS)

    def forward(self, x):
        def split(t):
            return t.unflatten(-1, (HEADS, -1)).transpose(1, 2)

        q, k, v = (split(p(x)) for p in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(self.rotary(q), self.rotary(k), v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class ZeroCentredNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.zeros(WIDTH)), 1e-6

    def forward(self, x):
        return x / torch.sqrt(x.square().mean(-1, keepdim=True) + self.eps) * (1 + self.weight)


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.act, self.down_proj = nn.SiLU(), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.post, self.mlp = ZeroCentredNorm(), Gated()

    def forward(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.mlp(self.post(x))


class Toy(nn.Module):
    """Token ids [B, T] to logits [B, T, V]."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.embed_scale = math.sqrt(WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.memory = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.glu = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GLU(), nn.GELU())
        self.register_buffer("keep_mask", torch.ones(LENGTH, 1))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) * self.embed_scale + self.positions(torch.arange(ids.shape[-1]))
        for block in self.blocks:
            x = block(x)
        x = self.memory(x * self.keep_mask)[0]
        return self.head(self.glu(x))


IDS = torch.tensor([[3, 1, 4, 1, 5, 9]])


def loaded(seed=5):
    """A toy with every parameter and buffer from the recipe, and the recipe."""
    model = Toy().eval()
    recipe = recipe_for(model, seed)
    model.load_state_dict(recipe.build())
    return model, recipe


def record(folder, recorder="none", **about):
    """Record the toy as its own reference; the manifest."""
    with applied(EXACT), torch.no_grad():
        model, recipe = loaded()
        pen = Recording("tiny", {"width": WIDTH})
        pen.recipe(recipe)
        pen.inputs(ids=IDS)
        with pen.taps(model, prefix="toy"):
            logits = model(IDS)
        pen.outputs(logits=logits, sample=logits + 1)
        pen.values["tokens"] = logits.argmax(-1)[0].tolist()
        return pen.write(folder, "toy", references={"toy": "1"}, recorder=recorder, **about)
