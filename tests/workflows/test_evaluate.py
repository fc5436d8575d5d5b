"""The evaluation command on a model fine-tuned here: settings, figures, files, refusals."""

import json
import re

import pyarrow.parquet as pq
import pytest
from finetuning_runs import write_encoder, write_task

from bert_core.errors import UserError
from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.tasks.catalog import TASKS, task_config
from bert_core.tasks.classification import Classification
from workflows.evaluate import main
from workflows.evaluation.settings import OF_ONE_MODEL, EvaluateSettings, with_options
from workflows.finetuning.results import write_results
from workflows.settings import parse_command_line


@pytest.fixture
def evaluate(finetuning_job, tmp_path, capsys):
    """Runs the command on the run's model and data; its exit code and what it printed."""
    if not finetuning_job.folder.model.exists():
        write_results(finetuning_job)
    storage = finetuning_job.storage.folder

    def run(*arguments, **changed):
        settings = {
            "model": finetuning_job.folder.name,
            "data": storage / "data",
            "storage": storage,
            "num_resamples": 200,
            **changed,
        }
        given = [text for name, value in settings.items() for text in (f"--{name}", str(value))]
        code = main([*given, *arguments])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


@pytest.mark.slow
def test_figures_are_those_of_the_run_with_an_interval(evaluate, finetuning_job, tmp_path):
    folder = tmp_path / "report"
    code, printed = evaluate("--task", "classification", report=folder)
    assert code == 0, printed
    assert "40 examples, 40 with answers" in printed and "0 examples truncated" in printed
    report = json.loads((folder / "report.json").read_text())
    expected = write_results(finetuning_job).figures["dev/accuracy"]
    accuracy = report["metrics"]["accuracy"]
    assert accuracy["value"] == expected
    assert accuracy["low"] <= expected <= accuracy["high"]
    assert sum(map(sum, report["confusion"]["counts"])) == 40
    text = (folder / "report.md").read_text()
    assert "## Calibration" in text and "| words |" in text
    for name in ("confusion.png", "reliability.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG") and name in text


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_predictions_are_a_file_that_a_later_model_is_compared_with(evaluate, tmp_path, suffix):
    path = tmp_path / f"predictions.{suffix}"
    assert evaluate(output=path)[0] == 0
    if suffix == "jsonl":
        records = [json.loads(line) for line in path.read_text().splitlines()]
    else:
        records = pq.read_table(path).to_pylist()
    assert len(records) == 40 and {"gold", "found", "correct", "columns"} <= records[0].keys()
    code, printed = evaluate(compare=path)
    assert code == 0 and "accuracy: +0.0000" in printed
    assert "do not tell the two apart" in printed


def test_models_of_the_same_labels_are_compared(evaluate, finetuning_job, tmp_path):
    _, model, tokenizer = load_model_folder(finetuning_job.folder.model)
    for name, changed in (
        ("turned", {"labels": ("up", "down")}),
        ("several", {"kind": "multiple"}),
    ):
        task = finetuning_job.data.task.model_copy(update=changed)
        extra = task_config("classification", task)
        save_model_folder(tmp_path / name, model, tokenizer, extra_config=extra)
    code, printed = evaluate(compare=tmp_path / "turned")
    assert code == 0 and "accuracy: +1.0000" in printed, printed
    code, printed = evaluate(compare=tmp_path / "several")
    assert code == 2 and "the two models answer different questions" in printed
    path = tmp_path / "several.jsonl"
    assert evaluate(model=tmp_path / "several", output=path)[0] == 0
    code, printed = evaluate(compare=path)
    assert code == 2 and "several.jsonl:1" in printed, printed


