"""G2P with what the tests install: misaki, spaCy, the small tagger, no espeak."""

import pytest

from models.kokoro import english, g2p
from models.kokoro.g2p import G2P, LANGUAGES
from serving.errors import BadRequest


@pytest.fixture(scope="module")
def speak():
    return G2P()


def test_the_tagger_tells_heteronyms_apart(speak):
    assert english.tagger_name() != "closed classes"
    assert speak("a", "I read the record.") != speak("a", "I will record it.").replace("ɪt", "")
    assert "ɹəkˈɔɹd" in speak("a", "I will record it.")
    assert "ɹˈɛkəɹd" in speak("a", "the old record")


def test_without_a_tagger_a_list_gives_tags(monkeypatch):
    monkeypatch.setattr(english, "tagger_name", lambda: "closed classes")
    english.tagger.cache_clear()
    try:
        said = english.English(False, lambda word: "")("The 2 cats will run to my house, slowly.")
    finally:
        english.tagger.cache_clear()
    assert said == "ðə tˈu kˈæts wɪl ɹˈʌn tə mI hˈWs, slˈOli."


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("$3.50", "θɹˈi dˈɑləɹz ænd fˈɪfti sˈɛnts"),
        ("Dr. Smith", "dˈɑktəɹ smˈɪθ"),
        ("[Kokoro](/kˈOkəɹO/) speaks", "kˈOkəɹO spˈiks"),
        ("line\nbreak", "lˈIn bɹˈAk"),
    ],
)
def test_english(speak, text, said):
    assert speak("a", text) == said


def test_british_is_not_american(speak):
    assert speak("b", "bath water") != speak("a", "bath water")


def test_a_word_in_no_dictionary_is_spelled_out_by_rule_not_dropped(speak):
    assert "k" in speak("a", "Zyxtron")
    assert speak("a", "the Blorvik") != speak("a", "the")


@pytest.mark.parametrize("code", [code for code, language in LANGUAGES.items() if language.espeak])
def test_espeak_is_off_unless_asked_for(speak, code):
    assert not speak.speakable(code)
    with pytest.raises(BadRequest, match="espeak: true") as caught:
        speak(code, "hola")
    assert caught.value.param == "voice"


def test_a_missing_extra_gives_the_command(monkeypatch):
    monkeypatch.setattr(g2p, "find_spec", lambda name: None)
    with pytest.raises(BadRequest, match=r"Japanese needs .*pip install .*unidic-lite"):
        G2P()("j", "こんにちは")
