"""Settings hold inside a step, are put back after it, and never meet those of another."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest
import torch

from serving.errors import SetupError
from serving.numerics import entered


def now():
    return (
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.allow_tf32,
        torch.are_deterministic_algorithms_enabled(),
        torch.is_autocast_enabled("cpu"),
    )


def check_and_fail():
    settings = {"matmul_precision": "medium", "tf32": False, "autocast": torch.bfloat16, "deterministic": True}
    with entered(settings):
        assert now() == ("medium", False, True, True)
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
        raise ZeroDivisionError


def test_settings_hold_inside_and_are_put_back():
    before = now()
    with pytest.raises(ZeroDivisionError):
        check_and_fail()
    assert now() == before
    with entered({}):
        assert now() == before


def test_an_unknown_setting_names_the_nearest():
    with pytest.raises(SetupError, match='Did you mean "tf32"'), entered({"tf23": True}):
        pass


def run(*steps):
    threads = [threading.Thread(target=step) for step in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)


def test_equal_steps_overlap():
    together = threading.Barrier(2, timeout=10)

    def step():
        with entered({"matmul_precision": "high"}):
            together.wait()

    run(step, step)
    assert not together.broken
    assert torch.get_float32_matmul_precision() == "highest"


def test_steps_that_differ_do_not_overlap():
    wrong = []

    def step(value):
        for _ in range(200):
            with entered({"matmul_precision": value}):
                time.sleep(1e-4)
                if torch.get_float32_matmul_precision() != value:
                    wrong.append(value)

    run(*(partial(step, value) for value in ("high", "medium", "high")))
    assert not wrong
    assert torch.get_float32_matmul_precision() == "highest"