def test_a_file_that_is_read_is_not_overwritten(evaluate, tmp_path):
    predictions, data = tmp_path / "predictions.jsonl", tmp_path / "data" / "dev.jsonl"
    data.parent.mkdir()
    data.write_text('{"text": "ba", "label": "up"}\n')
    assert evaluate(data=data.parent, output=predictions)[0] == 0
    (tmp_path / "link").symlink_to(tmp_path)
    link = tmp_path / "link" / predictions.name
    for given in (
        {"data": data, "compare": predictions, "output": link},
        {"data": data, "output": data},
        {"data": data.parent, "output": data},
    ):
        before = predictions.read_bytes(), data.read_bytes()
        code, printed = evaluate(**given)
        assert code == 2 and "this would overwrite" in printed, printed
        assert (predictions.read_bytes(), data.read_bytes()) == before
    assert evaluate(data=data.parent, output=data.parent / "predictions.jsonl")[0] == 0


def test_texts_without_answers_are_predicted(evaluate, tmp_path):
    (tmp_path / "new.tsv").write_text("text\nba keli monu\n")
    output = tmp_path / "out.jsonl"
    code, printed = evaluate(data=tmp_path / "new.tsv", output=output)
    assert code == 0 and "1 examples, 0 with answers" in printed
    assert json.loads(output.read_text())["found"] in ("up", "down")
    output.unlink()
    for name in ("report", "compare", "slice_by", "checks"):
        code, printed = evaluate(data=tmp_path / "new.tsv", output=output, **{name: "x"})
        assert code == 2 and f"has an answer: --{name}" in printed and not output.exists()
    code, printed = evaluate(data=tmp_path / "new.tsv")
    assert code == 2 and "no example has an answer" in printed


def test_examples_without_an_answer_are_counted_and_not_measured(evaluate, tmp_path):
    rows = ["text\tlabel", "ba keli monu\tup", "ba keli\t", "monu ba\t-", "ba\tnull"]
    (tmp_path / "some.tsv").write_text("\n".join(rows) + "\n")
    code, printed = evaluate("--options", "drop_labels=-", data=tmp_path / "some.tsv")
    assert code == 0 and "4 examples, 1 with answers" in printed, printed
    for reason in ("without a label", "labelled -", "labelled null"):
        assert f"1 {reason}" in printed
    assert "accuracy 1.000" in re.sub(r"\s+", " ", printed), printed


def test_a_table_of_other_columns_is_read_by_options(evaluate, finetuning_job, tmp_path):
    path = next((finetuning_job.storage.folder / "data").glob("dev.*"))
    header, rest = path.read_text().split("\n", 1)
    renamed = header.replace("text", "title").replace("label", "answer")
    (tmp_path / f"other{path.suffix}").write_text(f"{renamed}\n{rest}")
    options = "--options", "text_column=title", "--options", "label_column=answer"
    code, printed = evaluate(*options, data=tmp_path / f"other{path.suffix}")
    assert code == 0 and "40 examples, 40 with answers" in printed, printed
    expected = f"{write_results(finetuning_job).figures['dev/accuracy']:.3f}"
    assert expected in printed


