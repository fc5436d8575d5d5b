"""What remedies tell a user to do gets past the error: each test fails first, then follows it."""

import json
import re
import shlex
from types import SimpleNamespace

import numpy as np
import pytest

from bert_core.errors import UserError
from bert_core.settings import BatchSettings
from bert_core.tasks.catalog import TASKS
from bert_core.tasks.classification import Classification
from bert_core.tasks.label_values import class_warnings
from bert_core.tasks.tagging import Tagging
from bert_core.text.pieces import HELDOUT, TRAIN, choose_documents
from bert_core.tokenizer_training import train_wordpiece
from bert_core.training.loop import NonFiniteLossError
from serving.keys import read_keys
from serving.new_key import main as new_key
from serving.settings import parse_arguments as parse_server
from workflows.ablations.settings import parse as parse_ablation
from workflows.clusters import capacity
from workflows.clusters.settings import ClusterSettings
from workflows.evaluation.settings import EvaluateSettings, with_options
from workflows.finetune import parse as parse_finetuning
from workflows.finetuning.data import answered_examples
from workflows.finetuning.worker import out_of_memory_remedy as finetuning_remedy
from workflows.inference.extraction import ExtractSettings
from workflows.inference.predict_settings import PredictSettings
from workflows.inference.prediction import request_of
from workflows.pretrain import packing_note
from workflows.pretraining.settings import (
    PretrainSettings,
    lower_micro_batch,
    out_of_memory_remedy,
)
from workflows.reproduce import ReproduceSettings, refuse_other_inputs
from workflows.reproduction.comparison import NOT_RECORDED, Finding
from workflows.runs.folder import open_run
from workflows.settings import parse_command_line
from workflows.sweeps.settings import drawn_points, grid
from workflows.sweeps.sweep import read_axes, refuse_contradictions
from workflows.tune import parse as parse_sweep


def parse_pretraining(*arguments):
    return parse_command_line(PretrainSettings, arguments)


def parse_evaluation(*arguments):
    return parse_command_line(EvaluateSettings, ["--model", "m", "--data", "d", *arguments])


def parse_tuning(*arguments):
    return parse_finetuning(["--model", "m", *arguments])


GPU = ("--batch.packed", "true", "--cluster.use_gpu", "true")
WITH_DROPOUT = (*GPU, "--precision", "bfloat16", "--model.attention_probs_dropout_prob", "0.1")
WITH_LAYERS = ("--layers", "[1]", "--strategy", "second_to_last")
SETTINGS = [
    (parse_pretraining, WITH_DROPOUT, "--batch.packed false"),
    (parse_pretraining, WITH_DROPOUT, "--model.attention_probs_dropout_prob 0"),
    (
        parse_pretraining,
        (*GPU, "--precision", "float32", "--model.attention_probs_dropout_prob", "0"),
        "--precision bfloat16",
    ),
    (
        parse_pretraining,
        ("--model.num_attention_heads", "7", "--model.hidden_size", "128"),
        "--model.num_attention_heads 8",
    ),
    (
        parse_pretraining,
        ("--model.max_position_embeddings", "8"),
        "--model.max_position_embeddings 512",
    ),
    (
        parse_pretraining,
        ("--cluster.num_workers", "9", "--batch.global_batch_size", "8"),
        "--cluster.num_workers 8",
    ),
    (
        parse_pretraining,
        ("--cluster.num_workers", "9", "--batch.global_batch_size", "8"),
        "--batch.global_batch_size 16",
    ),
    (parse_tuning, ("--data", "d", "--task", "classificaton"), "--task classification"),
    (parse_tuning, ("--data", "d", "--approach", "features"), "--task ner"),
    (parse_tuning, ("--data", "d", "--approach", "fine"), "--approach finetune"),
]


@pytest.mark.parametrize(("parse", "arguments", "followed"), SETTINGS)
def test_an_option_that_a_refused_command_line_is_told_is_accepted(parse, arguments, followed):
    with pytest.raises(UserError) as refused:
        parse(*arguments)
    option, value = followed.split()
    assert option in str(refused.value) or value in str(refused.value)
    kept = list(arguments)
    if option in kept:
        del kept[kept.index(option) : kept.index(option) + 2]
    parse(*kept, option, value)


