"""The size of a folder that pip is still writing to."""

import os

from models.weights import package


def test_what_goes_while_we_look_is_passed_over(tmp_path, monkeypatch):
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "gone.whl").write_bytes(b"123")
    (tmp_path / "here.whl").write_bytes(b"12345")
    stat = os.stat

    def racing(path, **options):
        if str(path).endswith("gone.whl"):
            raise FileNotFoundError(path)
        return stat(path, **options)

    monkeypatch.setattr(package.os, "stat", racing)
    assert package._size(tmp_path) == 5
