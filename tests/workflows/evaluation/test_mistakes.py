from bert_core.evaluation.outcomes import Outcome
from workflows.evaluation.mistakes import markdown_mistakes, mistake_rows


def outcome(texts, gold, found, confidence=0.9, where="dev.tsv:3"):
    return Outcome(where, texts, gold, found, False, confidence, {})


def entity(kind, start, end, text, **score):
    return {"type": kind, "start": start, "end": end, "text": text, **score}


def row(*arguments, width=160, **changed):
    (found,) = mistake_rows([outcome(*arguments, **changed)], width)
    return found


def test_a_pair_stands_in_two_columns_with_both_answers():
    assert row({"first": "It  is\nraining.", "second": "It is dry."}, "no", "yes") == {
        "text": "It is raining.",
        "second text": "It is dry.",
        "right answer": "no",
        "found": "yes",
        "confidence": "0.900",
        "where": "dev.tsv:3",
    }


def test_of_entities_only_what_differs_is_shown():
    texts = {"words": ["Anna", "Berg", "of", "Kiel"]}
    kiel = entity("LOC", 3, 4, "Kiel")
    gold = [entity("PER", 0, 2, "Anna Berg"), kiel]
    found = [entity("PER", 0, 1, "Anna", score=0.7), kiel | {"score": 0.99}]
    shown = row(texts, gold, found, confidence=None)
    assert shown["text"] == "Anna Berg of Kiel"
    assert (shown["right answer"], shown["found"]) == ("Anna Berg (PER)", "Anna (PER, 0.70)")
    assert "confidence" not in shown, "nobody has one"
    assert row(texts, [kiel], [])["found"] == "(none)"


def test_choices_are_numbered_and_labels_listed():
    shown = row({"context": "He", "choices": ["runs", "sits"]}, 0, 1)
    assert shown["choices"] == "(0) runs (1) sits"
    assert (shown["right answer"], shown["found"]) == ("(0) runs", "(1) sits")
    shown = row({"first": "a text"}, ["a", "b"], [])
    assert (shown["right answer"], shown["found"]) == ("a / b", "(none)")
    assert row({"first": "a text"}, 4.2, 1.2345)["found"] == "1.23"


def test_of_a_long_context_what_is_around_the_answer_is_shown():
    context = " ".join(f"word{number}" for number in range(200))
    shown = row({"question": "Which?", "context": context}, ["word120"], "word7", width=80)
    assert len(shown["context"]) == 80 and "word120" in shown["context"]
    assert shown["context"].startswith("…") and shown["context"].endswith("…")
    first = row({"question": "Which?", "context": context}, ["word2"], "", width=80)["context"]
    assert first.startswith("word0 ") and len(first) == 80
    last = row({"question": "Which?", "context": context}, ["word199"], "", width=80)["context"]
    assert last.endswith("word199") and len(last) == 80
    assert row({"first": context}, "no", "yes", width=80)["text"] == f"{context[:79]}…"


def test_what_some_lack_is_empty_and_what_all_lack_is_left_out():
    mistakes = [
        outcome({"first": "a | b"}, "no", "yes", where=""),
        outcome({"first": "c", "second": "d"}, "no", "yes", confidence=None, where=""),
    ]
    assert markdown_mistakes(mistakes, width=160).splitlines() == [
        "| text | second text | right answer | found | confidence |",
        "| --- | --- | --- | --- | --: |",
        "| a \\| b |  | no | yes | 0.900 |",
        "| c | d | no | yes |  |",
    ]
    assert markdown_mistakes([], width=160) == "None."
