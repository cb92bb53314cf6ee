"""Tiny models of openai-whisper with random weights, and the port loaded from their checkpoints."""

import pytest
import torch
import whisper

from models.whisper import CARDS, load
from models.whisper.tests import reference
from serving.core.contract import Options


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session", params=[True, False], ids=["multilingual", "english"])
def tiny(request) -> whisper.model.Whisper:
    return reference.model(request.param)


@pytest.fixture(scope="session")
def folder(tiny, tmp_path_factory):
    return reference.save(tiny, tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="session")
def port(folder):
    return load(CARDS[0], Options(weights=str(folder), rows=8))


@pytest.fixture(scope="session")
def tokenizer(port):
    return port.tokenizer
