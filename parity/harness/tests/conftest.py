"""Inner pytest runs show this plugin's words alone: what other plugins of this environment warn of is not theirs."""

import pytest


@pytest.fixture(autouse=True)
def quiet_neighbours(monkeypatch):
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:asyncio")
