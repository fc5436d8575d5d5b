import re

import pytest
from sklearn.metrics import precision_recall_fscore_support

from bert_core.evaluation.intervals import bootstrap_intervals
from bert_core.evaluation.outcomes import documents, outcomes
from bert_core.evaluation.slices import (
    by_column,
    class_metrics,
    markdown_slices,
    slice_metrics,
    usual_slicings,
)


def test_a_slice_is_measured_as_if_it_were_all(evaluated):
    made = evaluated("two labels", 100)
    slicing = by_column(outcomes(*made.of), "source")
    found = slice_metrics(*made.of, [slicing], num_resamples=50)
    assert [(each.by, each.name, each.count) for each in found] == [
        ("source", "s0", 34),
        ("source", "s1", 33),
        ("source", "s2", 33),
    ]
    part = made.task, made.predictions[1::3], made.examples[1::3]
    assert found[1].metrics == bootstrap_intervals(*part, num_resamples=50)


def test_every_task_has_slices_of_all_its_examples(evaluated, kind):
    made = evaluated(kind)
    slicings = usual_slicings(*made.of)
    by = {slicing.by for slicing in slicings}
    assert by == {"words"} | ({"question word", "answer length"} if "squad" in kind else set())
    found = slice_metrics(*made.of, slicings, num_resamples=20)
    assert sum(each.count for each in found) == 60 * len(by)
    assert all(made.task.criterion in each.metrics for each in found)


def test_labels_have_the_precision_recall_and_f1_of_scikit_learn(evaluated):
    made = evaluated("five labels", 200)
    found = class_metrics(*made.of, num_resamples=100)
    gold = [each.answer for each in made.examples]
    expected = precision_recall_fscore_support(gold, [each["label"] for each in made.predictions])
    for index, each in enumerate(found):
        assert (each.by, each.name) == ("label", "abcde"[index])
        names = ("precision", "recall", "f1")
        assert [each.metrics[name].value for name in names] == pytest.approx(
            [values[index] for values in expected[:3]]
        )
        assert each.count == expected[3][index]
        assert each.metrics["f1"].low < each.metrics["f1"].value < each.metrics["f1"].high


def test_entities_have_the_f1_of_their_type(evaluated):
    made = evaluated("tags", 100)
    found = class_metrics(*made.of, num_resamples=20)
    metrics = made.task.metrics(made.predictions, made.examples)
    assert {f"f1_{each.name}": each.metrics["f1"].value for each in found} == pytest.approx(
        {name: value for name, value in metrics.items() if name.startswith("f1_")}
    )
    assert {each.by for each in found} == {"entity type"}
    tags = [tag for each in made.examples for tag in each.tags]
    assert {each.name: each.count for each in found} == {
        kind: tags.count(f"B-{kind}") for kind in ("LOC", "PER")
    }


def test_a_label_of_several(evaluated):
    made = evaluated("sets", 100)
    for each in class_metrics(*made.of, num_resamples=10):
        has = [each.name in example.answer for example in made.examples]
        hit = [each.name in found["labels"] for found in made.predictions]
        both = sum(a and b for a, b in zip(has, hit, strict=True))
        assert each.metrics["recall"].value == both / sum(has)
        assert each.metrics["precision"].value == both / sum(hit)


def test_tasks_without_classes_have_no_classes_to_measure(evaluated):
    assert class_metrics(*evaluated("squad").of) == class_metrics(*evaluated("numbers").of) == []


def test_documents_are_drawn_whole_in_slices_too(evaluated):
    made = evaluated("squad", 60)
    groups = documents(made.examples)
    slicing = usual_slicings(*made.of)[1]
    found = slice_metrics(*made.of, [slicing], num_resamples=50, groups=groups)
    inside = [index for index, name in enumerate(slicing.slice_of) if name == found[0].name]
    part = [[each[index] for index in inside] for each in (made.predictions, made.examples, groups)]
    assert found[0].metrics == bootstrap_intervals(
        made.task, *part[:2], num_resamples=50, groups=part[2]
    )
    tags = evaluated("tags", 60)
    together = ["one"] * 30 + ["other"] * 30
    few = class_metrics(*tags.of, num_resamples=50, groups=together)
    drawn = class_metrics(*tags.of, num_resamples=50)
    assert few[0].metrics["f1"].value == drawn[0].metrics["f1"].value
    assert few != drawn


def test_small_slices_are_marked(with_labels):
    made = with_labels(["no"] * 29 + ["yes"] * 31, ["no"] * 60)
    few, enough = class_metrics(*made.of, num_resamples=20)
    assert (few.is_small, enough.is_small) == (True, False)
    lines = markdown_slices([few, enough], ["recall", "unheard_of"]).splitlines()
    assert lines[2] == "| label | no | 29 (few) | 1.000 | – |"
    assert lines[3] == "| label | yes | 31 | 0.000 | – |"
    varied = class_metrics(*with_labels(["no"] * 40, ["no", "yes"] * 20).of, num_resamples=20)
    assert re.search(r"0\.500 \(0\.\d+–0\.\d+\)", markdown_slices(varied, ["recall"]))
