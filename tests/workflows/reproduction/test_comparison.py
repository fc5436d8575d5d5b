"""Inputs, hardware and figures of a run and its reproduction are compared."""

import math
from dataclasses import replace

import pytest
import torch

from bert_core.machine import processor_name
from workflows.clusters.settings import ClusterSettings
from workflows.reproduction.comparison import (
    Comparison,
    code_finding,
    data_finding,
    encoder_finding,
    hardware_findings,
    package_findings,
    table_lines,
    verdict_line,
)
from workflows.reproduction.recorded_run import RecordedRun
from workflows.reproduction.run_origin import ROOT, CodeState
from workflows.runs.tracker import code_tags

DATA = {"sha256": "a" * 64, "source": "here", "splits": {"train": {"examples": 90}}}
LOOP, DEMO = "bert_core/training/loop.py", "workflows/demo.py"


@pytest.fixture(scope="module")
def code():
    return CodeState.now()


@pytest.fixture
def run(code):
    """A run that was made just now, of this code on this machine."""
    tags = code_tags(ROOT) | {"data.sha256": "a" * 64, "encoder.sha256": "e" * 64}
    tags |= {"mlflow.source.git.commit": code.git_commit or "", "git.dirty": "false"}
    outcome = {"device": "cpu", "num_threads": 2, "world_size": 1}
    outcome["processor"] = processor_name(torch.device("cpu"))
    return RecordedRun("run", {}, {}, tags, DATA, [code], outcome, {})


def changed(state, name, commit=None):
    return replace(state, files=state.files | {name: "0" * 64}, git_commit=commit)


def test_what_is_the_same_is_said_and_refuses_nothing(run, code):
    findings = [
        data_finding(run, DATA | {"source": "elsewhere"}),
        encoder_finding(run, "e" * 64),
        code_finding(run, code),
        *hardware_findings(run, ClusterSettings(threads_per_worker=2)),
    ]
    assert [finding.what for finding in findings] == ["data", "encoder", "code", "machine"]
    assert all("the same" in finding.text and not finding.refuses for finding in findings)
    assert package_findings(run) == []


def test_other_data_are_told_by_their_counts(run):
    other = DATA | {"sha256": "b" * 64, "splits": {"train": {"examples": 89}}}
    finding = data_finding(run, other)
    assert finding.refuses
    assert str(finding) == "data     differ, aaaaaaaaaaaa -> bbbbbbbbbbbb: " + (
        "splits.train.examples: 90 -> 89"
    )
    assert "as many, but others" in data_finding(run, DATA | {"sha256": "b" * 64}).text
    assert data_finding(replace(run, tags={}), DATA).refuses


def test_another_encoder_is_told_by_its_name(run):
    run = replace(run, tags=run.tags | {"encoder.name": "models:/bert/3"})
    finding = encoder_finding(run, "f" * 64)
    assert finding.refuses and finding.text.endswith("it was models:/bert/3")
    assert encoder_finding(replace(run, tags={}), "f" * 64).refuses


@pytest.mark.slow
def test_code_counts_where_training_reads_it(run, code):
    unread = replace(run, code=[changed(code, DEMO, "c" * 40)])
    assert not code_finding(unread, code).refuses
    elsewhere = replace(run, tags=run.tags | {"mlflow.source.git.commit": "c" * 40})
    finding = code_finding(elsewhere, code)
    assert not finding.refuses and "commit cccccccccccc, now " in finding.text
    read = replace(elsewhere, code=[changed(code, LOOP)])
    finding = code_finding(read, code)
    assert finding.refuses and finding.text.startswith("differs in 1 of the ")
    assert f": {LOOP};" in finding.text and "git diff cccccccccccc shows how" in finding.text
    dirty = replace(read, tags=read.tags | {"git.dirty": "true"})
    assert "git diff" not in code_finding(dirty, code).text, "the commit is not that code"
    twice = replace(run, code=[changed(code, LOOP), code])
    assert "started under 2 states" in code_finding(twice, code).text


def test_without_the_files_the_commit_has_to_do(run, code):
    bare = replace(run, code=[], tags={"mlflow.source.git.commit": "c" * 40, "git.dirty": "false"})
    clean = replace(code, git_commit="c" * 40, git_dirty=False)
    assert not code_finding(bare, clean).refuses
    assert code_finding(bare, replace(clean, git_dirty=True)).refuses
    assert code_finding(bare, replace(clean, git_commit="d" * 40)).refuses
    dirty = replace(bare, tags=bare.tags | {"git.dirty": "true"})
    assert "changes that are not recorded" in code_finding(dirty, clean).text
    assert code_finding(replace(run, code=[], tags={}), clean).refuses


