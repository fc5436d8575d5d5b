"""The GLUE suite: its table, and its command on models that always give one answer."""

import json
import re

import pytest
import torch
from finetuning_runs import write_encoder

from bert_core.evaluation.intervals import Interval
from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.predictor import load_predictor
from bert_core.tasks.catalog import GLUE, task_config
from bert_core.tasks.task import add_task_head
from workflows.evaluate import main
from workflows.paper.glue import (
    Measured,
    find_models,
    glue_table,
    json_table,
    read_dev_sets,
    report_table,
)
from workflows.paper.paper_table import DASH
from workflows.paper.published import COLUMNS
from workflows.reporting.render import terminal_table


def figure(value, low=None, high=None, **behind):
    interval = Interval(value, value if low is None else low, value if high is None else high)
    return Measured(interval, **{"model": "m", "num_examples": 1043, "num_truncated": 2, **behind})


OURS = {
    "cola": figure(0.52, 0.47, 0.571, model="cola-1", num_models=3),
    "mrpc": figure(0.9),
    "rte": figure(0.65),
    "qqp": "no data",
}


def test_averages_are_taken_over_what_all_rows_have():
    other = {"mrpc": figure(0.8), "rte": figure(0.6), "qqp": figure(0.7)}
    table = glue_table({"ours": OURS, "other": other})
    assert table.averaged == ("mrpc", "rte")
    averages = [row.average(table.averaged) for row in table.rows]
    assert averages == pytest.approx([(88.9 + 66.4) / 2, (89.3 + 70.1) / 2, 77.5, 70])


def test_the_table_has_a_line_for_every_column_and_a_dash_for_no_figure():
    table = report_table(glue_table({"our | model": OURS}))
    assert table.columns[2:] == ["BERT base, test", "BERT large, test", "our | model, dev"]
    lines = {line[0].text: [cell.text for cell in line[1:]] for line in table.cells}
    assert list(lines) == [*(column.title for column in COLUMNS.values()), "average"]
    assert lines["MNLI-m"] == ["accuracy", "84.6", "86.7", DASH]
    assert lines["CoLA"] == ["Matthews", "52.1", "60.5", "52.0 (47.0 to 57.1)"]
    assert lines["average"] == ["of 3", "69.1", "73.3", "69.0"]
    assert any("CoLA, MRPC, RTE" in note and "79.6 (BERT base)" in note for note in table.notes)
    assert any("flatters" in note for note in table.notes)
    text = terminal_table(table)
    assert max(map(len, text.splitlines())) <= 96


def test_json_has_the_exact_figures():
    content = json.loads(json_table(glue_table({"ours": OURS})))
    base, _, ours = content["rows"]
    assert ours["figures"]["cola"] == {
        "value": 52,
        "low": 47,
        "high": pytest.approx(57.1),
        "model": "cola-1",
        "num_examples": 1043,
        "num_truncated": 2,
        "num_models": 3,
    }
    assert base["figures"]["mnli"] == {"value": 84.6}
    assert ours["figures"]["mnli"] is None
    assert ours["missing"] == {"qqp": "no data"} and base["missing"] == {}
    assert ours["average"] == pytest.approx(69)
    assert base["average_of_all_columns"] == 79.6
    assert content["columns"]["stsb"] == {"title": "STS-B", "metric": "spearman"}
    assert content["averaged_columns"] == ["cola", "mrpc", "rte"]


TEXT = "ba keli monu"
LINES = {
    "CoLA": ("", "gj04\t{label}\t\t{text}"),
    "SST-2": ("sentence\tlabel", "{text} \t{label}"),
    "MRPC": ("\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String", "{label}\t7\t8\t{text}\t{text}"),
    "STS-B": ("index\tsentence1\tsentence2\tscore", "0\t{text}\t{text}\t{label}"),
    "MNLI": ("index\tsentence1\tsentence2\tgold_label", "0\t{text}\t{text}\t{label}"),
    "RTE": ("index\tsentence1\tsentence2\tlabel", "0\t{text}\t{text}\t{label}"),
}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return write_encoder(tmp_path_factory.mktemp("encoder") / "model")


@pytest.fixture
def write_model(encoder, tmp_path):
    """Writes a model that always gives the same answer."""

    def write(name, task, answer=None, *, called=None, **options):
        settings = GLUE[task].model_copy(update={"max_length": 16, **options})
        _, model, tokenizer = load_model_folder(encoder)
        torch.manual_seed(1)
        add_task_head(model, settings)
        if answer is not None:
            with torch.no_grad():
                model.heads["classifier"].linear.bias[settings.labels.index(answer)] = 10
        config = task_config(called or task, settings)
        save_model_folder(tmp_path / "models" / name, model, tokenizer, "", extra_config=config)
        return tmp_path / "models" / name

    (tmp_path / "models").mkdir()
    return write


