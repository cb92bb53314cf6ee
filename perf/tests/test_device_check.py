"""The device check on a machine without a device: it says so, and its parts can fail."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from perf import device_check
from perf.device_check import Row, attention_error, distance, main, run
from serving.core.contract import Segment
from serving.errors import SetupError


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_without_a_gpu_it_says_so_and_ends_with_status_2(capsys):
    assert main([]) == 2
    assert capsys.readouterr().out == "No NVIDIA GPU that torch can use: nothing was checked.\n"


def test_a_rehearsal_is_no_result(capsys):
    assert main(["--rehearse", "--only", "attention sdpa, float32"]) == 2
    said = capsys.readouterr().out
    assert "says nothing of a GPU" in said
    assert said.count("| pass |") == 4


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_attention_that_is_wrong_fails(monkeypatch, dtype):
    right = attention_error("sdpa", dtype, "prefill in chunks", "cpu")
    assert right[1]
    from serving.attention import sdpa

    monkeypatch.setattr(device_check, "attend_with", lambda *a: lambda q, k, v, x: sdpa.attend(1.5 * q, k, v, x))
    wrong = attention_error("sdpa", dtype, "prefill in chunks", "cpu")
    assert not wrong[1]


def test_other_outputs_fail():
    sound = [{"audio": [np.array([0.0, 1.0], np.float32)], "segments": [[Segment(0.0, 1.0, "hello")]]}]
    near = [
        {
            "audio": [np.array([0.0], np.float32), np.array([1.001], np.float32)],
            "segments": [[Segment(0.0, 1.02, "hello")]],
        }
    ]
    assert distance(sound, sound)[1]
    assert distance(sound, near)[1]
    for port, value in {
        "audio": [np.array([0.0, 0.9], np.float32)],
        "segments": [[Segment(0.0, 1.0, "hallo")]],
    }.items():
        assert not distance(sound, [{**sound[0], port: value}])[1]
    assert not distance(sound, [{**sound[0], "audio": [np.zeros(3, np.float32)]}])[1]


def test_what_could_not_run_is_not_green():
    soon = time.monotonic() + 60

    def missing():
        raise SetupError("needs flashinfer")

    def broken():
        raise RuntimeError("an illegal memory access")

    assert run(("a", missing), soon) == Row("a", "needs flashinfer", "not run")
    assert run(("a", broken), soon).result == "fail"
    assert run(("a", lambda: ("far off", False)), soon).result == "fail"
    assert run(("a", lambda: ("fine", True)), time.monotonic() - 1).result == "not run"
