"""Audits in this process: what is found, what is written, what is left out afterwards."""

import csv
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from audit_runs import (
    TrainsHere,
    audit_arguments,
    opened_audit,
    write_flipped,
    write_several,
    write_wrong_tags,
)
from finetuning_runs import arguments, finetune_here, write_encoder, write_task
from scipy.special import expit, softmax

from bert_core.errors import UserError
from bert_core.tasks.classification import Classification
from bert_core.tasks.tables import read_table
from bert_core.tasks.tagging import Tagging
from bert_core.tokenizer import load_tokenizer
from workflows.audit import main
from workflows.audit import parse as parse_audit
from workflows.audits.run import is_reported, judge, refuse_unfit_dev, refuse_unjudged
from workflows.audits.settings import HELD_OUT, retraining_settings, sweep_settings, with_dev
from workflows.finetune import parse as parse_finetuning
from workflows.finetuning.data import read_task_data
from workflows.finetuning.worker import BEST_PREDICTIONS, BEST_WEIGHTS, FOLD_OUTPUTS
from workflows.sweeps.folds import (
    judged_folds,
    kept_outputs,
    mean_outputs,
    probable_out_of_fold,
)

LINES = ("suspects.csv", "suspects.jsonl", "ranking.jsonl")


def judged(place, *more, **changed):
    """An audit here: its artifacts' folder, its summary, the runs that were retrained."""
    driver = TrainsHere()
    with opened_audit(place, *more, **changed) as (settings, storage, sweep):
        complete, lines, failures = judge(settings, storage, sweep, driver)
        assert complete and not failures and is_reported(settings, sweep)
        return sweep.folder.path / "artifacts", lines, driver.trained