@pytest.fixture
def write_data(tmp_path):
    """Writes a dev set in GLUE's format with these labels; its texts grow longer."""

    def write(task, *labels, split="dev", folder=None):
        header, line = LINES[task]
        path = tmp_path / "glue" / (folder or task) / f"{split}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        texts = [TEXT + " to" * index for index in range(len(labels))]
        pairs = zip(labels, texts, strict=True)
        lines = [line.format(label=label, text=text) for label, text in pairs]
        path.write_text("\n".join([header, *lines] if header else lines) + "\n", encoding="utf-8")
        return path

    (tmp_path / "glue").mkdir()
    return write


@pytest.fixture
def glue(tmp_path, capsys):
    """Runs the command; its exit code, what it printed, and the report as JSON."""

    def run(*arguments):
        folders = ["--data", str(tmp_path / "glue"), "--model-root", str(tmp_path / "models")]
        report = tmp_path / "report"
        code = main(["--suite", "glue", *folders, "--num_resamples", "200", *arguments])
        captured = capsys.readouterr()
        written = (
            json.loads((report / "glue.json").read_text())
            if "--report" in arguments and code == 0
            else None
        )
        return code, captured.out + captured.err, written

    return run


def ours(written):
    return written["rows"][2]


def test_figures_are_those_of_the_models_with_interval_and_reasons(
    glue, write_model, write_data, tmp_path
):
    write_model("anything", "mrpc", "1", max_length=12)
    write_model("a-run/model", "rte", "entailment")
    write_model("sst", "sst2", "0")
    write_data("MRPC", *"1101", "")
    write_data("RTE", "entailment", "not_entailment", "not_entailment")
    write_data("CoLA", *"1101")
    code, printed, written = glue("--report", str(tmp_path / "report"))
    assert code == 0, printed
    row = ours(written)
    assert row["name"] == "models" and row["measured_on"] == "dev"
    mrpc, rte = row["figures"]["mrpc"], row["figures"]["rte"]
    assert mrpc["value"] == pytest.approx(100 * 6 / 7)  # 3 found of 3, 3 of 4 right
    assert rte["value"] == pytest.approx(100 / 3)
    assert mrpc["low"] < mrpc["value"] < mrpc["high"]
    assert (mrpc["model"], rte["model"]) == ("anything", "a-run")
    assert (mrpc["num_examples"], mrpc["num_truncated"]) == (4, 2)
    assert "left out of mrpc: 1 without a label" in printed
    assert row["missing"] == {
        **dict.fromkeys(["mnli", "mnli_mm", "qqp", "qnli", "stsb"], "no data, no model"),
        "sst2": "no data",
        "cola": "no model",
    }
    assert written["averaged_columns"] == ["mrpc", "rte"]
    assert row["average"] == pytest.approx((600 / 7 + 100 / 3) / 2)
    assert written["rows"][0]["average"] == pytest.approx((88.9 + 66.4) / 2)
    assert re.search(r"^MRPC +anything, 4 examples: F1 85\.7 \(.*\), 2 truncated", printed, re.M)
    assert re.search(r"^RTE +a-run, 3 examples: accuracy 33\.3 \(", printed, re.M)
    assert re.search(rf"^CoLA +{DASH} no model$", printed, re.M)
    assert re.search(r"^RTE +accuracy +66\.4 +70\.1 +33\.3 \(", printed, re.M)
    for name in ("glue.md", "glue.html"):
        text = (tmp_path / "report" / name).read_text()
        assert "85.7 (" in text and f"{DASH} no model" in text


def test_both_dev_sets_of_mnli_are_of_the_model_that_does_best_on_the_first(
    glue, write_model, write_data, tmp_path
):
    write_model("a", "mnli", "entailment")
    write_model("b", "mnli", "neutral")
    write_data("MNLI", "neutral", "neutral", "entailment", split="dev_matched")
    write_data("MNLI", *["entailment"] * 3, "neutral", split="dev_mismatched")
    code, printed, written = glue("--report", str(tmp_path / "report"))
    assert code == 0, printed
    matched, mismatched = (ours(written)["figures"][name] for name in ("mnli", "mnli_mm"))
    assert (matched["model"], matched["value"]) == ("b", pytest.approx(200 / 3))
    assert (mismatched["model"], mismatched["value"]) == ("b", 25)
    assert matched["num_models"] == 2
    assert len(re.findall(r"^MNLI-mm +[ab], 4 examples", printed, re.M)) == 2
    (tmp_path / "glue" / "MNLI" / "dev_matched.tsv").unlink()
    _, _, written = glue("--report", str(tmp_path / "report"))
    assert ours(written)["figures"]["mnli"] is None
    assert ours(written)["figures"]["mnli_mm"]["model"] == "a"


