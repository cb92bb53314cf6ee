"""A voice as the networks know it: what T3 hears of it and what the synthesiser does, from a clip or a checkpoint."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from models.chatterbox.config import SPEAKER, SPEECH_TOKENS
from models.chatterbox.s3gen_config import FRAMES_PER_TOKEN, MELS
from serving.core.contract import Audio
from serving.errors import BadRequest, SetupError, nearest


@dataclass(frozen=True, slots=True, eq=False)
class T3Part:
    """Unit speaker embedding [1, 256], prompt [1, P] of speech tokens, and the emotion it was made with."""

    speaker_emb: Tensor
    cond_prompt_speech_tokens: Tensor
    emotion_adv: float = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class GenPart:
    """The synthesiser's prompt: tokens [1, T], mel [1, 2 T, 80], their lengths [1], x-vector [1, 192]."""

    prompt_token: Tensor
    prompt_token_len: Tensor
    prompt_feat: Tensor
    prompt_feat_len: Tensor
    embedding: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Conditionals:
    """A voice."""

    t3: T3Part
    gen: GenPart


def read(path: Path) -> Conditionals:
    """The voice in a checkpoint's `conds.pt`. Raises `SetupError`."""
    try:
        held = torch.load(path, map_location="cpu", weights_only=True)
        return from_mapping(held["t3"], held["gen"])
    except (KeyError, TypeError, AttributeError) as error:
        raise SetupError(f"{path} holds no voice of Chatterbox: {error}", param="weights") from error


def from_mapping(t3: Mapping[str, Any], gen: Mapping[str, Any]) -> Conditionals:
    """A voice from the reference's two dictionaries. A missing mel length is the mel's own."""
    feat = gen["prompt_feat"]
    tokens = gen["prompt_token"].long()
    lengths = gen.get("prompt_feat_len"), gen.get("prompt_token_len")
    feat_len, token_len = (
        torch.tensor([whole.shape[1]]) if given is None else torch.as_tensor(given).long().view(-1)
        for given, whole in zip(lengths, (feat, tokens), strict=True)
    )
    emotion = t3.get("emotion_adv")
    return Conditionals(
        T3Part(
            t3["speaker_emb"].float().view(1, -1),
            torch.atleast_2d(t3["cond_prompt_speech_tokens"]).long(),
            0.5 if emotion is None else float(torch.as_tensor(emotion).view(-1)[0]),
        ),
        GenPart(tokens, token_len, feat.float(), feat_len, gen["embedding"].float()),
    )


def noise(seed: int = 0, prompt: int = 20) -> Conditionals:
    """A voice that no clip gave, with so many speech tokens of prompt: for networks with random weights."""
    generator = torch.Generator().manual_seed(seed)
    speaker = torch.nn.functional.normalize(torch.rand(1, SPEAKER, generator=generator), dim=-1)
    tokens = torch.randint(0, SPEECH_TOKENS, (1, prompt), generator=generator)
    length = torch.tensor([prompt])
    feat = torch.randn(1, FRAMES_PER_TOKEN * prompt, MELS, generator=generator)
    xvector = torch.randn(1, 192, generator=generator)
    return Conditionals(T3Part(speaker, tokens), GenPart(tokens, length, feat, FRAMES_PER_TOKEN * length, xvector))


class Voices:
    """The voices of a checkpoint and of a folder, read when first used, and `held` ones.

    A name is looked up, never opened as a path.
    """

    def __init__(self, files: Mapping[str, Path], held: Mapping[str, Conditionals] = MappingProxyType({})) -> None:
        self._files, self._held = dict(files), dict(held)

    @classmethod
    def find(cls, checkpoint: Path, folder: str | None) -> Voices:
        """`conds.pt` of a checkpoint as "default", and every NAME.pt of a folder."""
        files = {path.stem: path for path in Path(folder).expanduser().glob("*.pt")} if folder else {}
        default = checkpoint / "conds.pt"
        return cls({**files, **({"default": default} if default.is_file() else {})})

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted({*self._files, *self._held}))

    def get(self, name: str) -> Conditionals:
        """The voice of a name. Raises `BadRequest`."""
        if name not in self.names:
            known = nearest(name, self.names) or " This server has no voice of its own: send ref_audio."
            raise BadRequest(f'No voice "{name}".{known}', param="voice")
        if name not in self._held:
            self._held[name] = read(self._files[name])
        return self._held[name]


def content_hash(audio: Audio) -> str:
    """A clip by its content: rate, shape and samples."""
    digest = hashlib.sha256(f"{audio.rate} {audio.samples.shape} {audio.samples.dtype}".encode())
    digest.update(audio.samples.tobytes())
    return digest.hexdigest()


class VoiceCache:
    """The voices of the clips used last, by content. A voice that two requests want at once is made once."""

    def __init__(self, make: Callable[[Audio], Conditionals], most: int = 64) -> None:
        self._make, self._most = make, most
        self._held: OrderedDict[str, Conditionals] = OrderedDict()
        self._lock = threading.Lock()
        self._making: dict[str, threading.Lock] = {}
        self.misses = 0

    def get(self, audio: Audio) -> Conditionals:
        """The voice of a clip. What `make` raises is raised, and nothing is kept."""
        key = content_hash(audio)
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key]
            making = self._making.setdefault(key, threading.Lock())
        with making:
            return self._made(key, audio)

    def _made(self, key: str, audio: Audio) -> Conditionals:
        with self._lock:
            if key in self._held:
                return self._held[key]
        try:
            voice = self._make(audio)
        finally:
            with self._lock:
                self._making.pop(key, None)
        with self._lock:
            self.misses += 1
            self._held[key] = voice
            while len(self._held) > self._most:
                self._held.popitem(last=False)
        return voice
