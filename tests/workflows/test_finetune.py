"""The fine-tuning command: refused in one line; and, at length, killed and going on."""

import re

import pytest
from finetuning_runs import arguments, write_encoder, write_tagged, write_task

from workflows.finetune import main, parse


@pytest.fixture
def storage(tmp_path):
    write_task(tmp_path / "data")
    write_encoder(tmp_path / "encoder")
    return tmp_path


def give_tags(storage):
    write_tagged(storage / "data")


def refused(storage, capsys, **changed):
    """The one line with which the command refuses; nothing of a run is left."""
    assert main(arguments(storage, **changed)) == 2
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), captured.err
    assert not (storage / "runs" / "run").exists()
    return lines[0]


def lose_a_column(storage):
    path = storage / "data" / "dev.tsv"
    path.write_text(path.read_text().replace("text\tlabel", "sentence\tlabel"))


def add_a_label(storage):
    with (storage / "data" / "dev.tsv").open("a") as file:
        file.write("ba keli\tsideways\n")


def keep_one_label(storage):
    path = storage / "data" / "train.tsv"
    path.write_text(path.read_text().replace("\tdown", "\tup"))


def tear_a_line(storage):
    with (storage / "data" / "train.tsv").open("a") as file:
        file.write("ba keli\n")


def lose_dev(storage):
    (storage / "data" / "dev.tsv").unlink()


def swap_the_tokenizer(storage):
    """The tokenizer has more words than the model has embeddings."""
    write_encoder(storage / "encoder", vocab_size=30)


def damage_the_weights(storage):
    path = storage / "encoder" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


TAGGING = {"approach": "features", "task": "ner"}


@pytest.mark.parametrize(
    ("spoil", "changed", "match"),
    [
        (None, {"task": "mprc"}, "unknown task, did you mean mrpc.*one of .*mrpc"),
        (None, {"data": "/nowhere"}, "no such file or folder: /nowhere"),
        (None, {"data": __file__}, "one file, and two are needed: .*test_finetune.py"),
        (None, {"model": "nobody"}, "no such model: nobody .*models:/NAME@ALIAS"),
        (None, {"options.max_lenth": 64}, r"unknown setting, did you mean options.max_length"),
        (None, {"options.max_length": 64}, "rows of 64 tokens.*32 positions.*--options.max_length"),
        (None, {"epochs": 0}, "--epochs"),
        (None, {"approach": "feature"}, "unknown approach, did you mean features.*one of finetune"),
        (
            None,
            {"approach": "features"},
            "features are for tags of words, not for --task classification",
        ),
        (give_tags, TAGGING | {"strategy": "lost"}, "unknown strategy, did you mean last: lost"),
        (give_tags, TAGGING, "concat_last_four needs 4 layers: the model has 1"),
        (None, {"tracking.register_as": "team/sentiment"}, "no name for a model.*take '/' out"),
        (None, {"tracking.register_as": "a@champion"}, "take '@' out of it"),
        (None, {"tracking.register_as": " "}, "1 to 200 characters"),
        (None, {"tracking.experiment": "a\nb"}, "no name for an experiment"),
        (None, {"name": "ü" * 100}, "a name of 200 bytes: at most 180"),
        (
            None,
            {"tracking.register_as": "cats", "tracking.uri": "http://127.0.0.1:9"},
            "no version of cats can be registered: .*leave the registration out",
        ),
        (
            None,
            {"tracking.register_as": "cats", "tracking.uri": "htp://mlflow"},
            "no version of cats can be registered",
        ),
        (lose_a_column, {}, "no column text: .*dev.tsv:2: sentence, label"),
        (add_a_label, {}, "unknown label 'sideways': .*dev.tsv:42 .*down, up"),
        (keep_one_label, {}, "fewer than two labels, up"),
        (tear_a_line, {}, "1 columns, expected 2: .*train.tsv:92"),
        (lose_dev, {}, "no file of the dev split"),
        (swap_the_tokenizer, {}, "the tokenizer has .* words, the model 30"),
        (damage_the_weights, {}, "damaged model folder: .*model.safetensors"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(storage, capsys, spoil, changed, match):
    if spoil:
        spoil(storage)
    line = refused(storage, capsys, **changed)
    assert re.search(match, line), line


def test_the_options_are_those_of_the_task(storage, capsys):
    assert parse(arguments(storage, task="mrpc")).options.text_column == "#1 String"
    assert parse(arguments(storage, task="mrpc", **{"options.metric": "accuracy"})).options.labels
    assert parse([*arguments(storage), "--register", "cats"]).tracking.register_as == "cats"
    assert parse([*arguments(storage), "--register=cats"]).tracking.register_as == "cats"
    for task, option in (("stsb", "--options.kind"), ("classification", "--options.text_column")):
        with pytest.raises(SystemExit) as ended:
            main(["--task", task, "--help"])
        assert ended.value.code == 0
        assert option in capsys.readouterr().out
