"""A small byte-level tokenizer, trained in memory, with the marks of a chat model."""

from __future__ import annotations

from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

CORPUS = [
    "The quick brown fox jumps over the lazy dog. " * 3,
    '{"name": "weather", "arguments": {"city": "Paris", "days": 3}}' * 4,
    "<function=weather>\n<parameter=city>\nParis\n</parameter>\n</function>" * 4,
    "naïve café, 東京の天気, Привет мир, 👩‍👩‍👧 🎉🎉 — “quotes”…" * 4,
]
END = "<|im_end|>"
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")


@cache
def tokenizer() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(CORPUS, trainer)
    made.add_special_tokens([END])
    made.add_tokens([AddedToken(mark, normalized=False) for mark in MARKS])
    return made


def end() -> int:
    return tokenizer().token_to_id(END)


def encode(text: str) -> list[int]:
    return tokenizer().encode(text).ids