def test_other_packages_and_another_machine_are_warned_of(run):
    older = replace(run, tags=run.tags | {"version.torch": "1.13"})
    (finding,) = package_findings(older)
    assert finding.what == "torch" and not finding.refuses
    assert "where it was 1.13: the last bits may differ" in finding.text
    away = {"device": "cuda", "num_threads": 8, "world_size": 4, "processor": "NVIDIA H100"}
    findings = hardware_findings(
        replace(run, outcome=away), ClusterSettings(threads_per_worker=2, num_workers=2)
    )
    assert {each.what: each.text.split(":")[0] for each in findings} == {
        "device": "cpu where it was cuda",
        "gpu": f"{processor_name(torch.device('cpu'))} where it was NVIDIA H100",
        "threads": "2 where it was 8",
        "workers": "2 where it was 4",
    }
    assert not any(each.refuses for each in findings)
    on_tpu = {"device": "tpu", "num_threads": 8, "world_size": 2, "processor": "TPU v4"}
    again = ClusterSettings(threads_per_worker=8, tpu="v4", topology="2x2x2")
    (same,) = hardware_findings(replace(run, outcome=on_tpu), again)
    assert same.text == "the same: tpu; workers 2, threads 8"
    (unknown,) = hardware_findings(replace(run, outcome={}), ClusterSettings())
    assert "not recorded which it was" in unknown.text


VALUES = {
    (1, "train/loss"): 0.5,
    (2, "train/loss"): 0.1 + 0.2,
    (2, "dev/f1"): 0.75,
    (2, "dev/loss"): math.nan,
}
WEIGHTS = "ab" * 32


def compared(changes=None, weights=WEIGHTS, lost=()):
    again = {key: value for key, value in (VALUES | (changes or {})).items() if key not in lost}
    return Comparison(VALUES, again, WEIGHTS, weights)


def test_the_same_to_the_bit():
    same = compared()
    assert same.is_equal and same.is_within(0) and same.different == []
    assert verdict_line(same, 0) == "the same to the bit: 4 figures; the weights too"
    lines = table_lines(same)
    assert [line.split()[0] for line in lines] == [
        *("figure", "dev/f1", "dev/loss", "train/loss", "weights")
    ]
    assert lines[1].split() == ["dev/f1", "0.75", "0.75", "0"]
    assert lines[2].split() == ["dev/loss", "nan", "nan", "0"]
    assert lines[3].split() == ["train/loss", "0.3", "0.3", "0"], "of the last step"
    assert lines[4].split() == ["weights", "ab" * 6, "ab" * 6, "the", "same"]


def test_one_bit_is_a_difference():
    other = compared({(2, "train/loss"): 0.3, (1, "new"): 1.0})
    assert other.different == [(2, "train/loss")] and not other.is_within(0)
    assert other.is_within(1e-15) and not other.is_within(1e-17)
    line = verdict_line(other, 1e-15)
    assert line.startswith("1 of 4 figures differ, the first in step 2 (train/loss), most ")
    assert line.endswith("by 5.55e-17; within the tolerance of 1e-15")
    assert "within" not in verdict_line(other, 0)


@pytest.mark.parametrize(
    ("changes", "lost"),
    [({(2, "dev/f1"): math.nan}, ()), ({(2, "dev/loss"): 1.0}, ()), ({}, [(2, "dev/f1")])],
)
def test_what_is_missing_or_no_number_is_within_no_tolerance(changes, lost):
    other = compared(changes, lost=lost)
    assert not other.is_equal and not other.is_within(1e9)
    assert "there is none again" in verdict_line(other, 1e9)
    assert ("none" in table_lines(other)[1]) == bool(lost)


def test_zero_has_a_sign():
    assert not Comparison({(1, "a"): 0.0}, {(1, "a"): -0.0}, None, None).is_equal


def test_the_weights_count_as_far_as_they_are_known():
    other = compared(weights="cd" * 32)
    assert not other.is_equal and not other.is_within(0) and other.is_within(1e-9)
    assert verdict_line(other, 0) == "all 4 figures are the same, the weights are not"
    unknown = compared(weights=None)
    assert unknown.is_equal and "the weights are not known" in verdict_line(unknown, 0)
    assert table_lines(unknown)[-1].split()[-2:] == ["unknown", "unknown"]


def test_nothing_recorded_is_nothing_made_again():
    empty = Comparison({}, VALUES, WEIGHTS, WEIGHTS)
    assert not empty.is_equal and not empty.is_within(1)
    assert verdict_line(empty, 0).startswith("no figure is recorded")
