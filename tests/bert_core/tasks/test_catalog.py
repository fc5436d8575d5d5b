import json

import pytest
from pydantic import BaseModel

from bert_core.errors import UserError
from bert_core.tasks.catalog import CONFIG_FIELD, TASKS, task_config, task_of
from bert_core.tasks.classification import Classification


@pytest.mark.parametrize("name", TASKS)
def test_every_setting_of_every_task_is_explained_and_survives_json(name):
    task = TASKS[name]
    assert isinstance(task, BaseModel)
    assert all(field.description for field in type(task).model_fields.values())
    if "labels" in type(task).model_fields:
        task = task.model_copy(update={"labels": ("a", "b")})
    config = json.loads(json.dumps(task_config(name, task)))
    assert task_of(config) == (name, task)
    assert config["architectures"] == [task.architecture]
    assert len(config["id2label"]) == max(2, task.head.num_outputs)


def test_the_labels_are_where_transformers_looks_for_them():
    config = task_config("sst2", Classification(labels=("bad", "good")))
    assert config["id2label"] == {"0": "bad", "1": "good"}
    assert config["label2id"] == {"bad": 0, "good": 1}
    assert config["problem_type"] == "single_label_classification"
    number = task_config("stsb", TASKS["stsb"])
    assert (number["id2label"], number["problem_type"]) == ({"0": "LABEL_0"}, "regression")


def test_a_folder_of_somebody_else_knows_no_task():
    assert task_of({"architectures": ["BertModel"]}) is None


@pytest.mark.parametrize(
    "described",
    [
        {"name": "parsing", "settings": {}},
        {"name": "sst2", "settings": {"of_the_future": 1}},
        {"name": "sst2"},
        "sst2",
    ],
)
def test_a_task_of_another_version_is_one_line(described):
    with pytest.raises(UserError, match="a task that this version does not know"):
        task_of({CONFIG_FIELD: described})
