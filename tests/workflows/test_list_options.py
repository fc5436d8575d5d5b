"""Lists on the command line: every one of every command, by commas and by spaces."""

import json
from itertools import pairwise

import pytest

from bert_core.errors import UserError
from bert_core.tasks.catalog import TASKS
from workflows.ablations.settings import AblateSettings
from workflows.evaluation.settings import EvaluateSettings
from workflows.finetuning.settings import settings_class
from workflows.inference.extraction import ExtractSettings
from workflows.inference.predict_settings import PredictSettings
from workflows.paper.suite_settings import PicturesSettings
from workflows.prepare import PrepareSettings
from workflows.pretraining.settings import PretrainSettings
from workflows.quantization.settings import QuantizeSettings
from workflows.settings import ONE_PER_ARGUMENT, list_fields, parse_command_line, written_out
from workflows.sweeps.settings import tune_settings_class

COMMANDS = {
    "prepare": PrepareSettings,
    "predict": PredictSettings,
    "extract": ExtractSettings,
    "evaluate": EvaluateSettings,
    "pictures": PicturesSettings,
    "quantize": QuantizeSettings,
    "ablate": AblateSettings,
    "pretrain": PretrainSettings,
    **{f"finetune {task}": settings_class(task) for task in TASKS},
    "tune": tune_settings_class("multiple_choice"),
    "features": settings_class("ner", "features"),
}
LISTS = [
    (command, name)
    for command, kind in COMMANDS.items()
    for name, field in list_fields(kind).items()
    if name != "phases" and field.json_schema_extra != ONE_PER_ARGUMENT
]
"""The lists of all commands, but those of sections and of prose."""


def read_list(command, name, *typed):
    """What the command line of a command makes of a list, before it is validated."""
    (given,) = [
        each
        for option, each in pairwise(written_out(COMMANDS[command], typed))
        if option == f"--{name}"
    ]
    return json.loads(given)


@pytest.mark.parametrize(("command", "name"), LISTS)
def test_every_list_takes_commas_and_spaces_alike(command, name):
    option = f"--{name}"
    if name in ("options", "options.thresholds") and command not in ("ablate",):
        expected = {"a": "1,2", "b": "3"}
        for typed in ("a=1,2 b=3", "a=1,2,b=3", "a=1 2 b=3", f"a=1,2 {option} b=3", "a=1,2, b=3"):
            assert read_list(command, name, option, *typed.split()) == expected
        return
    expected = ["1", "2", "3"]
    for typed in ("1 2 3", "1,2,3", "1,2 3", "1, 2, 3", "1 2,3,", f"1 {option} 2 {option}=3"):
        assert read_list(command, name, option, *typed.split(), "--x", "4") == expected
    assert read_list(command, name, f"{option}=1,2", option, '["3"]') == expected
    assert read_list(command, name, option, '"1,2",3') == ["1,2", "3"]
    axis = read_list(command, name, option, "size=1,2", "rate=3,4,seed=5")
    assert axis == ["size=1,2", "rate=3,4", "seed=5"]


@pytest.mark.parametrize(
    "path", ["a, b.txt", "a,b", "c d.txt", "[a],b.txt", "a=1.txt", "a,*.txt", "x,[ab].txt"]
)
def test_a_path_that_is_there_is_one_value(tmp_path, monkeypatch, path):
    for name in ("a, b.txt", "c d.txt", "[a],b.txt", "a=1.txt", "a,1.txt", "x,b.txt"):
        (tmp_path / name).touch()
    (tmp_path / "a,b").mkdir()
    monkeypatch.chdir(tmp_path)
    assert read_list("prepare", "text", "--text", path, "other.txt") == [path, "other.txt"]
    whole = str(tmp_path / path)
    assert read_list("prepare", "text", "--text", whole, "other.txt") == [whole, "other.txt"]


def test_packages_of_documentation_stay_together_and_files_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "json").touch()
    given = ["docs://numpy,scipy,a.txt", "docs://,numpy", "docs://numpy,json"]
    expected = ["docs://numpy,scipy", "a.txt", "docs://", "numpy", "docs://numpy", "json"]
    assert read_list("prepare", "text", "--text", *given) == expected


def test_lists_are_read_into_their_fields():
    settings = parse_command_line(
        settings_class("multiple_choice"),
        ["--data", "d", "--model", "m", "--options.choice_columns", "a", "b,c", "--epochs", "2"],
    )
    assert settings.options.choice_columns == ("a", "b", "c") and settings.epochs == 2
    pictures = parse_command_line(
        PicturesSettings,
        ["--model", "m", "--data", "d", "--report", "r", "--layers", "0", "2,-1"]
        + ["--sentences", "Well, yes.", "No.", "--options", "text_column=t", "header=false"],
    )
    assert pictures.layers == [0, 2, -1] and pictures.sentences == ["Well, yes.", "No."]
    assert pictures.options == {"text_column": "t", "header": "false"}
    cluster = ["--preset", "quickstart", "--cluster.num_workers", "2"]
    assert parse_command_line(PretrainSettings, cluster).cluster.num_workers == 2
    with pytest.raises(UserError, match="without a value: --options header"):
        parse_command_line(PicturesSettings, ["--options", "header"])


def test_phases_are_sections(tmp_path):
    phase = '{"sequence_length": 64, "steps": 3}'
    for typed in (["--phases", phase, "--phases", phase], ["--phases", f"[{phase}, {phase}]"]):
        settings = parse_command_line(PretrainSettings, typed)
        assert [(each.sequence_length, each.steps) for each in settings.phases] == [(64, 3)] * 2
