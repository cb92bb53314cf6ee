"""The toy without a core: one request at a time, full attention over everything, no cache, no chunks, no batch."""

from __future__ import annotations

import numpy as np
import torch

from models.toy import media
from models.toy.config import ToyConfig
from models.toy.modules import Networks


def attend(layer, q, k, v):
    """Causal attention [T, H, D] over the whole sequence."""
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)[0].transpose(0, 1)


class Naive:
    """Greedy speech, pictures and listening, straight from the networks."""

    def __init__(self) -> None:
        self.c = ToyConfig()
        self.net = Networks(self.c)

    def tokens(self, ids, knobs):
        """Every step's whole forward pass, both lanes."""
        cond, blank, spoken = list(ids), [0] * len(ids), []
        for _ in range(knobs.max_new_tokens):
            positions = torch.arange(len(cond) + len(spoken))
            lanes = [
                self.net.speaker.head(self.net.speaker(torch.tensor(lane + spoken), positions, attend)[-1])
                for lane in (cond, blank)
            ]
            token = int((lanes[0] + knobs.cfg_weight * (lanes[0] - lanes[1])).argmax())
            if token == self.c.eos and not knobs.ignore_eos:
                break
            spoken.append(token)
        return spoken

    def audio(self, text, knobs):
        """All sentences, each through the codec in one window."""
        return np.concatenate(
            [self._voice(media.ids(part, self.c, knobs.voice), knobs) for part in media.sentences(text)]
        )

    def _voice(self, ids, knobs):
        tokens = torch.tensor([0, 0, *self.tokens(ids, knobs), 0])
        excited = self.net.codec.excite(tokens[None]).flatten(1)
        return self.net.codec.filter(excited, torch.zeros(1))[0][0].numpy()

    def picture(self, text, knobs, seed):
        width, height = map(int, knobs.size.split("x"))
        x = media.noise(seed, width * height // 16, self.c)[None]
        text = self.net.painter.text(torch.tensor(media.ids(text, self.c))).mean(0)[None]
        for step in range(knobs.steps):
            time = torch.tensor([1 - step / knobs.steps])
            v = self.net.painter(x, time, text)
            if step < knobs.guidance_until * knobs.steps and knobs.guidance > 0:
                v = v + knobs.guidance * (v - self.net.painter(x, time, torch.zeros_like(text)))
            x = x - v / knobs.steps
        return media.pixels(x[0].numpy(), width, height, self.c)

    def heard(self, samples, state=None):
        """Tokens of frames of 4 samples, the last one padded; and the state after them."""
        state = torch.zeros(1, self.c.memory) if state is None else state
        padded = np.pad(samples, (0, -len(samples) % self.c.frame)).reshape(-1, self.c.frame)
        found = []
        for frame in torch.from_numpy(padded):
            logits, state = self.net.listener(frame[None], state)
            found.append(int(logits.argmax()))
        return found, state
