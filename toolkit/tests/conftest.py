"""Fixtures shared by the front door's tests."""

from __future__ import annotations

import numpy as np
import pytest

from serving.api.media.encode import encode


@pytest.fixture(scope="session")
def tone() -> bytes:
    """Two seconds of a 440 Hz tone as WAV."""
    return encode("wav", 16_000, 0.3 * np.sin(np.arange(32_000) * 440 * 2 * np.pi / 16_000).astype(np.float32))
