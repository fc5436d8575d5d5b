"""The evaluation command on a model that was fine-tuned here: figures, files, refusals."""

import json
import re

import pyarrow.parquet as pq
import pytest
from finetuning_runs import write_encoder, write_task

from workflows.evaluate import main


@pytest.fixture
def evaluate(finetuning_job, tmp_path, capsys):
    """Runs the command on the run's model and data; its exit code and what it printed."""
    if not finetuning_job.folder.model.exists():
        finetuning_job.write_results()
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


def test_figures_are_those_of_the_run_with_an_interval(evaluate, finetuning_job, tmp_path):
    folder = tmp_path / "report"
    code, printed = evaluate("--task", "classification", report=folder)
    assert code == 0, printed
    assert "40 examples, 40 with answers" in printed and "0 examples truncated" in printed
    report = json.loads((folder / "report.json").read_text())
    expected = finetuning_job.write_results().figures["dev/accuracy"]
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


def test_texts_without_answers_are_predicted(evaluate, tmp_path):
    (tmp_path / "new.tsv").write_text("text\nba keli monu\n")
    output = tmp_path / "out.jsonl"
    code, printed = evaluate(data=tmp_path / "new.tsv", output=output)
    assert code == 0 and "1 examples, 0 with answers" in printed
    assert json.loads(output.read_text())["found"] in ("up", "down")
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
    expected = f"{finetuning_job.write_results().figures['dev/accuracy']:.3f}"
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
    assert "words of the first half go up" in (tmp_path / "report" / "report.md").read_text()


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
        ({"num_resample": 5}, r"unknown setting, did you mean num_resamples"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(evaluate, changed, match):
    import re

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


@pytest.mark.parametrize(
    ("name", "match"),
    [
        (
            "picture",
            "unknown suite, did you mean pictures: --suite picture .there are glue",
        ),
        ("xyz", "unknown suite: --suite xyz .there are glue, table7, pictures"),
    ],
)
def test_an_unknown_suite(capsys, name, match):
    assert main(["--suite", name, "--data", "d"]) == 2
    assert re.search(match, capsys.readouterr().err)
