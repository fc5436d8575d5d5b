"""A split of a data set, from files and, where `datasets` reads them, from a copy of the Hub's."""

import pytest

from bert_core.hub_data import HubDataError
from bert_core.tasks.data_splits import read_split
from bert_core.tasks.tables import TaskDataError


@pytest.fixture
def typed(hub_copy):
    """A data set whose test split hides the classes."""
    from datasets import ClassLabel, List, Value

    features = {
        "text": Value("string"),
        "label": ClassLabel(names=["bad", "good"]),
        "tags": List(ClassLabel(names=["O", "B-PER"])),
        "number": Value("int64"),
    }
    columns = {"text": ["a", "b"], "label": [1, 0], "tags": [[0, 1], []], "number": [1, 0]}
    hidden = {"text": ["c"], "label": [-1], "tags": [[-1, -1]], "number": [-1]}
    return hub_copy(
        features,
        train=columns,
        validation_matched=columns,
        validation_mismatched=columns,
        test=hidden,
    )


def test_classes_have_their_names_and_hidden_ones_none(typed):
    first, second = read_split(typed, "train")
    assert first.values == {"text": "a", "label": "good", "tags": ["O", "B-PER"], "number": 1}
    assert second.values == {"text": "b", "label": "bad", "tags": [], "number": 0}
    assert [first.where, second.where] == [f"{typed}, train, row {n}" for n in range(2)]
    (hidden,) = read_split(typed, "test")
    assert hidden.values == {"text": "c", "label": None, "tags": None, "number": -1}


def test_splits_have_the_names_that_we_give_them(typed):
    for split, name in (
        ("dev", "validation_matched"),
        ("dev_mismatched", "validation_mismatched"),
        ("validation_matched", "validation_matched"),
    ):
        assert next(read_split(typed, split)).where == f"{typed}, {name}, row 0"


def test_the_files_of_a_copy_say_the_same_as_the_copy(typed):
    folder = typed.removeprefix("hf://").removesuffix(":small")
    for split in ("train", "dev", "test"):
        of_files, of_hub = (
            [each.values for each in read_split(data, split)] for data in (folder, typed)
        )
        assert of_files == of_hub


def test_a_table_is_a_file_too(tmp_path):
    (tmp_path / "dev.tsv").write_text("a\tb\n")
    (record,) = read_split(tmp_path, "dev", header=False)
    assert record.values == {"0": "a", "1": "b"}


def test_what_is_not_there_is_said(typed):
    with pytest.raises(TaskDataError, match="no extra split: .*train, validation_matched.*extra"):
        read_split(typed, "extra")
    with pytest.raises(TaskDataError, match=r"a split in the address: .*--split"):
        read_split(f"{typed}:train", "train")
    with pytest.raises(HubDataError, match="'other' not found"):
        read_split(typed.replace("small", "other"), "train")
