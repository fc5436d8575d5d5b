import pytest

from bert_core.errors import UserError
from workflows.finetuning.settings import settings_class
from workflows.sweeps.axes import Choice, Range, read_axis, with_point

MRPC = settings_class("mrpc")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("precision=float32,bfloat16", Choice("precision", ("float32", "bfloat16"))),
        ("cluster.threads_per_worker=null,2", Choice("cluster.threads_per_worker", (None, 2))),
        ("epochs=2..5", Range("epochs", 2, 5, is_log=False, is_integer=True)),
        (
            "optimizer.peak_learning_rate=log:1e-5..1e-3",
            Range("optimizer.peak_learning_rate", 1e-5, 1e-3, is_log=True, is_integer=False),
        ),
        (
            "dropout.hidden_dropout_prob=0..0.3",
            Range("dropout.hidden_dropout_prob", 0.0, 0.3, is_log=False, is_integer=False),
        ),
    ],
)
def test_what_an_axis_may_be(text, expected):
    assert read_axis(text, MRPC) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch=2,3", "no setting, did you mean epochs"),
        ("epochs", "without values"),
        ("epochs=", "without values"),
        ("epochs=2,two", "'two' is no value of it"),
        ("epochs=2,2", "given twice"),
        ("epochs=4..2", "without numbers"),
        ("optimizer.peak_learning_rate=log:0..1", "without numbers"),
        ("precision=a..b", "no number"),
        ("optimizer.rate=1", "no setting"),
    ],
)
def test_what_it_may_not_be(text, message):
    with pytest.raises(UserError, match=message) as error:
        read_axis(text, MRPC)
    assert "--axis" in str(error.value) and "\n" not in str(error.value)


def test_a_point_changes_its_fields_alone():
    values = {"epochs": 3, "optimizer": {"name": "adamw", "peak_learning_rate": 1.0}}
    found = with_point(values, {"optimizer.peak_learning_rate": 2.0, "epochs": 4})
    assert found == {"epochs": 4, "optimizer": {"name": "adamw", "peak_learning_rate": 2.0}}
    assert values["optimizer"]["peak_learning_rate"] == 1.0
