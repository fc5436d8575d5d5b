import pytest

from bert_core.errors import UserError
from bert_core.tasks.catalog import TASKS
from bert_core.tasks.classification import Classification
from workflows.evaluation.task_options import with_options


def test_options_are_text_that_the_task_reads():
    task = Classification(labels=("no", "yes"), text_column="text")
    changed = with_options(task, {"text_column": "title", "header": "false", "max_length": "64"})
    assert isinstance(changed, Classification)
    assert (changed.text_column, changed.header, changed.max_length) == ("title", False, 64)
    assert changed.labels == ("no", "yes")
    assert with_options(task, {}) == task


def test_several_values_have_commas():
    changed = with_options(TASKS["multiple_choice"], {"choice_columns": "first,second"})
    assert changed.choice_columns == ("first", "second")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"text_colum": "a"}, "unknown option, did you mean text_column"),
        ({"max_length": "long"}, "max_length"),
        ({"max_length": "2"}, "greater than or equal to 8"),
        ({"kind": "regression"}, "change what the model answers"),
        ({"labels": "yes,no"}, "change what the model answers"),
    ],
)
def test_what_is_wrong_is_said(options, match):
    with pytest.raises(UserError, match=match):
        with_options(Classification(labels=("no", "yes")), options)
