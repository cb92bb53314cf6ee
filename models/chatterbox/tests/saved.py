"""A tiny checkpoint of each model in the files and under the names that the real ones have."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from models.chatterbox.checkpoint import S3GEN_FILES
from models.chatterbox.config import VARIANTS
from models.chatterbox.request import LANGUAGES
from models.chatterbox.tests import tiny, tiny_s3gen
from models.chatterbox.voice_encoder import VoiceEncoder
from models.chatterbox.weights import TRANSPOSED

SPECIAL = ["[STOP]", "[UNK]", "[SPACE]", "[START]", *(f"[{code}]" for code in LANGUAGES)]


def t3(key: str) -> dict[str, Tensor]:
    """The tensors of a T3 as the package saves them: GPT-2 input first, and the tables that nothing reads."""
    net = tiny.network(key)
    tensors = {n: t.t().contiguous() if n.endswith(TRANSPOSED) else t for n, t in net.state_dict().items()}
    unused = ("tfmr.wte.weight", 300) if net.config.turbo else ("tfmr.embed_tokens.weight", 8)
    head = torch.zeros(net.config.text_vocab, net.config.width)
    return {**tensors, "text_head.weight": head, unused[0]: torch.zeros(unused[1], net.config.width)}


def speaker() -> dict[str, Tensor]:
    """The tensors of a speaker encoder, two of them not used."""
    torch.manual_seed(3)
    tensors = {name: value.detach() for name, value in VoiceEncoder().state_dict().items()}
    return {**tensors, "similarity_weight": torch.tensor([10.0]), "similarity_bias": torch.tensor([-5.0])}


def write(path: Path, tensors: dict[str, Tensor]) -> None:
    if path.suffix == ".pt":
        torch.save(tensors, path)
    else:
        save_file({name: value.contiguous().clone() for name, value in tensors.items()}, path)


def tokenizer(path: Path) -> None:
    """Characters, and the special tokens; for Turbo a folder that transformers reads."""
    ids = {token: i for i, token in enumerate([*SPECIAL, *map(chr, range(33, 127))])}
    made = Tokenizer(models.BPE(vocab=ids, merges=[], unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens(SPECIAL)
    if path.is_dir():
        PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(path)
    else:
        made.save(str(path))


def checkpoint(folder: Path, key: str) -> Path:
    """Everything that a key is loaded from."""
    variant, turbo = VARIANTS[key], key == "chatterbox_turbo"
    config = tiny_s3gen.TURBO if turbo else tiny_s3gen.CONFIG
    write(folder / variant.t3_file, t3(key))
    write(folder / variant.speaker_file, speaker())
    write(folder / S3GEN_FILES[key], tiny_s3gen.network(config=config).state_dict())
    (folder / "s3gen_config.json").write_text(json.dumps(asdict(config)))
    tokenizer(folder if turbo else folder / variant.tokenizer_file)
    made = tiny.voice(5)
    held = {"speaker_emb": made.t3.speaker_emb, "cond_prompt_speech_tokens": made.t3.cond_prompt_speech_tokens}
    gen = {name: getattr(made.gen, name) for name in made.gen.__slots__} | {"prompt_feat_len": None}
    torch.save(
        {"t3": {**held, "emotion_adv": torch.full((1, 1, 1), 0.5), "clap_emb": None}, "gen": gen}, folder / "conds.pt"
    )
    return folder