def options_of(remedy):
    return re.findall(r"--([a-z][\w.]*\w)", remedy)


def refused_then_followed(tmp_path, first, remedy, changed):
    """Other settings are refused under the run's name, and accepted as the remedy says."""
    assert "name" in options_of(remedy)
    with open_run(tmp_path, "run", first, fresh=False):
        (tmp_path / "runs" / "run" / "journal.jsonl").touch()
    with (
        pytest.raises(UserError, match="--name"),
        open_run(tmp_path, "run", changed, fresh=False),
    ):
        pass
    with open_run(tmp_path, "another", changed, fresh=False) as folder:
        assert folder.path.name == "another"


def test_a_lower_learning_rate_is_for_another_name(tmp_path):
    remedy = NonFiniteLossError(3, float("nan"), 1.0).remedy
    assert "optimizer.peak_learning_rate" in options_of(remedy)
    lower = parse_pretraining("--optimizer.peak_learning_rate", "1e-6").recipe()
    refused_then_followed(tmp_path, parse_pretraining().recipe(), remedy, lower)


@pytest.mark.parametrize("packed", ["true", "false"])
def test_a_smaller_micro_batch_is_for_another_name_and_computes_less(tmp_path, packed):
    before = parse_pretraining("--batch.packed", packed, "--batch.global_batch_size", "64")
    remedy = lower_micro_batch(before, 0)
    size = int(re.search(r"--batch.micro_batch_size below (\d+)", remedy)[1])
    after = before.model_copy(
        update={"batch": before.batch.model_copy(update={"micro_batch_size": size - 1})}
    )
    assert after.batch.rows_at_once < before.batch.rows_at_once
    refused_then_followed(tmp_path, before.recipe(), remedy, after.recipe())


def test_a_micro_batch_of_one_row_is_not_told_to_be_smaller():
    one = parse_pretraining("--batch.micro_batch_size", "1")
    assert "model.size" in options_of(lower_micro_batch(one, 0))


def test_memory_that_ends_in_a_phase_is_saved_in_that_phase():
    short = {"sequence_length": 128, "steps": 9}
    long = {"sequence_length": 512, "steps": 1, "micro_batch_size": 16}
    settings = PretrainSettings.model_validate({"recompute": "layers", "phases": [short, long]})
    assert "micro_batch_size of phase 2 in --phases below 16" in out_of_memory_remedy(settings)
    longest = settings.model_copy(update={"batch": BatchSettings(micro_batch_size=128)})
    assert "--batch.micro_batch_size below 128" in out_of_memory_remedy(longest)
    one_row = long | {"micro_batch_size": 1}
    alone = PretrainSettings.model_validate({"recompute": "layers", "phases": [one_row]})
    assert "shorter --phases" in out_of_memory_remedy(alone)


def test_no_pass_of_fine_tuning_is_told_to_be_shorter_than_a_row():
    arguments = ["--task", "classification", "--data", "d", "--max_tokens", "4096"]
    settings = parse_tuning(*arguments)
    assert "--max_tokens from 4096" in finetuning_remedy(settings, 512)
    assert "--recompute layers" in finetuning_remedy(settings, 8192)
    again = parse_tuning(*arguments, "--recompute", "layers")
    assert again.recipe() == settings.recipe(), "the same run goes on"
    assert "--options.max_length below 8192" in finetuning_remedy(again, 8192)


