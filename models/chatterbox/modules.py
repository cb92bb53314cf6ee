"""The networks of one checkpoint, by part: text to speech tokens, who speaks, speech tokens to sound."""

from __future__ import annotations

from torch import nn

from models.chatterbox.s3gen import S3Gen
from models.chatterbox.t3 import T3
from models.chatterbox.voice_encoder import VoiceEncoder


class Chatterbox(nn.Module):
    """T3, the speaker encoder and S3Gen. Each comes from a file of its own and keeps the names it has there."""

    def __init__(self, t3: T3, speaker: VoiceEncoder, s3gen: S3Gen) -> None:
        super().__init__()
        self.t3, self.speaker, self.s3gen = t3, speaker, s3gen
