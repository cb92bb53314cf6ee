"""S3Gen, whole: a clip to a voice, speech tokens and a voice to sound; in the checkpoint's parameter names."""

from __future__ import annotations

from torch import nn

from models.chatterbox.flow import Flow
from models.chatterbox.s3gen_config import S3GenConfig
from models.chatterbox.s3tokenizer import S3Tokenizer
from models.chatterbox.vocoder import HiFT
from models.chatterbox.xvector import SpeakerEncoder


class S3Gen(nn.Module):
    """The networks of one S3Gen checkpoint."""

    def __init__(self, config: S3GenConfig) -> None:
        super().__init__()
        self.config = config
        self.tokenizer = S3Tokenizer(config.tokenizer)
        self.speaker_encoder = SpeakerEncoder(config.speaker)
        self.flow = Flow(config)
        self.mel2wav = HiFT(config.vocoder)