def test_fewer_packed_rows_a_bin_give_more_workers_something_to_do():
    many = ("--preset", "base-fast", "--cluster.num_workers", "[1,17]")
    (line,) = packing_note(parse_pretraining(*many))
    below = int(re.search(r"below (\d+)", line)[1])
    assert not packing_note(parse_pretraining(*many, "--batch.micro_batch_size", str(below // 2)))


LABELS = ["?", "-", "no label", "a, b", "it's", 'say "x", he', "$HOME", "[x]", "{}", "x=y,z", "\\"]


@pytest.fixture(scope="module")
def tokenizer():
    return train_wordpiece(["the cat sat"] * 3, 60, lowercase=True)


def read_refused(task, folder, tokenizer):
    """The error of reading and encoding what is in a folder."""
    with pytest.raises(UserError) as refused:
        task.encode(task.examples(folder, "dev"), tokenizer)
    return refused.value


def write_records(folder, *records):
    lines = map(json.dumps, records)
    (folder / "dev.jsonl").write_text("\n".join(lines), encoding="utf-8")


@pytest.mark.parametrize("label", LABELS)
def test_an_option_that_drops_a_label_is_pasted_as_it_is(tmp_path, tokenizer, label):
    task = Classification(labels=("good", "bad"))
    write_records(tmp_path, {"text": "a", "label": "good"}, {"text": "b", "label": label})
    remedy = read_refused(task, tmp_path, tokenizer).remedy
    found = re.search(r"no label: (.*) \(evaluate.py: (.*)\)$", remedy)
    assert found
    trained = parse_tuning("--data", "d", *shlex.split(found[1])).options
    options = parse_evaluation(*shlex.split(found[2])).options
    for changed in (with_options(task, options), task.model_copy(update=dict(trained))):
        assert changed.drop_labels == (label,)
    examples = with_options(task, options).examples(tmp_path, "dev")
    assert [example.answer for example in examples] == ["good", None]


@pytest.mark.parametrize("label", ["None", "null", "N/A", "-1", "-"])
def test_a_label_that_may_mean_nothing_is_dropped_as_its_warning_says(label):
    (warning,) = class_warnings([label, "good"])
    (option,) = shlex.split(warning.split("out with ")[1])
    assert parse_tuning("--data", "d", option).options.drop_labels == (label,)


@pytest.mark.parametrize("content", [None, "no JSON", '{"keys": []}'])
def test_a_key_is_made_by_the_command_that_a_refused_file_is_told(tmp_path, capsys, content):
    folder = tmp_path / "it's $HOME"
    folder.mkdir()
    path = folder / "some keys.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError) as refused:
        read_keys(path)
    if "move it away" in refused.value.remedy:
        path.rename(folder / "old")
    command = shlex.split(refused.value.remedy.split("python -m serving.new_key ")[1])
    assert new_key(command) == 0 and capsys.readouterr().out
    assert [record.name for record in read_keys(path).records] == ["NAME"]


def test_keys_of_one_name_are_renamed_and_one_that_is_no_file_is_replaced(tmp_path):
    path = tmp_path / "keys.json"
    new_key(["a", "--file", str(path)])
    records = json.loads(path.read_text())
    path.write_text(json.dumps({"keys": records["keys"] * 2}))
    with pytest.raises(UserError, match="rename one of them"):
        read_keys(path)
    named = [each | {"name": name} for each, name in zip(records["keys"] * 2, "ab", strict=True)]
    path.write_text(json.dumps({"keys": named}))
    assert len(read_keys(path).records) == 2
    with pytest.raises(UserError, match="name a file that this user can read"):
        read_keys(tmp_path)


@pytest.mark.parametrize("followed", ["--api_key_file keys.json", "--host 127.0.0.1", "--insecure"])
def test_a_server_for_all_starts_as_its_refusal_says(followed):
    server = ["--model", "a", "--host", "0.0.0.0"]  # noqa: S104
    with pytest.raises(UserError) as refused:
        parse_server(server).check()
    option, *value = followed.split()
    assert (value or [option])[-1] in str(refused.value) or option in str(refused.value)
    kept = server[:2] if option == "--host" else server
    parse_server([*kept, option, *value]).check()


def test_one_of_two_models_of_one_name_is_renamed():
    with pytest.raises(UserError, match="--model NAME=MODEL"):
        _ = parse_server(["--model", "x/a", "--model", "y/a"]).models
    assert [*parse_server(["--model", "x/a", "--model", "b=y/a"]).models] == ["a", "b"]


TABLES = [
    ("text,label\na,x\nb,y,z\nc,x\nd,y\n", {}, "skip_ragged=true", {"max_skipped": "0.5"}),
    ("text,label\na,x\nb,y,z\nc,x\nd,y\n", {"skip_ragged": True}, "", {}),
    ("text,grade\na,x\nb,y\n", {}, "label_column=NAME", {}),
]


@pytest.mark.parametrize(("content", "options", "named", "more"), TABLES)
def test_a_table_that_was_refused_is_read_with_the_option_that_was_named(
    tmp_path, tokenizer, content, options, named, more
):
    """The same option, in the form of training and in that of evaluation."""
    (tmp_path / "dev.csv").write_text(content)
    task = Classification(labels=("x", "y"), **options)
    try:
        examples, _ = answered_examples(task, str(tmp_path), "dev")
        raise AssertionError(examples)
    except UserError as error:
        remedy = error.remedy
    found = re.search(r"evaluate.py: --options (\w+)=([^)]+)\)", remedy)
    assert found and named in remedy
    name, value = found.groups()
    assert f"--options.{name}" in remedy
    given = {name: "grade" if value == "NAME" else value} | more
    examples, _ = answered_examples(with_options(task, given), str(tmp_path), "dev")
    assert len(examples) >= 2
    typed = [text for option in given.items() for text in (f"--options.{option[0]}", option[1])]
    training = parse_tuning("--data", "d", *typed)
    assert training.options.model_dump()[name] == getattr(with_options(task, given), name)


def parse_tpu(*arguments):
    return parse_pretraining(*arguments, "--batch.packed", "false")


def parse_suite(*arguments):
    return parse_command_line(EvaluateSettings, ["--data", "d", *arguments])


def parse_extraction(*arguments):
    return parse_command_line(
        ExtractSettings, ["--model", "m", "--input", "t.txt", "--output", "o", *arguments]
    )


def asked_of_classifier(*arguments):
    """What a prediction asks of a model that takes single texts."""
    given = ["--model", "m", "--input", "t.txt", "--output", "o", *arguments]
    task = Classification(labels=("a", "b"))
    predictor = SimpleNamespace(task=task, model=SimpleNamespace(heads={}))
    return request_of(parse_command_line(PredictSettings, given), predictor)


def parse_ablations(*arguments):
    return parse_ablation(arguments)


def checked_sweep(*arguments):
    settings = parse_sweep(["--model", "m", *arguments])
    refuse_contradictions(settings)
    axes = read_axes(settings)
    if settings.search == "grid":
        list(grid(axes))
    if settings.search == "random":
        drawn_points(axes, settings.points, 0)


V5E = ("--cluster.tpu", "v5e", "--cluster.topology", "4x4")
SHORT = (
    *("--study", "objective", "--model.max_position_embeddings", "64"),
    *("--phases", '[{"steps": 2, "sequence_length": 64}]', "--optimizer.warmup_steps", "1"),
)
LEARNING_RATES = "optimizer.peak_learning_rate=1e-5..1e-4"
SWEPT = ("--data", "d")
EDITED = [
    (parse_tpu, ("--cluster.tpu", "v4"), "", "--cluster.topology 2x2x2"),
    (parse_tpu, ("--cluster.tpu", "v5p"), "", "--cluster.topology 2x2x2"),
    (parse_tpu, ("--cluster.tpu", "v7x"), "", "--cluster.topology 2x2x2"),
    (parse_tpu, ("--cluster.tpu", "v6e"), "", "--cluster.topology 4x4"),
    (parse_tpu, V5E + ("--cluster.num_workers", "3"), "", "--cluster.num_workers 4"),
    (
        parse_tpu,
        (*V5E, "--cluster.num_slices", "[1,2]", "--cluster.num_workers", "3"),
        "",
        "--cluster.num_workers [4,8]",
    ),
    (
        parse_tpu,
        ("--profile", "gpu", *V5E, "--cluster.num_workers", "4"),
        "",
        "--cluster.use_gpu false",
    ),
    (
        parse_tpu,
        ("--profile", "gpu", *V5E, "--cluster.use_gpu", "false"),
        "",
        "--cluster.num_workers 4",
    ),
    (parse_tuning, ("--data", "d", "--profile", "tpu-v4-8"), "", "--profile local"),
    (parse_ablations, SHORT, "", "--finetuning.max_length 64"),
    (parse_ablations, SHORT, "", "--model.max_position_embeddings 128"),
    (
        parse_ablations,
        ("--study", "size", "--model.hidden_size", "8"),
        "--model.hidden_size",
        "leave it out",
    ),
    (
        parse_ablations,
        ("--study", "objective", "--tracking.register_as", "x"),
        "--tracking.register_as",
        "leave --tracking.register_as out",
    ),
    (
        parse_ablations,
        ("--study", "objective", "--task", "mrpc:features=d"),
        "--task",
        "ner:features=DATA",
    ),
    (checked_sweep, (*SWEPT, "--points", "4"), "", "--search random"),
    (checked_sweep, (*SWEPT, "--search", "random"), "", "--points 10"),
    (checked_sweep, (*SWEPT, "--stop_early", "true"), "--stop_early", "leave it out"),
    (checked_sweep, (*SWEPT, "--axis", "epochs="), "--axis", "FIELD=16,32"),
    (checked_sweep, (*SWEPT, "--axis", "epochs=3..2"), "--axis", "FIELD=LOW..HIGH"),
    (checked_sweep, (*SWEPT, "--search", "random", "--points", "99"), "", "--points 18"),
    (
        checked_sweep,
        (*SWEPT, "--search", "random", "--points", "99"),
        "--points",
        "--search grid and without --points",
    ),
    (
        checked_sweep,
        (*SWEPT, "--axis", "epochs=1..3", "--search", "random", "--points", "9"),
        "",
        "--points 3",
    ),
    (
        checked_sweep,
        (*SWEPT, "--search", "optuna", "--points", "9", "--seeds", "2"),
        "--seeds",
        "leave it out",
    ),
    (checked_sweep, (*SWEPT, "--train", "f"), "--train", "as --data"),
    (checked_sweep, (), "", "give a folder"),
    (parse_suite, ("--model_root", "r"), "", "--suite glue"),
    (parse_suite, (), "", "--suite glue --model_root DIR"),
    (parse_suite, ("--suite", "glue"), "", "--model_root"),
    *(
        (parse_suite, ("--suite", "glue", "--model_root", "r", name, "x"), name, "leave it out")
        for name in ("--model", "--task", "--split", "--tracking_uri")
    ),
    (parse_extraction, WITH_LAYERS, "--layers", "give one of the two"),
    (parse_extraction, WITH_LAYERS, "--strategy", "give one of the two"),
    *(
        (asked_of_classifier, (name, value), name, "leave it out")
        for name, value in (("--aggregation", "max"), ("--null_threshold", "1"))
    ),
    (asked_of_classifier, ("--text_pair_column", "b"), "--text_pair_column", "leave it out"),
]
"""A refused command line, the option that is taken out of it, and what it is told."""
MORE = {
    "ner:features=DATA": ("--task", "ner:features=d"),
    "FIELD=16,32": ("--axis", "batch_size=16,32"),
    "FIELD=LOW..HIGH": ("--axis", "epochs=2..3", "--search", "random", "--points", "2"),
    "--search random": ("--search", "random"),
    "--search grid and without --points": ("--search", "grid"),
    "give a folder": ("--data", "d"),
    "--model_root": ("--model_root", "r"),
    "--suite glue --model_root DIR": ("--suite", "glue", "--model_root", "r"),
}
"""What is typed for a remedy that is not typed as it is."""


@pytest.mark.parametrize(("parse", "arguments", "without", "told"), EDITED)
def test_a_command_line_that_is_edited_as_told_is_accepted(parse, arguments, without, told):
    with pytest.raises(UserError) as refused:
        parse(*arguments)
    said = str(refused.value)
    assert all(part in said for part in told.split())
    kept = list(arguments)
    added = list(MORE.get(told, told.split() if told.startswith("--") else ()))
    for option in {without, *(each for each in added if each.startswith("--"))} & {*kept}:
        del kept[kept.index(option) : kept.index(option) + 2]
    parse(*kept, *added)


@pytest.mark.parametrize(
    ("settings", "option"),
    [
        ({"num_workers": 3}, "--cluster.num_workers 2"),
        ({"cpus_per_worker": 3}, "--cluster.cpus_per_worker 2"),
        ({"use_gpu": True}, "--cluster.use_gpu false"),
    ],
)
def test_workers_that_ask_for_less_as_told_have_room(monkeypatch, settings, option):
    monkeypatch.setattr(capacity, "connect", lambda: None)
    monkeypatch.setattr(capacity.ray, "cluster_resources", lambda: {"CPU": 2.0})
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(UserError) as refused:
        capacity.join_cluster_with_room(ClusterSettings.model_validate(settings))
    name, value = option.split()
    assert name in refused.value.remedy
    changed = settings | {name.removeprefix("--cluster."): value}
    capacity.join_cluster_with_room(ClusterSettings.model_validate(changed))


@pytest.mark.parametrize("share", [1e-9, 0.01, 0.5, 1 - 1e-9])
def test_text_that_is_prepared_again_has_two_documents_in_each_split(share):
    """What too few held-out documents of old shards are told to do; so of four documents on."""
    for count, least in ((2, 1), (3, 1), (4, 2), (9, 2)):
        hashes = np.random.default_rng(count).integers(1 << 62, size=count, dtype=np.uint64)
        choice = choose_documents(hashes, share)
        assert min((choice == TRAIN).sum(), (choice == HELDOUT).sum()) >= least


@pytest.mark.parametrize(
    ("name", "value", "content", "suffix"),
    [
        ("document_column", "d", "EU B-ORG\n\n", ".conll"),
        ("tag_names", ("O", "B-X"), "EU B-ORG\n\n", ".conll"),
        ("comment", "#", '{"tokens": ["EU"], "tags": ["B-ORG"]}\n', ".jsonl"),
        ("document_context", True, "EU B-ORG\n\n", ".conll"),
    ],
)
def test_an_option_of_a_trained_tagger_is_undone_as_told(tmp_path, name, value, content, suffix):
    (tmp_path / f"dev{suffix}").write_text(content)
    columns = {"word_column": "tokens", "tag_column": "tags"} if suffix == ".jsonl" else {}
    task = Tagging.model_validate({"labels": ("O", "B-ORG", "I-ORG"), name: value} | columns)
    with pytest.raises(UserError) as refused:
        task.examples(tmp_path, "dev")
    option, typed = re.search(
        r"evaluate.py: --options (\w+)=(\w*)\)", refused.value.remedy
    ).groups()
    assert option == name
    assert with_options(task, {option: typed}).examples(tmp_path, "dev")


@pytest.mark.parametrize("task", TASKS)
def test_rows_as_long_as_the_positions_are_accepted_of_every_task(task):
    settings = parse_tuning("--data", "d", "--task", task, "--options.max_length", "64")
    assert settings.options.max_length == 64


@pytest.mark.parametrize(
    ("settings", "what", "option"),
    [
        ({"task": "ner"}, "data", "data"),
        ({}, "data", "shards"),
        ({"task": "ner"}, "encoder", "model"),
        ({}, "code", "despite"),
    ],
)
def test_a_run_that_cannot_be_made_again_is_told_an_option_of_its_kind(settings, what, option):
    recorded = SimpleNamespace(settings=settings, name="run")
    wanted = parse_command_line(ReproduceSettings, ["run"])
    with pytest.raises(UserError) as refused:
        refuse_other_inputs(recorded, wanted, [Finding(what, "differ", refuses=True)])
    assert options_of(refused.value.remedy) == [option]
    if option == "despite":
        despite = parse_command_line(ReproduceSettings, ["run", "--despite", "code"])
        refuse_other_inputs(recorded, despite, [Finding(what, "differ", refuses=True)])
    else:
        unknown = Finding(what, f"{NOT_RECORDED} it", refuses=True)
        with pytest.raises(UserError, match="name another run"):
            refuse_other_inputs(recorded, wanted, [unknown])