def suspects(folder):
    with (folder / "suspects.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def learned(place, exclude, **changed):
    """What finetune.py learns from without what a file names."""
    given = arguments(place, exclude=exclude, **changed)
    return read_task_data(parse_finetuning(given), load_tokenizer(place / "encoder"))


def test_wrong_labels_are_found_ranked_and_left_out(tmp_path):
    flipped = write_flipped(tmp_path / "data")
    folder, lines, trained = judged(tmp_path)
    rows = suspects(folder)
    places = [row["where"] for row in rows]
    wrong = {f"train.tsv:{line}" for line in flipped}
    assert len(wrong & {*places}) >= 4 and len(places) <= 8
    assert [row["rank"] for row in rows] == [str(n) for n in range(1, len(rows) + 1)]
    data = (tmp_path / "data" / "train.tsv").read_text().splitlines()
    for row in rows:
        line = int(row["where"].partition(":")[2])
        assert data[line - 1] == f"{row['text']}\t{row['label']}"
        assert row["suggested_label"] in ("up", "down") and row["suggested_label"] != row["label"]
        assert 0 <= float(row["label_probability"]) < 0.5 < float(row["suggested_probability"])
    read = [json.loads(line) for line in (folder / "suspects.jsonl").read_text().splitlines()]
    assert [{name: str(value) for name, value in each.items()} for each in read] == rows
    assert [dict(each.values) for each in read_table(folder / "suspects.csv")] == rows
    assert [dict(each.values) for each in read_table(folder / "suspects.jsonl")] == read
    ranking = ranked(folder)
    assert len({each["where"] for each in ranking}) == len(ranking) == 120
    assert {each["where"] for each in ranking[:6]} == wrong
    qualities = [each["label_quality"] for each in ranking]
    assert qualities == sorted(qualities)
    assert [each["where"] for each in ranking if each["suspect"]] == places

    data = learned(tmp_path, folder / "suspects.csv")
    kept = {example.where.rpartition("/")[2] for example in data.train.examples}
    assert kept.isdisjoint(places) and len(kept) == 120 - len(places)
    assert data.train.rows.tally["excluded"] == len(places)
    assert data.sha256 == learned(tmp_path, folder / "suspects.jsonl").sha256

    report = json.loads((folder / "report.json").read_text())
    assert report["num_suspects"] == len(rows) and report["num_examples"] == 120
    assert 0.02 < report["estimated_noise"] < 0.12
    assert {(pair["given"], pair["likely"]) for pair in report["noise"]} <= {
        ("up", "down"),
        ("down", "up"),
    }
    retrained = report["retrained"]
    assert retrained["num_train"] == [120, 120 - len(rows)] and retrained["num_dev"] == 40
    metric = retrained["differences"][retrained["criterion"]]
    change = metric["second"] - metric["first"]
    assert metric["difference"]["value"] == pytest.approx(change) and len(trained) == 2
    page = (folder / "report.html").read_text()
    assert all(name in page for name in ("Suspects", "Noise", "Retraining", places[0]))
    assert (folder / "noise.svg").is_file() and any("retrained" in line for line in lines)
    assert not list(tmp_path.glob("runs/*/checkpoints/*"))

    before = {name: (folder / name).read_bytes() for name in LINES}
    for name in LINES:
        (folder / name).unlink()
    again, _, trained = judged(tmp_path)
    assert again == folder and trained == []
    assert {name: (folder / name).read_bytes() for name in LINES} == before
    assert json.loads((folder / "report.json").read_text()) == report


@pytest.mark.slow
def test_without_a_dev_file_a_tenth_is_held_out_and_not_audited(tmp_path):
    write_flipped(tmp_path / "data")
    (tmp_path / "data" / "dev.tsv").unlink()
    folder, _, _ = judged(tmp_path)
    report = json.loads((folder / "report.json").read_text())
    held_out = report["retrained"]["num_dev"]
    assert 10 <= held_out <= 14 and report["num_examples"] == 120 - held_out
    whole, _, trained = judged(tmp_path, "--no-retrain")
    report = json.loads((whole / "report.json").read_text())
    assert whole != folder and report["num_examples"] == 120 and trained == []
    assert report["retrained"] is None and report["not_retrained"] == "--no-retrain"


def test_what_divides_the_folds_divides_no_run_after_them(tmp_path):
    write_flipped(tmp_path / "data")
    divided = ("--group_by", "author", "--split_seed", "3")
    settings = with_dev(parse_audit([*audit_arguments(tmp_path), *divided]))
    assert (settings.split, sweep_settings(settings).group_by) == (None, "author")
    again = retraining_settings(settings, None)
    assert (again.folds, again.group_by, again.split_seed) == (None, None, 0)
    split = parse_audit([*audit_arguments(tmp_path), *divided, "--split", "0.2"])
    held_out = retraining_settings(split, None)
    assert (held_out.split, held_out.group_by, held_out.split_seed) == (0.2, "author", 3)


@pytest.mark.slow
def test_what_was_not_retrained_is_when_it_is_asked_for(tmp_path):
    write_flipped(tmp_path / "data")
    folder, _, _ = judged(tmp_path, "--no-retrain")
    with opened_audit(tmp_path) as (settings, _, sweep):
        assert sweep.left() == [] and not is_reported(settings, sweep)
    again, _, trained = judged(tmp_path)
    assert again == folder and len(trained) == 2


def ranked(folder):
    return [json.loads(line) for line in (folder / "ranking.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_several_labels(tmp_path):
    wrong = write_several(tmp_path / "data")
    changed = {"options.kind": "multiple", "epochs": 10}
    folder, _, _ = judged(tmp_path, "--no-retrain", **changed)
    first = {each["where"] for each in ranked(folder)[: len(wrong) + 2]}
    assert len({f"train.tsv:{line}" for line in wrong} & first) >= len(wrong) - 1
    rows = suspects(folder)
    assert 1 <= len(rows) <= 12
    for row in rows:
        given, likely = json.loads(row["label"]), json.loads(row["suggested_label"])
        assert {*given} != {*likely} and {*given, *likely} <= {"up", "down"}
    report = json.loads((folder / "report.json").read_text())
    assert report["noise"][0] | {"count": 0} == {"given": "up", "likely": "", "count": 0}
    data = learned(tmp_path, folder / "suspects.csv", **changed)
    assert data.train.rows.tally["excluded"] == len(rows)


@pytest.mark.slow
def test_tags_of_words(tmp_path):
    wrong = write_wrong_tags(tmp_path / "data")
    folder, _, _ = judged(tmp_path, "--no-retrain", task="tagging", epochs=8)

    def lines(rows):
        return {int(row["where"].partition(":")[2]) + int(row["word"]) - 1 for row in rows}

    ranking, rows = ranked(folder), suspects(folder)
    assert lines(ranking[: len(wrong)]) == {*wrong}
    assert rows and lines(rows) <= lines(ranking[: len(wrong) + 2])
    for row in rows:
        assert row["token"] == row["text"].split()[int(row["word"]) - 1]
        assert (row["token"], row["label"], row["suggested_label"]) == ("keli", "O", "B-TWO")
    sentences = {row["where"] for row in rows}
    data = learned(tmp_path, folder / "suspects.csv", task="tagging")
    assert data.train.rows.tally["excluded"] == len(sentences)
    assert len(ranking) == len({each["where"] for each in ranking}) == 160
    assert {each["where"] for each in ranking if each["suspect"]} == sentences


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("write", "changed"),
    [
        (write_flipped, {}),
        (write_several, {"options.kind": "multiple"}),
        (write_wrong_tags, {"task": "tagging"}),
    ],
)
def test_a_fold_is_judged_by_the_epoch_of_its_lowest_loss(tmp_path, write, changed):
    write(tmp_path / "data")
    with opened_audit(tmp_path, "--no-retrain", folds=2, **changed) as (_, _, sweep):
        for trial in sweep.trials:
            dev, task = trial.job.data.dev, trial.job.data.task
            outputs = torch.from_numpy(kept_outputs(trial.job.folder))
            labels = torch.from_numpy(dev.rows.labels)
            total, _ = task.loss(outputs, SimpleNamespace(labels=labels))
            losses = [epoch.dev_loss for epoch in trial.outcome.curve]
            assert float(total) / len(labels) == pytest.approx(min(losses), rel=1e-4)
            assert len({*losses}) == 4
            records = probable_out_of_fold(judged_folds([trial])).predictions
            assert records == task.decode(outputs.numpy(), dev.rows, dev.examples)


@pytest.mark.parametrize(
    ("task", "probabilities"),
    [
        (Classification(labels=("a", "b", "c")), lambda logits: softmax(logits, axis=-1)),
        (Classification(labels=("a", "b", "c"), kind="multiple"), expit),
        (Tagging(tag_names=("O", "B-A", "I-A")), lambda logits: softmax(logits, axis=-1)),
    ],
)
def test_several_models_have_the_mean_of_their_probabilities(task, probabilities):
    draw = np.random.default_rng(0)
    outputs = [draw.normal(0, 4, (9, 3)).astype(np.float32) for _ in range(3)]
    outputs[0][0], outputs[1][0] = (60, -60, 0), (60, -60, 0)  # beyond what rounds to 0 and 1
    outputs[2][0] = 60, -60, 0
    found = mean_outputs(task, outputs)
    assert found.dtype == np.float32 and np.isfinite(found).all()
    wanted = np.mean([probabilities(each.astype(float)) for each in outputs], axis=0)
    np.testing.assert_allclose(probabilities(found.astype(float)), wanted, rtol=1e-5)
    assert mean_outputs(task, outputs[:1]) is outputs[0]


@pytest.mark.slow
def test_more_seeds_go_on_with_an_audit(tmp_path):
    """The models that are there already are not trained again, and all judge together."""
    flipped = write_flipped(tmp_path / "data")
    judged(tmp_path, "--no-retrain")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/trial.json")}
    folder, lines, _ = judged(tmp_path, "--no-retrain", "--seeds", "2")
    after = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/trial.json")}
    assert len(after) == 2 * len(before) and before.items() <= after.items()
    ranking = ranked(folder)
    assert len(ranking) == 120 and len({each["where"] for each in ranking}) == 120
    assert {each["where"] for each in ranking[:6]} == {f"train.tsv:{line}" for line in flipped}
    report = json.loads((folder / "report.json").read_text())
    assert report["seeds"] == 2 and report["folds"] == len(before)
    assert "2 seeds judge each" in (folder / "report.md").read_text()
    *_, trained = judged(tmp_path, "--seeds", "2")
    report = json.loads((folder / "report.json").read_text())["retrained"]
    assert sorted(name for pair in report["runs"] for name in pair) == sorted(trained)
    assert len(report["runs"]) == 2 and "2 seeds of each" in (folder / "report.md").read_text()


def test_a_run_that_is_no_fold_keeps_no_outputs(tmp_path):
    write_wrong_tags(tmp_path / "data")
    write_encoder(tmp_path / "encoder")
    run, _, _ = finetune_here(tmp_path, task="tagging", epochs=1)
    files = {path.name for path in run.folder.path.rglob("*.*")}
    assert {BEST_WEIGHTS, BEST_PREDICTIONS} <= files and FOLD_OUTPUTS not in files


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"task": "stsb"}, "an audit judges labels and tags"),
        ({"task": "squad"}, "an audit judges labels and tags"),
        ({"task": "multiple_choice"}, "an audit judges labels and tags"),
        ({"options.kind": "regression"}, "an audit judges labels and tags"),
        ({"fold": 1}, "--fold"),
        ({"exclude": "suspects.csv"}, "--exclude"),
        ({"tracking.register_as": "m"}, "--tracking.register_as"),
        ({"decisions.thresholds": True}, "--decisions.thresholds (leave it out; finetune.py"),
        ({"test": "test.tsv"}, "an audit takes one file, or a folder of files: --test"),
        ({"train": "a.tsv", "dev": "b.tsv"}, "give --data"),
        ({"folds": 1}, "greater than or equal to 2"),
    ],
)
def test_what_cannot_be_audited_is_refused_in_one_line(tmp_path, capsys, changed, message):
    write_task(tmp_path / "data")
    write_encoder(tmp_path / "encoder")
    given = audit_arguments(tmp_path, **changed)
    if "task" in changed:
        given = [each for each in given if not each.startswith("--options.")]
        given.remove("32")
    assert main(given) == 2
    error = capsys.readouterr().err.splitlines()
    assert len(error) == 1 and message in error[0]
    assert not list(tmp_path.glob("runs/*/")) and not list(tmp_path.glob("audits/*/"))


