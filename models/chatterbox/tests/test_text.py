"""Preparation of text where packages for readings are there, and where they are not."""

import json
import logging
from types import SimpleNamespace

import pytest

from models.chatterbox import text


@pytest.fixture(autouse=True)
def fresh():
    """Nothing is remembered of which packages there are."""
    caches = (text.tool, text.cangjie_table)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


@pytest.fixture
def packages(monkeypatch):
    """What `import_module` finds."""
    held = {}

    def find(name):
        if name not in held:
            raise ImportError(name)
        return held[name]

    monkeypatch.setattr(text, "import_module", find)
    return held


@pytest.mark.parametrize(
    ("language", "package"), [("ja", "pykakasi"), ("he", "dicta_onnx"), ("ru", "russian_text_stresser")]
)
def test_without_its_package_a_text_stays_and_the_log_says_so_once(packages, tmp_path, caplog, language, package):
    with caplog.at_level(logging.WARNING):
        assert [text.prepared("Abc", language, tmp_path) for _ in range(2)] == ["abc", "abc"]
    assert [record.message.split()[0] for record in caplog.records] == [package]


def fails(*_):
    raise RuntimeError("no model here")


@pytest.mark.parametrize(
    ("language", "package", "kept"),
    [
        ("he", {"dicta_onnx": SimpleNamespace(Dicta=fails)}, "does not start"),
        ("he", {"dicta_onnx": SimpleNamespace(Dicta=lambda: SimpleNamespace(add_diacritics=fails))}, "fails on a text"),
        ("ja", {"pykakasi": SimpleNamespace(kakasi=fails)}, "does not start"),
        ("zh", {"spacy_pkuseg": SimpleNamespace(pkuseg=fails)}, "does not start"),
    ],
)
def test_a_package_that_fails_leaves_the_text(packages, tmp_path, caplog, language, package, kept):
    packages.update(package)
    with caplog.at_level(logging.WARNING):
        assert text.prepared("Abc", language, tmp_path) == "abc"
    assert any(kept in record.message and "no model here" in record.message for record in caplog.records)


def test_kanji_are_read_and_katakana_stay(packages, tmp_path):
    parts = [{"orig": "今日", "hira": "きょう"}, {"orig": "カナ", "hira": "かな"}, {"orig": "葉", "hira": "は"}]
    packages["pykakasi"] = SimpleNamespace(kakasi=lambda: SimpleNamespace(convert=lambda given: parts))
    assert text.prepared("x", "ja", tmp_path) == "きょうカナ は"


def test_hebrew_and_russian_are_handed_to_their_packages(packages, tmp_path):
    packages["dicta_onnx"] = SimpleNamespace(Dicta=lambda: SimpleNamespace(add_diacritics=str.upper))
    stresser = SimpleNamespace(stress_text=lambda given: given + "!")
    packages["russian_text_stresser.text_stresser"] = SimpleNamespace(RussianTextStresser=lambda: stresser)
    assert text.prepared("abc", "he", tmp_path) == "ABC"
    assert text.prepared("abc", "ru", tmp_path) == "abc!"


def test_chinese_is_cut_into_words_and_spelled(packages, tmp_path):
    (tmp_path / "Cangjie5_TC.json").write_text(json.dumps(["你\tonf", "好\tvnd", "妤\tvnd"]))
    packages["spacy_pkuseg"] = SimpleNamespace(pkuseg=lambda: SimpleNamespace(cut=list))
    spelled = text.prepared("你妤a", "zh", tmp_path)
    assert spelled == "[cj_o][cj_n][cj_f][cj_.] [cj_v][cj_n][cj_d][cj_1][cj_.] a"


def test_without_the_table_chinese_stays(packages, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        assert text.prepared("你", "zh", tmp_path) == "你"
    assert any("Cangjie5_TC.json" in record.message for record in caplog.records)
