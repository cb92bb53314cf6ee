"""The quick encoder against the plain one, and windows cut short behind their sound: what is trusted, what is not."""

import numpy as np
import pytest
import torch

from models.whisper import CARDS, load
from models.whisper.config import FRAMES
from models.whisper.head import QuickHead
from models.whisper.profiles import PROFILES, profile_of
from models.whisper.quick import QuickEncoder
from models.whisper.request import TranscribeKnobs
from models.whisper.segments import Decoded, Window
from models.whisper.tests.running import clip, tokens, transcribed
from models.whisper.tests.test_graph import ONCE, ONE_MODEL
from models.whisper.tests.test_transcribe import Heard
from models.whisper.transcribe import Job, loops, rules_of, suspicious, transcribe
from serving.core.contract import Emit, Options, Packed


@pytest.fixture(scope="module")
def encoders(port):
    net = port.modules["whisper"].encoder
    return net, QuickEncoder(net)


def window(sound: int, width: int = FRAMES) -> torch.Tensor:
    mel = torch.zeros(80, width)
    mel[:, :sound] = torch.randn(80, sound, generator=torch.Generator().manual_seed(sound))
    return mel


@ONE_MODEL
@pytest.mark.parametrize(
    ("sound", "width"), [(1, 3000), (97, 3000), (98, 3000), (1501, 3000), (2999, 3000), (3000, 3000), (250, 700)]
)
def test_quick_is_plain(encoders, sound, width):
    net, quick = encoders
    mel = window(sound, width)
    with torch.inference_mode():
        expected = net(mel[None])[0]
        assert quick(mel, sound).shape == expected.shape == (width // 2, 128)
        assert (quick(mel, sound) - expected).abs().max() <= 2e-5


@ONE_MODEL
def test_sound_past_its_said_end_is_seen(encoders):
    net, quick = encoders
    with torch.inference_mode():
        assert (quick(window(300), 90) - net(window(300)[None])[0]).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("sound", "width"), [(0, 400), (1, 450), (50, 450), (2599, 3000), (2600, 3000), (2550, 2950), (3000, 3000)]
)
def test_width_of_a_trimmed_window(sound, width):
    assert PROFILES["fast"].width(sound) == width
    assert PROFILES["default"].width(sound) == FRAMES


def test_only_a_cpu_without_promises_is_quick():
    assert profile_of(Options(profile="fast")).margin == 400
    for options in (Options(profile="fast", numerics="invariant"), Options(profile="fast", device="cuda")):
        assert profile_of(options) == PROFILES["exact"]


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ([1, 2, 3, 4, 1, 2, 3, 4], True),
        ([9, 1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 7], True),
        ([1, 2, 3, 1, 2, 3], False),
        ([1, 2, 3, 4, 9, 1, 2, 3, 4], False),
        ([5] * 8, True),
        ([], False),
    ],
)
def test_loops(said, found):
    assert loops(said) is found


def decoded(said, ended=True):
    return Decoded(said, "", 0.0, -0.1, 0.0, 1.0, 700, ended)


def test_what_is_suspicious(tokenizer):
    stamp, heard = tokenizer.timestamps, Window(0, 300)
    fine = [stamp, 1849, 257, stamp + 150]
    assert not suspicious(decoded(fine), heard, tokenizer)
    assert suspicious(decoded(fine, ended=False), heard, tokenizer)
    assert suspicious(decoded([*fine[:-1], stamp + 176]), heard, tokenizer)
    assert suspicious(decoded([stamp, *[220, 257, 290, 318] * 2, stamp + 150]), heard, tokenizer)


