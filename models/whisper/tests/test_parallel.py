"""Where long sound is cut, and how stretches run together."""

import numpy as np
import pytest
import torch

from models.whisper.parallel import quiet_spans, together
from models.whisper.tests.running import clip, transcribed
from models.whisper.tests.test_graph import ONCE, ONE_MODEL
from serving.core.contract import Audio, Emit, Packed, Piece


def loud(*pauses: tuple[int, int], length: int = 7000) -> torch.Tensor:
    mel = torch.ones(4, length)
    for start, stop in pauses:
        mel[:, start:stop] = -1.0
    return mel


def spans_of(mel, seek, stop):
    return list(quiet_spans(lambda first, last: mel[:, first:last], seek, stop))


@pytest.mark.parametrize(
    ("mel", "spans"),
    [
        (loud(length=3000), [(0, 3000)]),
        (loud((2100, 2200), length=4000), [(0, 2190), (2190, 4000)]),
        (loud((500, 900), (2300, 2340), (2900, 2905), length=4000), [(0, 2330), (2330, 4000)]),
        (loud(length=7000), [(0, 2990), (2990, 5980), (5980, 7000)]),
        (loud((0, 7000)), [(0, 2990), (2990, 5980), (5980, 7000)]),
    ],
    ids=["one window", "a pause", "the long pause near the end", "no pause", "silence"],
)
def test_sound_is_cut_at_the_last_of_its_quietest_moments_near_the_end_of_a_window(mel, spans):
    assert spans_of(mel, 0, mel.shape[1]) == spans


def test_a_clip_is_cut_within_itself():
    assert spans_of(loud((2700, 2900)), 100, 3200) == [(100, 2890), (2890, 3200)]
    assert spans_of(loud(), 50, 50) == [(50, 50)]


def stretch(name, count, told):
    """Says what it got after each of its pieces."""
    for i in range(count):
        got = yield Piece(f"{name}{i}", {}, None, result="node.port")
        if told:
            yield Emit("said", got)


def drive(steps):
    """Groups of walks that ran together, and what was emitted; a piece's result is its walk's name."""
    groups, said, value = [], [], None
    while True:
        try:
            item = steps.send(value)
        except StopIteration:
            return groups, said
        value = None
        if isinstance(item, Emit):
            said += item.items.values
        else:
            groups.append([piece.walk for piece in item])
            value = tuple(Packed.one([piece.walk]) for piece in item)


def test_stretches_run_together_and_are_told_in_order():
    counts = {"a": 3, "b": 1, "c": 2, "d": 0, "e": 2}
    groups, said = drive(together([stretch(name, n, True) for name, n in counts.items()], 2))
    assert groups == [["a0", "b0"], ["a1", "c0"], ["a2", "c1"], ["e0"], ["e1"]]
    assert said == ["a0", "a1", "a2", "b0", "c0", "c1", "e0", "e1"]


def test_no_stretches_and_silent_ones():
    assert drive(together([], 4)) == ([], [])
    assert drive(together([stretch("a", 2, False), stretch("b", 1, False)], 4)) == ([["a0", "b0"], ["a1"]], [])


@ONE_MODEL
def test_a_parallel_transcript_is_that_of_its_stretches(port):
    """Each stretch of the recording says what it says as a clip of the recording, and nothing is left behind."""
    sound = np.concatenate([clip(20, seed=1).samples, np.zeros((1, 16_000), np.float32), clip(25, seed=2).samples], 1)
    knobs = {"language": "en", "without_timestamps": True, "condition_on_previous_text": False, **ONCE}
    found = transcribed(port, [Audio(sound, 16_000)], windowing="parallel", **knobs)[0]["segments"]
    cuts = [s.start for s in found]
    assert 20 <= cuts[1] <= 21
    one = transcribed(port, [Audio(sound, 16_000)], clip_timestamps=(0.0, cuts[1], cuts[1]), **knobs)[0]["segments"]
    assert [(s.start, s.end, s.tokens) for s in found] == [(s.start, s.end, s.tokens) for s in one]
