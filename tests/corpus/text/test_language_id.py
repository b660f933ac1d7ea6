"""Languages of plain sentences."""

from __future__ import annotations

import pytest

from stages.corpus.text.language_id import detect_language, model_language, second_opinion

TEXTS = {
    "en": "The committee has decided that the new building will be opened to the public at the beginning of next year.",
    "de": "Der Ausschuss hat beschlossen, dass das neue Gebäude zu Beginn des nächsten Jahres für die Öffentlichkeit geöffnet wird. "
    "Bis dahin müssen die Arbeiten an den Straßen und Plätzen in der Umgebung beendet sein, und die Bürger sollen sich dazu äußern können.",
    "fr": "Le comité a décidé que le nouveau bâtiment serait ouvert au public au début de l'année prochaine.",
    "ja": "委員会は、新しい建物を来年の初めに一般公開することを決定しました。これは市民にとって良い知らせです。",
    "ru": "Комитет решил, что новое здание будет открыто для публики в начале следующего года.",
}


@pytest.mark.parametrize("language", TEXTS)
def test_language_and_score(language: str) -> None:
    found, score = detect_language(TEXTS[language] * 3)
    assert found == language
    assert 0.1 < score <= 1  # Japanese scores low: its profile is spread over many characters


def test_no_text_is_unknown_or_scored_low() -> None:
    language, score = detect_language("")
    assert score <= 0.5 or language == "unknown"


def test_composition_of_characters_does_not_matter() -> None:
    import unicodedata

    assert detect_language(unicodedata.normalize("NFD", TEXTS["de"])) == detect_language(TEXTS["de"])


def test_second_opinion() -> None:
    for language, text in TEXTS.items():
        found, probability = second_opinion(text)
        assert found == language and 0.5 < probability <= 1
    assert second_opinion("ж" * 10_000)[1] <= 1


def test_a_model_by_labels() -> None:
    class Model:
        """Stands for fastText's predict: labels, best first, and probabilities."""

        def __init__(self, *labels: str) -> None:
            self.labels = labels

        def predict(self, line: str) -> tuple[tuple[str, ...], list[float]]:
            assert "\n" not in line
            return self.labels, [1.00001] * len(self.labels)

    assert model_language("a\nb", Model("__label__en")) == ("en", 1.0)
    assert model_language("a", Model("__label__eng_Latn")) == ("eng", 1.0)
    assert model_language("", Model()) == ("unknown", 0.0)
