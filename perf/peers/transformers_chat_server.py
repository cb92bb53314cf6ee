"""A language model by transformers: python -m perf.peers.transformers_chat_server AT_ONCE THREADS FOLDER"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, StoppingCriteria
from transformers.generation.streamers import BaseStreamer

from perf.peers.serve import Peer, serve


class Tokens(BaseStreamer, StoppingCriteria):
    """Ids as they are generated, to be iterated over in another thread; `leave` ends the generation."""

    def __init__(self) -> None:
        self._made: queue.Queue[int | None] = queue.Queue()
        self._prompt = True
        self._left = False

    def put(self, value: torch.Tensor) -> None:
        if not self._prompt:
            self._made.put(int(value))
        self._prompt = False

    def end(self) -> None:
        self._made.put(None)

    def leave(self) -> None:
        self._left = True

    def __call__(self, input_ids: torch.Tensor, scores: Any, **options: Any) -> torch.Tensor:
        return torch.full(input_ids.shape[:1], self._left)

    def __iter__(self) -> Iterator[int]:
        return iter(self._made.get, None)


class Chat:
    """Greedy answers of a checkpoint in transformers' layout, a piece a token."""

    def __init__(self, folder: str) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._net = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def __call__(self, body: Mapping[str, Any]) -> Iterator[str]:
        tokens, limit = Tokens(), int(body.get("max_tokens") or body.get("max_completion_tokens") or 64)
        least = limit if body.get("ignore_eos") else None
        options = {"max_new_tokens": limit, "min_new_tokens": least, "do_sample": False, "streamer": tokens}
        inputs = self._prompt(body["messages"])
        run = threading.Thread(target=self._generate, args=(tokens, {**inputs, **options}))
        run.start()
        try:
            yield from self._text(tokens)
        finally:
            tokens.leave()
            run.join()

    def _generate(self, tokens: Tokens, options: Mapping[str, Any]) -> None:
        try:
            with torch.inference_mode():
                self._net.generate(**options, stopping_criteria=[tokens])
        finally:
            tokens.end()

    def _prompt(self, messages: list[dict[str, str]]) -> Any:
        if not self._tokenizer.chat_template:
            return self._tokenizer("\n".join(m["content"] for m in messages), return_tensors="pt")
        return self._tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )

    def _text(self, tokens: Tokens) -> Iterator[str]:
        ids: list[int] = []
        before = ""
        for token in tokens:
            ids.append(token)
            whole = str(self._tokenizer.decode(ids, skip_special_tokens=True)).rstrip(
                "\ufffd"
            )  # half of a character waits for its other half
            yield whole[len(before) :]
            before = whole


def main(at_once: int, threads: int, folder: str) -> None:
    torch.set_num_threads(threads)
    versions = {name: version(name) for name in ("transformers", "torch")}
    settings = {"dtype": "float32", "at_once": at_once, "threads": threads, "attention": "sdpa", "cache": "dynamic"}
    info = {"name": "transformers-chat", "versions": versions, "settings": settings, "checkpoint": folder}
    serve(Peer(info, chat=Chat(folder), at_once=at_once))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
