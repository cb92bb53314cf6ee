import shutil

import soundfile

from oracles.speech import clips


def test_files_are_the_recorded_ones():
    assert len(clips()) == 12
    assert all(clip.intact() for clip in clips())


def test_a_changed_byte_is_noticed(tmp_path):
    clip = clips()[0]
    copy = shutil.copy(clip.path, tmp_path / "copy.flac")
    with open(copy, "r+b") as file:
        file.seek(5000)
        file.write(b"\x00\x01\x02\x03")
    assert not clip.__class__(copy, clip.text, clip.seconds, clip.voice, clip.rate, clip.sha256).intact()


def test_listing_tells_the_truth():
    for clip in clips():
        info = soundfile.info(clip.path)
        assert (info.samplerate, info.channels, info.format) == (clip.rate, 1, "FLAC")
        assert abs(info.frames / clip.rate - clip.seconds) < 1e-3
        assert clip.text.endswith(".")


def test_small_enough_for_the_wheel():
    assert sum(clip.path.stat().st_size for clip in clips()) < 1_500_000