def test_a_dev_file_without_answers_is_as_none(tmp_path):
    write_flipped(tmp_path / "data")
    dev = tmp_path / "data" / "dev.tsv"
    head, *rows = dev.read_text().splitlines()
    place = head.split("\t").index("label")
    cells = [row.split("\t") for row in rows]
    dev.write_text(
        "\n".join([head, *("\t".join([*each[:place], "", *each[place + 1 :]]) for each in cells)])
    )
    settings = with_dev(parse_audit(audit_arguments(tmp_path)))
    assert settings.split == HELD_OUT


def test_a_dev_file_that_no_models_can_be_compared_on_is_refused_first(tmp_path):
    write_flipped(tmp_path / "data")
    dev = tmp_path / "data" / "dev.tsv"
    dev.write_text(dev.read_text().replace("\tup", "\tnew"))
    with (
        opened_audit(tmp_path) as (settings, storage, _),
        pytest.raises(UserError, match="new"),
    ):
        refuse_unfit_dev(settings, storage)


def test_labels_that_leave_nothing_to_judge_are_refused(tmp_path):
    (tmp_path / "data").mkdir()
    rows = [f"ba {'keli ' * (n % 9)}{n}\t{'up' if n else 'down'}" for n in range(30)]
    (tmp_path / "data" / "train.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    with (
        pytest.raises(UserError, match="fewer than two labels"),
        opened_audit(tmp_path, "--options.labels", "up", "down", epochs=1) as (_, _, sweep),
    ):
        refuse_unjudged(sweep)
