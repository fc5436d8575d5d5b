import numpy as np
from sklearn.metrics import confusion_matrix as reference

from bert_core.evaluation.confusion import NO_ENTITY, confusion_matrix, count_pairs, worst_mistakes


def test_rows_are_right_answers_and_columns_those_found(evaluated):
    made = evaluated("five labels", 200)
    found = confusion_matrix(*made.of)
    gold = [each.answer for each in made.examples]
    guesses = [each["label"] for each in made.predictions]
    assert found.names == tuple("abcde")
    assert np.array_equal(found.counts, reference(gold, guesses, labels=list("abcde")))
    assert found.counts[0].sum() == gold.count("a")


def test_an_unknown_label_is_counted_too(with_labels):
    found = confusion_matrix(*with_labels(["no", "other"], ["no", "yes"]).of)
    assert found.names == ("no", "yes", "other")
    assert found.counts.tolist() == [[1, 0, 0], [0, 0, 0], [0, 1, 0]]


def test_the_most_frequent_mistakes_come_first():
    pairs = [("a", "b")] * 3 + [("b", "a")] * 5 + [("a", "a")] * 9 + [("c", "a")]
    matrix = count_pairs(pairs, "abc")
    assert matrix.most_confused(2) == [("b", "a", 5), ("a", "b", 3)]
    assert len(matrix.most_confused(10)) == 3


def test_entities_are_compared_span_by_span(evaluated):
    made = evaluated("tags", 1)
    made.examples[:] = [
        type(made.examples[0])(list("abcdef"), ["B-PER", "I-PER", "O", "B-LOC", "O", "B-LOC"])
    ]
    entities = [("PER", 0, 2), ("PER", 3, 4), ("LOC", 4, 5)]
    made.predictions[:] = [
        {
            "tags": ["B-PER", "I-PER", "O", "B-PER", "B-LOC", "O"],
            "entities": [
                {"type": kind, "start": start, "end": end, "score": 0.5}
                for kind, start, end in entities
            ],
        }
    ]
    found = confusion_matrix(*made.of)
    assert found.names == ("LOC", "PER", NO_ENTITY)
    assert found.counts.tolist() == [[0, 1, 1], [0, 1, 0], [1, 0, 0]]


def test_other_tasks_have_no_matrix(evaluated):
    assert all(
        confusion_matrix(*evaluated(kind).of) is None for kind in ("sets", "numbers", "squad")
    )


def test_the_worst_mistakes_are_wrong_and_sure(with_labels):
    made = with_labels(
        ["yes", "yes", "no", "no"], ["yes", "no", "yes", "yes"], [0.99, 0.6, 0.97, 0.8]
    )
    worst = worst_mistakes(*made.of, num=2)
    assert [each.texts["first"] for each in worst] == ["text 2", "text 3"]
    assert (worst[0].gold, worst[0].found, worst[0].confidence) == ("no", "yes", 0.97)
    assert worst[0].where == "file:2"


def test_the_worst_of_numbers_are_furthest_off(evaluated):
    made = evaluated("numbers")
    worst = worst_mistakes(*made.of, num=5)
    errors = [abs(each.gold - each.found) for each in worst]
    assert errors == sorted(errors, reverse=True)
    everything = zip(made.examples, made.predictions, strict=True)
    assert errors[0] == max(abs(each.answer - found["value"]) for each, found in everything)


def test_the_worst_of_sentences_have_the_surest_wrong_entities(evaluated):
    made = evaluated("tags")
    worst = worst_mistakes(*made.of)
    assert all(each.correct is False for each in worst)

    def surest(result):
        gold = [(each["type"], each["start"], each["end"]) for each in result.gold]
        wrong = [
            each["score"]
            for each in result.found
            if (each["type"], each["start"], each["end"]) not in gold
        ]
        return max(wrong, default=0)

    assert [surest(each) for each in worst] == sorted(map(surest, worst), reverse=True)
    assert surest(worst[0]) > 0.8


def test_every_kind_of_task_has_worst_mistakes(evaluated, kind):
    assert len(worst_mistakes(*evaluated(kind).of, num=3)) == 3
