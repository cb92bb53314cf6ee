"""How a parity test can end other than by passing or failing. Each is a state of its own in every report."""

from __future__ import annotations

from _pytest.outcomes import Skipped


class Stale(AssertionError):
    """The recorder has changed since the case was recorded: what it would record now is unknown."""


class NotRun(Skipped):
    """Something that the test needs, real weights or an external case, is not on this machine."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, _use_item_location=True)
