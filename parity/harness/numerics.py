"""Flags that decide bits. *Settable* ones are applied or refused; *platform* ones can only be read."""

from __future__ import annotations

import os
import platform as host
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

SDPA = ("flash", "mem_efficient", "math", "cudnn")
KERNEL_VARIABLES = ("ONEDNN_MAX_CPU_ISA", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "CUBLAS_WORKSPACE_CONFIG")
ISA = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "asimd", "sve", "bf16")


class Refused(Exception):
    """A settable flag cannot take the value that the case was recorded with."""


@dataclass(frozen=True)
class Flag:
    """One settable flag."""

    read: Callable[[], Any]
    write: Callable[[Any], None]


def _tf32() -> bool:
    return bool(torch.backends.cudnn.allow_tf32)


def _set_tf32(on: bool) -> None:
    torch.backends.cudnn.allow_tf32 = on


def _sdpa() -> list[str]:
    return [name for name in SDPA if getattr(torch.backends.cuda, f"{name}_sdp_enabled")()]


def _set_sdpa(names: list[str]) -> None:
    unknown = set(names) - set(SDPA)
    if unknown:
        raise Refused(f"unknown attention kernels {sorted(unknown)}; this torch has {', '.join(SDPA)}")
    for name in SDPA:
        getattr(torch.backends.cuda, f"enable_{name}_sdp")(name in names)


def _mkldnn() -> bool:
    return bool(torch.backends.mkldnn.enabled)


def _set_mkldnn(on: bool) -> None:
    torch.backends.mkldnn.set_flags(on)


def _set_deterministic(on: bool) -> None:
    # `use_deterministic_algorithms` does the same, but imports the compiler first: seconds for every process.
    torch.set_deterministic_debug_mode("error" if on else "default")


def _default_dtype() -> str:
    return str(torch.get_default_dtype()).removeprefix("torch.")


def _set_default_dtype(name: str) -> None:
    torch.set_default_dtype(getattr(torch, name))


SETTABLE: Mapping[str, Flag] = {
    "threads": Flag(torch.get_num_threads, torch.set_num_threads),
    "deterministic": Flag(torch.are_deterministic_algorithms_enabled, _set_deterministic),
    "matmul_precision": Flag(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "cudnn_tf32": Flag(_tf32, _set_tf32),
    "attention": Flag(_sdpa, _set_sdpa),
    "mkldnn": Flag(_mkldnn, _set_mkldnn),
    "default_dtype": Flag(_default_dtype, _set_default_dtype),
}

EXACT: Mapping[str, Any] = {
    "threads": 1,
    "deterministic": True,
    "matmul_precision": "highest",
    "cudnn_tf32": False,
    "attention": list(SDPA),
    "mkldnn": True,
    "default_dtype": "float32",
}
"""What a case is recorded under unless its recorder says otherwise."""


def settable() -> dict[str, Any]:
    """The value of every settable flag now."""
    return {name: flag.read() for name, flag in SETTABLE.items()}


def _set(name: str, value: Any) -> None:
    if name not in SETTABLE:
        raise Refused(f"the flag {name!r} is unknown here; known: {', '.join(SETTABLE)}")
    if SETTABLE[name].read() != value:
        SETTABLE[name].write(value)
    live = SETTABLE[name].read()
    if live != value:
        raise Refused(f"the case needs {name}={value!r}, but it stays {live!r} after being set")


@contextmanager
def applied(flags: Mapping[str, Any]) -> Iterator[None]:
    """Set the flags and read them back; `Refused` where one does not take. Restores what was there before."""
    before = settable()
    try:
        for name, value in flags.items():
            _set(name, value)
        yield
    finally:
        for name, value in before.items():
            SETTABLE[name].write(value)


def _build(pattern: str) -> str:
    found = re.search(pattern, torch.__config__.show())
    return found.group(1) if found else "none"


def _processor() -> str:
    """Vendor, family and model, and the instruction sets that math libraries dispatch on."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return host.machine()
    found = [re.search(rf"^{name}\s*:\s*(\S+)", text, re.M) for name in ("vendor_id", "cpu family", "model")]
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.M)
    held = set(flags.group(1).split()) if flags else set()
    named = [name.group(1) for name in found if name] or [host.machine()]
    return " ".join([*named, *(name for name in ISA if name in held)])


def _caches() -> str:
    """Sizes of the first core's caches: math libraries cut their blocks, and so the order of sums, by them."""
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    return " ".join(size.read_text().strip() for size in sorted(sizes)) or "unknown"


def _gpu() -> str:
    if not torch.cuda.is_available():
        return "none"
    major, minor = torch.cuda.get_device_capability()
    return f"{torch.cuda.get_device_name()} sm{major}{minor} cuda{torch.version.cuda}"


def platform(device: str = "cpu") -> dict[str, str]:
    """What decides bits and cannot be set from here. The GPU counts only where the tensors were on one."""
    flags = {
        "machine": host.machine(),
        "processor": _processor(),
        "caches": _caches(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "mkl": _build(r"Math Kernel Library Version (\S+)"),
        "onednn": _build(r"MKL-DNN (v\S+)"),
        "variables": " ".join(f"{name}={os.environ[name]}" for name in KERNEL_VARIABLES if name in os.environ),
    }
    if not device.startswith("cpu"):
        flags["gpu"] = _gpu()
    return flags


def difference(recorded: Mapping[str, Any], live: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Flag -> (recorded, live) where they differ; empty: the same platform."""
    names = sorted({*recorded, *live})
    return {name: (recorded.get(name), live.get(name)) for name in names if recorded.get(name) != live.get(name)}


def hardware(device: str = "cpu") -> str:
    """One line for a ledger entry: what the distance was measured on."""
    flags = platform(device)
    where = flags.get("gpu") or f"{flags['processor'].split()[0]} {flags['cpu_capability']}"
    return f"{where}, torch {flags['torch']}"