def test_the_metric_is_glues_whatever_the_model_was_tuned_for(
    glue, write_model, write_data, tmp_path
):
    write_model("m", "mrpc", "0", labels=("1", "0"), metric="accuracy")
    write_data("MRPC", *"0001")
    numbers = write_model("numbers", "stsb")
    write_data("STS-B", "0.5", "1.0", "4.0", "2.0", "5.0")
    code, printed, written = glue("--report", str(tmp_path / "report"))
    assert code == 0, printed
    figures = ours(written)["figures"]
    assert figures["mrpc"]["value"] == 0  # of the pairs that are paraphrases it finds none
    predictor = load_predictor(numbers)
    examples = predictor.task.examples(tmp_path / "glue" / "STS-B", "dev")
    values = [each["value"] for each in predictor.predict_examples(examples)[0]]
    ranks = [sorted(values).index(value) for value in values]
    squares = sum((a - b) ** 2 for a, b in zip(ranks, [0, 1, 3, 2, 4], strict=True))
    assert figures["stsb"]["value"] == pytest.approx(100 * (1 - 6 * squares / (5 * 24)))


def test_models_are_found_by_what_they_say_of_themselves(write_model, encoder, tmp_path):
    root = tmp_path / "models"
    kept = [write_model("CoLA", "sst2", "1"), write_model("run/model", "sst2", "1")]
    write_model("run.before-20260101T000000Z/model", "sst2", "1")
    write_model(".SST-2.written", "sst2", "1")
    write_model("other", "sst2", "1", called="classification")
    write_encoder(root / "SST-2")
    (root / "notes.txt").write_text("")
    (root / ".left").mkdir()
    (root / ".left" / "config.json").write_text("{")
    assert find_models(root) == {"sst2": kept}


@pytest.mark.parametrize("folder", ["CoLA", "cola", "COLA", "Co-LA"])
def test_folders_of_tasks_are_found_in_any_case(write_data, tmp_path, folder):
    write_data("CoLA", *"01", folder=folder)
    write_data("SST-2", *"01", folder="other_things")
    assert list(read_dev_sets(tmp_path / "glue")) == ["cola"]


def test_without_a_report_the_table_is_printed_and_nothing_written(
    glue, write_model, write_data, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    write_model("w", "wnli", "1")
    write_model("s", "sst2", "1")
    write_data("SST-2", *"1110")
    before = sorted(tmp_path.rglob("*"))
    code, printed, _ = glue()
    assert code == 0 and "WNLI     left out, as in the paper" in printed
    assert re.search(
        r"^task +metric +BERT base, test +BERT large, test +models, dev$", printed, re.M
    )
    assert re.search(r"^SST-2 +accuracy +93\.5 +94\.9 +75\.0 \(", printed, re.M)
    assert sorted(tmp_path.rglob("*")) == before


def refuse(glue, match):
    code, printed, _ = glue()
    errors = [line for line in printed.splitlines() if line.startswith("error: ")]
    assert code == 2 and len(errors) == 1 and re.search(match, errors[0]), printed


def test_nothing_to_measure_is_an_error(glue, write_model, write_data, tmp_path):
    refuse(glue, "no fine-tuned model of a task of GLUE: .*models ")
    write_model("m", "mrpc", "1")
    refuse(glue, "no dev set of a task of GLUE: .*glue .*MNLI/dev_matched.tsv")
    write_data("CoLA", *"01")
    refuse(glue, "no task has both data and a model: data of cola in .*, models of mrpc in ")
    (tmp_path / "glue").rename(tmp_path / "away")
    refuse(glue, "no such folder: .*glue .check --data")
    (tmp_path / "models").rename(tmp_path / "gone")
    refuse(glue, "no such folder: .*models .check --model_root")


def test_what_is_damaged_is_an_error(glue, write_model, write_data, tmp_path):
    folder = write_model("m", "mrpc", "1")
    write_data("MRPC", "1", "maybe")
    refuse(glue, r"unknown label 'maybe': .*MRPC/dev.tsv:3 ")
    write_data("MRPC", "1", folder="mrpc")
    refuse(glue, "two folders of the task mrpc: .*MRPC, .*mrpc ")
    (tmp_path / "glue" / "mrpc" / "dev.tsv").unlink()
    (tmp_path / "glue" / "mrpc").rmdir()
    write_data("MRPC", "", "")
    refuse(glue, "no example has an answer: .*MRPC, dev")
    write_data("MRPC", "1", "0")
    write_model("m", "mrpc", "1", labels=("0", "1", "2"))
    refuse(glue, "a model of mrpc with other answers than GLUE's, which are 0, 1: .*m ")
    (folder / "config.json").write_text("{")
    refuse(glue, "damaged JSON, .*m/config.json ")