def test_behaviour_is_checked_from_a_file(evaluate, tmp_path):
    path = tmp_path / "checks.yaml"
    path.write_text(
        "checks:\n"
        "  - name: words of the first half go up\n"
        "    kind: minimum functionality\n"
        "    templates: [ba keli, monu to ba]\n"
        "    label: up\n"
    )
    code, printed = evaluate(checks=path, report=tmp_path / "report")
    assert code == 0, printed
    for name in ("report.md", "report.html"):
        assert "words of the first half go up" in (tmp_path / "report" / name).read_text()


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"model": "nobody"}, "no such model: nobody"),
        ({"task": "mrpc"}, "a model of the task classification: .*leave --task mrpc out"),
        ({"split": "test"}, "no file of the test split"),
        (
            {"output": "a.csv"},
            r"unknown kind of file: --output a.csv \(use .jsonl, .parquet, .json",
        ),
        ({"output": "a.json"}, r".json is for questions: --output a.json"),
        ({"output": "a.conll"}, r".conll is for tags: --output a.conll"),
        ({"slice_by": "colour"}, "colour"),
        ({"options": "text_colum=title"}, "did you mean text_column"),
        ({"options": "text_column=title"}, "title"),
        ({"options": "metric=f2"}, "unknown metric.*: --options metric=f2 "),
        ({"options": "max_length=33"}, "rows of 33 tokens, the model has 32 positions"),
        ({"num_resample": 5}, r"unknown setting, did you mean num_resamples"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(evaluate, changed, match):
    code, printed = evaluate(**changed)
    errors = [line for line in printed.splitlines() if line.startswith("error: ")]
    assert code == 2 and len(errors) == 1 and re.search(match, errors[0]), printed


def test_an_encoder_that_knows_no_task_is_refused(evaluate, tmp_path):
    write_task(tmp_path / "data")
    code, printed = evaluate(model=write_encoder(tmp_path / "encoder"))
    assert code == 2 and "no known task in the model" in printed


def test_a_folder_of_transformers_is_evaluated(evaluate, tmp_path):
    from transformers import BertConfig, BertForSequenceClassification

    write_task(tmp_path / "data")
    folder = write_encoder(tmp_path / "encoder")
    config = BertConfig.from_pretrained(folder, id2label={0: "down", 1: "up"})
    (folder / "checksums").unlink()
    BertForSequenceClassification(config).save_pretrained(folder)
    code, printed = evaluate("--task", "mrpc", model=folder, data=tmp_path / "data")
    assert code == 2 and "labels down, up where the task has 0, 1" in printed
    code, printed = evaluate(model=folder, data=tmp_path / "data")
    assert code == 0 and "task     classification" in printed and "accuracy" in printed


SUITE = ["--suite", "glue", "--data", "d", "--model-root", "m"]


@pytest.mark.parametrize("option", ["--model_root", "--model-root"])
def test_a_suite_has_a_folder_of_models_and_no_model(option):
    settings = parse_command_line(EvaluateSettings, [*SUITE[:4], option, "m"])
    assert (settings.suite, str(settings.model_root), settings.model) == ("glue", "m", "")


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (["--data", "d"], "no model: --model .give one, or --suite glue --model_root DIR"),
        (["--model", "m"], "Field required: --data"),
        (SUITE[2:], "models without a suite: --model_root .give --suite glue"),
        (SUITE[:4], "no models: --suite glue .give --model_root"),
        *(([*SUITE, f"--{name}", "x=y"], f"--{name} is for one model") for name in OF_ONE_MODEL),
    ],
)
def test_wrong_combinations_are_refused(given, match):
    with pytest.raises(UserError, match=match):
        parse_command_line(EvaluateSettings, given)


def test_options_are_text_that_the_task_reads():
    task = Classification(labels=("no", "yes"), text_column="text")
    changed = with_options(task, {"text_column": "title", "header": "false", "max_length": "64"})
    assert isinstance(changed, Classification)
    assert (changed.text_column, changed.header, changed.max_length) == ("title", False, 64)
    assert changed.labels == ("no", "yes")
    assert with_options(task, {}) == task
    changed = with_options(TASKS["multiple_choice"], {"choice_columns": "first,second"})
    assert changed.choice_columns == ("first", "second")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"text_colum": "a"}, "unknown option, did you mean text_column"),
        ({"max_length": "long"}, "max_length"),
        ({"max_length": "2"}, "greater than or equal to 8"),
        ({"metric": "matthew"}, "unknown metric, did you mean matthews"),
        ({"kind": "regression"}, "change what the model answers"),
        ({"labels": "yes,no"}, "change what the model answers"),
    ],
)
def test_wrong_options_of_a_task_are_refused(options, match):
    with pytest.raises(UserError, match=match):
        with_options(Classification(labels=("no", "yes")), options)


def test_an_unknown_suite_is_refused(capsys):
    assert main(["--suite", "picture", "--data", "d"]) == 2
    assert "unknown suite, did you mean pictures: --suite picture" in capsys.readouterr().err