def driven(port, answers):
    """Widths that the encoder was asked for, and everything told, when attempts decode to `answers` in turn."""
    tokenizer, knobs = port.tokenizer, TranscribeKnobs(language="en", fallback_temperatures=())
    rules = rules_of(tokenizer, port.config, knobs)
    job = Job(port.config, tokenizer, knobs, Heard(torch.zeros(80, 300 + FRAMES)), [], [], rules)
    job.profile = PROFILES["fast"]
    steps, widths, told, value, left = transcribe(job), [], [], None, iter(answers)
    while True:
        try:
            item = steps.send(value)
        except StopIteration:
            return widths, told
        value = None
        if isinstance(item, Emit):
            told += item.items.values
            continue
        widths.append(item.inputs["encoder.window"].values["mel"].shape[-1])
        assert item.knobs.width == widths[-1] == 2 * item.needs["cross_kv"].units
        ids = np.array([*next(left), tokenizer.eot])
        spread = {"logprob": np.full(len(ids), -0.1, np.float32), "no_speech": np.zeros(len(ids))}
        value = Packed.one({"id": ids, **spread})


@ONE_MODEL
def test_a_loop_is_heard_again_in_full_and_said_so(port):
    stamp = port.tokenizer.timestamps
    loop = [stamp, *[220, 257, 290, 318] * 5, stamp + 150]
    fine = [stamp, 1849, stamp + 150]
    widths, told = driven(port, [loop, fine])
    assert widths == [700, FRAMES]
    assert list(told[1].tokens) == fine
    assert told[-1] == {"full_windows": 1}
    widths, told = driven(port, [fine])
    assert widths == [700]
    assert [fact for fact in told if isinstance(fact, dict)] == told[:1]


@pytest.fixture(scope="module")
def trimming(folder):
    return load(CARDS[0], Options(weights=str(folder), rows=8, profile="fast"))


@ONE_MODEL
def test_windows_of_many_widths_at_once_are_what_they_are_alone(trimming):
    """Random weights ramble, which is not trusted: with that off, trimmed windows are what is compared."""
    clips = [clip(1 + i, seed=i) for i in range(4)]
    knobs = {"language": "en", "without_timestamps": True, **ONCE}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("models.whisper.transcribe.suspicious", lambda *_: False)
        together = transcribed(trimming, clips, **knobs)
        for audio, found in zip(clips[::3], together[::3], strict=True):
            assert tokens(transcribed(trimming, [audio], **knobs)[0]) == tokens(found)
            assert "full_windows" not in found["info"]


@ONE_MODEL
def test_what_is_not_trusted_is_what_full_windows_say(port, trimming):
    knobs = {"language": "en", "without_timestamps": True, "word_timestamps": True, **ONCE}
    (found,), (full,) = (transcribed(one, [clip(2)], **knobs) for one in (trimming, port))
    assert found["info"]["full_windows"] >= 1
    assert tokens(found) == tokens(full)
    words = [[(w.word, w.start) for s in one["segments"] for w in s.words] for one in (found, full)]
    assert words[0] == words[1]


@pytest.fixture(scope="module")
def heads(port):
    head = port.modules["whisper"].decoder.head
    return head.weight.detach(), QuickHead(head.weight, port.tokenizer.timestamps)


@ONE_MODEL
def test_the_likeliest_text_and_every_timestamp_are_float32s(heads):
    weight, quick = heads
    x = torch.randn(9, 128, generator=torch.Generator().manual_seed(2))
    expected, found = x @ weight.T, quick(x)
    assert torch.equal(found.argmax(-1), expected.argmax(-1))
    best = expected[:, : quick.stamps].topk(8).indices
    assert (found.gather(1, best) - expected.gather(1, best)).abs().max() <= 1e-5
    assert (found - expected)[:, quick.stamps :].abs().max() <= 1e-5
    assert 1e-4 < (found - expected).abs().max() < 0.02 * expected.abs().max()


@ONE_MODEL
def test_a_rows_text_does_not_depend_on_its_neighbours(heads):
    _, quick = heads
    x = torch.randn(8, 128, generator=torch.Generator().manual_seed(4)) * torch.tensor([[1.0], [30.0]] * 4)
    whole = quick(x)[:, : quick.stamps]
    for start, stop in ((0, 1), (1, 3), (5, 8)):
        assert torch.equal(quick(x[start:stop])[:, : quick.stamps], whole[start:stop])
