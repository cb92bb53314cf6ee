"""llama.cpp in its own environment, by xllamacpp: writes GGUF files, and answers prompts one by one or all at once.

    llama_cpp_process.py write TENSORS FILE FORMAT
    llama_cpp_process.py answer FILE SETTINGS

`write` takes a safetensors file whose names, layouts and fields are already llama.cpp's. `answer` prints what runs as a
line of JSON, and then one for each that it reads: {"prompts": [[ids], ...], "new": N} gives tokens and times.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Any

import gguf
import xllamacpp
from safetensors import safe_open

FORMATS = {name: gguf.GGMLQuantizationType[name] for name in ("F32", "F16", "Q8_0")}


def write(tensors: str, file: str, kind: str) -> None:
    """Matrices in the format; vectors and the kernels of convolutions in float32, as llama.cpp's own tool does."""
    with safe_open(tensors, "numpy") as read:
        fields = json.loads(read.metadata()["fields"])
        writer = gguf.GGUFWriter(file, fields.pop("general.architecture"))
        for name, value in fields.items():
            add(writer, name, value)
        for name in read.keys():  # noqa: SIM118 (not a mapping)
            value = read.get_tensor(name)
            format_ = FORMATS["F32" if value.ndim < 2 or "conv1d" in name else kind]
            writer.add_tensor(name, gguf.quants.quantize(value, format_), raw_dtype=format_)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def add(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    of_type = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    of_type.get(type(value), writer.add_array)(name, value)


def server(file: str, settings: dict[str, Any], slots: int, context: int) -> xllamacpp.Server:
    """One that keeps nothing of a prompt for the next."""
    given = xllamacpp.CommonParams()
    given.model.path = file
    given.n_parallel, given.n_ctx = slots, slots * context
    given.n_batch, given.n_ubatch = settings["batch"], settings["ubatch"]
    given.cpuparams.n_threads = given.cpuparams_batch.n_threads = settings["threads"]
    kind = xllamacpp.ggml_type[f"GGML_TYPE_{settings['cache']}"]
    given.cache_type_k = given.cache_type_v = kind
    given.cache_prompt = given.cache_idle_slots = given.fit_params = given.use_jinja = False
    given.cache_ram_mib = given.n_ctx_checkpoints = 0
    given.verbosity = 1
    return xllamacpp.Server(given)


def tokens(of: xllamacpp.Server, prompt: list[int], new: int) -> list[int]:
    """The greedy ones, read from the text, in which each is its number. Raises `RuntimeError` when some are missing."""
    asked = {"prompt": prompt, "n_predict": new, "temperature": 0, "samplers": ["temperature"], "ignore_eos": True}
    answer = of.handle_completions({**asked, "cache_prompt": False})
    if "choices" not in answer:
        raise RuntimeError(f"llama.cpp gave no answer: {str(answer)[:500]}")
    made = [int(token) for token in re.findall(r"<(\d+)>", answer["choices"][0]["text"])]
    if len(made) != new:
        raise RuntimeError(f"llama.cpp gave {len(made)} tokens instead of {new}.")
    return made


def answer(file: str, settings: dict[str, Any]) -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # llama.cpp's log shares no line with the answers
    alone = server(file, settings, 1, settings["context"])
    together = server(file, settings, settings["slots"], settings["context_at_once"])
    versions = {name: version(name) for name in ("xllamacpp", "gguf")}
    what = {"versions": versions, "system": xllamacpp.get_system_info(), "settings": settings}
    print(json.dumps(what), file=out, flush=True)
    with ThreadPoolExecutor(settings["slots"]) as pool:
        for line in sys.stdin:
            asked = json.loads(line)
            of = alone if len(asked["prompts"]) == 1 else together
            began, busy = time.perf_counter(), time.process_time()
            made = list(pool.map(lambda prompt: tokens(of, prompt, asked["new"]), asked["prompts"]))  # noqa: B023
            took = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - busy}
            print(json.dumps({**took, "tokens": made}), file=out, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(*sys.argv[2:])
    else:
        answer(sys.argv[2], json.loads(sys.argv[3]))
