import numpy as np
import pytest
import torch

from models.kokoro.voices import ROWS, WIDTH, Voices, from_folder, from_npz
from serving.errors import BadRequest, SetupError


def table(value):
    return np.full((ROWS, 1, WIDTH), value, np.float32)


@pytest.fixture
def voices():
    return Voices({"af_bella": lambda: table(3.0), "af_sky": lambda: table(0.0), "bf_emma": lambda: table(9.0)})


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        ("af_bella", 3),
        ("af_bella+af_sky", 1.5),
        ("af_bella(2)+af_sky(1)", 2),
        ("af_bella(2) + bf_emma", 5),
        ("af_sky+af_bella(0)", 0),
        ("af_bella(0.5)", 3),
    ],
)
def test_blends_are_weighted_means(voices, spec, value):
    found = voices.table(spec)
    assert found.shape == (ROWS, WIDTH)
    torch.testing.assert_close(found, torch.full_like(found, value))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("af_bela", 'Did you mean "af_bella"'),
        ("af_bella+af_moon", 'No voice "af_moon"'),
        ("../../etc/passwd", "is not a name"),
        ("af_bella(2", "is not a name"),
        ("af_bella(-1)+af_sky", "is not a name"),
        ("+", "is not a name"),
        ("af_bella(0)+af_sky(0)", "add up to 0"),
    ],
)
def test_bad_voices_are_the_callers_mistake(voices, spec, said):
    with pytest.raises(BadRequest, match=said.replace("(", r"\(")) as caught:
        voices.table(spec)
    assert caught.value.param == "voice"


def test_the_language_is_the_first_voices(voices):
    assert voices.languages("bf_emma+af_sky") == ["b", "a"]


def test_folders_and_archives(tmp_path):
    table(1.0).tofile(tmp_path / "af_one.bin")
    torch.save(torch.full((ROWS, 1, WIDTH), 2.0), tmp_path / "af_two.pt")
    (tmp_path / "notes.txt").write_text("not a voice")
    np.savez(tmp_path / "ja.npz", jf_three=table(3.0))
    voices = Voices(from_folder(tmp_path) | from_npz(tmp_path / "ja.npz"))
    assert voices.names == ("af_one", "af_two", "jf_three")
    assert [float(voices.table(name)[0, 0]) for name in voices.names] == [1, 2, 3]


def test_a_file_of_the_wrong_size_is_refused(tmp_path):
    np.zeros(7, np.float32).tofile(tmp_path / "af_cut.bin")
    with pytest.raises(SetupError, match="af_cut"):
        Voices(from_folder(tmp_path)).table("af_cut")


def test_no_folder(tmp_path):
    with pytest.raises(SetupError, match="not a folder"):
        from_folder(tmp_path / "nowhere")
