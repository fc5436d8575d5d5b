import json
import math
import re
import shutil
from dataclasses import replace

import pytest
from ablation_runs import (
    OUTCOMES,
    adaptation,
    half_way,
    made_up_ablation,
    made_up_sweep,
    made_up_variants,
    masking,
    not_begun,
    objective,
    single_seed,
    size,
    without_effect,
)
from read_pages import Page as ReadPage

from workflows.ablations.ablation import by_variant
from workflows.ablations.held_out import curve_figures, pretraining_table
from workflows.ablations.report import (
    FIGURES,
    ablation_findings,
    against_control,
    as_json,
    costs,
    counts,
    difference_table,
    score_figure,
    summary_lines,
    troubles,
    verdict,
    write_ablation_report,
)


def test_scores_are_those_of_the_seeds_in_points():
    outcome = objective()
    findings = ablation_findings(outcome)
    library = findings.tasks[0]
    trials = outcome.tasks["docs_library"].trials
    assert library.scores["mlm"] == tuple(100 * trial.score for trial in trials[3:6])
    assert [task.metric for task in findings.tasks] == ["accuracy", "f1", "f1"]
    assert findings.num_wanted == 27 and len(findings.trials) == 27


def test_all_are_compared_with_the_reference():
    findings = ablation_findings(objective())
    told = {(v.name, t.key) for v, t, each in findings.compared() if each.is_told_apart}
    assert told == {("left_to_right", "docs_parameters"), ("left_to_right", "docs_answers")}
    assert len(list(findings.compared())) == 6


def test_the_papers_metric_is_taken_where_the_paper_has_the_task():
    outcome = made_up_ablation("size", {"mrpc": {}, "docs_answers": {}})
    trials = tuple(
        replace(trial, figures={"dev/f1": trial.score, "dev/accuracy": 0.5})
        for trial in outcome.tasks["mrpc"].trials
    )
    sweep = replace(outcome.tasks["mrpc"], trials=trials)
    findings = ablation_findings(replace(outcome, tasks=dict(outcome.tasks) | {"mrpc": sweep}))
    mrpc, answers = findings.tasks
    assert mrpc.metric == "accuracy" and set(mrpc.scores["1/128/2"]) == {50.0}
    assert answers.metric == "f1" and answers.column is None
    without = tuple(replace(trial, figures={}) for trial in trials)  # as those that ended early
    outcome = replace(outcome, tasks={"mrpc": replace(sweep, trials=without)})
    (mrpc,) = ablation_findings(outcome).tasks
    assert mrpc.metric == "f1" and mrpc.column is None, "another metric does not compare"


def test_ours_stand_in_the_papers_rows():
    table = ablation_findings(size()).table(["a note"])
    assert table.columns == ("docs_library", "MRPC", "SST-2", "MNLI-m")
    assert [row.name for row in table.rows] == [
        "3/768/12", "1/128/1 (6/768/3)", "1/128/2 (6/768/12)", "2/128/2 (12/768/12)",
        "2/192/3 (12/1024/16)", "4/192/3 (24/1024/16)",
    ]  # fmt: skip
    lonely, *_, largest = table.rows
    assert lonely.ours == {} and lonely.paper["MRPC"] == 79.8
    assert len(largest.ours["MRPC"]) == 3 and largest.paper["MRPC"] == 87.8
    assert table.notes == ("a note",)
    objectives = ablation_findings(objective()).table()
    assert objectives.rows[-1].name == "LTR & No NSP + BiLSTM"


def test_differences_stand_beside_the_papers():
    findings = ablation_findings(masking())
    by_name = {other.name: other for other in findings.others}
    mnli, _, features = findings.tasks
    assert findings.paper_difference(by_name["0/0/100"], mnli) == pytest.approx(-0.6)
    assert findings.paper_difference(by_name["100/0/0"], features) == pytest.approx(-0.9)
    findings = ablation_findings(objective())
    assert findings.paper_difference(findings.others[0], findings.tasks[0]) is None


def test_what_is_missing_is_not_compared():
    findings = ablation_findings(half_way())
    assert [(v.name, t.key) for v, t, _ in findings.compared()] == [("mlm", "docs_library")]
    assert [each.name for each in findings.pretrained] == ["mlm_nsp", "mlm"]
    assert findings.titled("left_to_right") == "left to right"


def test_a_score_that_is_no_number_does_not_count():
    outcome = objective()
    sweep = outcome.tasks["docs_library"]
    first, *rest = sweep.trials
    broken = replace(first, score=math.nan, figures={"dev/accuracy": math.nan})
    tasks = {"docs_library": replace(sweep, trials=(broken, *rest))}
    (library,) = ablation_findings(replace(outcome, tasks=tasks)).tasks
    assert len(library.scores["mlm_nsp"]) == 2
    assert all(math.isfinite(difference.mean) for difference in library.differences.values())


def test_a_sweep_over_runs_becomes_one_over_variants():
    variants = made_up_variants("objective")
    runs = {variant.run: variant.name for variant in variants}
    sweep = made_up_sweep("docs_library", variants, {}, seeds=2)
    by_run = {name: run for run, name in runs.items()}
    trials = [trial.__class__(**{**vars(trial), "point": {"model": by_run[trial.point["variant"]]}})
              for trial in reversed(sweep.trials)]  # fmt: skip
    renamed = by_variant(sweep.__class__(**{**vars(sweep), "trials": tuple(trials)}), runs)
    assert renamed.axes == ("variant",)
    assert [trial.point["variant"] for trial in renamed.trials] == [
        "mlm_nsp", "mlm_nsp", "mlm", "mlm", "left_to_right", "left_to_right"
    ]  # fmt: skip
    assert sorted(trial.name for trial in renamed.trials) == sorted(trial.name for trial in trials)


@pytest.mark.parametrize(
    ("outcome", "parts"),
    [
        (objective, ("2 of 6 differences", "left to right: docs_parameters −6", "docs_answers −9")),
        (masking, ("100/0/0: NER, fine-tuned −", "NER, features +", "of 15")),
        (without_effect, ("0 of 4 differences", "against MLM + NSP")),
        (single_seed, ("--seeds 3",)),
        (not_begun, ("nothing to compare",)),
    ],
)
def test_the_verdict_names_what_seeds_do_not_explain(outcome, parts):
    text = verdict(ablation_findings(outcome()))
    assert all(part in text for part in parts), text
    assert outcome is not single_seed or "left to right" not in text


def test_the_adapted_model_is_compared_with_the_control_too():
    findings = ablation_findings(adaptation())
    found = against_control(findings)
    assert found["docs_library"].mean == pytest.approx(8, abs=1.5)
    assert [each.is_told_apart for each in found.values()] == [True, False]
    text = verdict(findings)
    assert "helped beyond the control: held-out text of the domain takes 1.7000" in text
    assert "; other text takes 2.2000, 2.2000 before;" in text
    assert "adapted against the control on tasks: docs_library +" in text
    assert "MRPC" not in text.partition("on tasks:")[2].partition(";")[0]
    single = verdict(ablation_findings(adaptation(seeds=1)))
    assert "on tasks" not in single and "--seeds 3" in single


def test_the_state_and_the_cost_are_counted():
    assert counts(ablation_findings(half_way())) == (
        "2 of 3 encoders pre-trained, 7 of 27 fine-tunings finished (3 tasks, 3 seeds), 2 failed"
    )
    rows = dict(costs(ablation_findings(objective())))
    assert rows["pre-training"].startswith("0.33 core-hours")
    assert rows["fine-tuning"].startswith("0.38 core-hours")
    assert rows["wall time"] == "40 min 00 s, up to 2 runs at once"


def test_runs_without_a_result_are_named():
    assert troubles(ablation_findings(objective())) == []
    first, second, *rest = troubles(ablation_findings(half_way()))
    assert first[1:] == ("pre-training, left to right", "not finite at …/run step 7")
    assert second[1:] == ("docs_answers, MLM + NSP, seed 0", "<b>out</b> of memory | lower")
    assert [why for *_, why in rest] == ["missing"] * 4


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """The folder of each outcome's report, with its findings, by the outcome's name."""
    root = tmp_path_factory.mktemp("reports")
    return {
        name: (root / name, write_ablation_report(outcome(), root / name))
        for name, outcome in OUTCOMES.items()
    }


@pytest.mark.slow
def test_a_page_has_only_sections_with_content(reports):
    def titles(name):
        text = (reports[name][0] / "report.md").read_text()
        return re.findall("^## (.*)", text, re.MULTILINE)

    assert titles("objective") == [
        "Table 5: the objective of pre-training",
        "Scores of all seeds",
        "Differences from MLM + NSP",
        "Pre-training",
        "Cost",
    ]
    assert titles("not_begun") == [
        "Table 5: the objective of pre-training", "Pre-training", "Cost", "Failed and missing"
    ]  # fmt: skip
    assert titles("half_way")[-1] == "Failed and missing"


@pytest.mark.parametrize("name", OUTCOMES)
def test_the_files_are_complete_and_name_no_path(name, reports):
    folder, findings = reports[name]
    names = {file.name for file in folder.iterdir()}
    assert {"report.html", "report.md", "report.json"} <= names
    text = (folder / "report.md").read_text()
    assert set(re.findall(r"\]\((\w+\.svg)\)", text)) == names & set(FIGURES)
    page = ReadPage()
    page.feed((folder / "report.html").read_text())
    assert page.open == [] and page.scripts == 1
    assert all(address.startswith("#") for address in page.addresses)
    for file in folder.iterdir():
        assert "/srv/machine" not in file.read_text()
    content = json.loads((folder / "report.json").read_text())
    assert content["finding"]["here"] and content["study"] == findings.outcome.study


def test_outdated_figures_are_removed(reports, tmp_path):
    folder = shutil.copytree(reports["objective"][0], tmp_path / "report")
    assert (folder / "scores.svg").exists()
    write_ablation_report(not_begun(), folder)
    assert not any((folder / name).exists() for name in FIGURES)


def test_programs_get_every_figure():
    content = as_json(ablation_findings(objective()))
    answers = content["compared"]["docs_answers"]
    assert len(answers["scores"]["mlm"]) == 3 and answers["metric"] == "f1"
    assert answers["differences"]["left_to_right"]["told_apart"] is True
    assert content["variants"][0]["curve"][-1][0] == 2600
    assert content["table"]["rows"][0]["paper"]["QNLI"] == 88.4


def test_the_markdown_has_the_same_tables(reports):
    text = (reports["objective"][0] / "report.md").read_text()
    assert "| MLM + NSP (BERT base) | 61.69 ± 0.56 |" in text
    assert "**−9.27 ± " in text and "**−0.29" not in text
    assert "&lt;b&gt;out&lt;/b&gt;" in (reports["half_way"][0] / "report.md").read_text()


def column(table, name):
    return [row[list(table.columns).index(name)] for row in table.cells]


def test_a_difference_is_strong_where_seeds_do_not_explain_it():
    table = difference_table(ablation_findings(objective()))
    assert list(table.columns) == ["variant", "docs_library", "docs_parameters", "docs_answers"]
    mlm, left_to_right = table.cells
    assert [cell.strong for cell in left_to_right] == [False, False, True, True]
    assert mlm[1].text.startswith("+0.06 ± ") and left_to_right[0].text == "left to right"
    table = difference_table(ablation_findings(masking()))
    papers = [cell.text for cell in column(table, "MNLI, paper")]
    assert papers[0] == "+0.1" and papers[-1] == "−0.6"
    assert difference_table(ablation_findings(half_way())).cells[1][1].text == "–"


def held_out_table(outcome):
    findings = ablation_findings(outcome)
    return pretraining_table(findings.outcome, findings.paper)


def test_the_pre_trainings_have_their_perplexity_beside_the_papers():
    table = held_out_table(size())
    papers = [cell.text for cell in column(table, "perplexity, paper")]
    assert papers == ["4.68", "5.24", "3.99", "3.54", "3.23"]
    table = held_out_table(objective())
    assert "L/H/A" in table.columns and "perplexity, paper" not in table.columns
    assert [cell.text for cell in column(table, "next sentence")] == ["67.0%", "–", "–"]
    assert column(table, "loss")[2].text == "4.770", "of next tokens"
    assert "next tokens" in column(table, "predicts")[2].text


def test_every_seed_is_drawn_and_masked_and_next_tokens_apart():
    findings = ablation_findings(objective())
    svg = score_figure(findings, findings.tasks[2]).svg
    assert svg.count("<title>") == 2 * 3, "a mean and the dots of each variant"
    masked, following = curve_figures(findings.outcome)
    assert masked.svg.count("<title>") == 2 and following.svg.count("<title>") == 1
    assert "left to right" in following.svg and "left to right" not in masked.svg
    assert len(curve_figures(half_way())) == 1


def test_the_summary_says_what_failed(tmp_path):
    lines = summary_lines(ablation_findings(half_way()), tmp_path)
    failed = [line for line in lines if line.startswith("failed ")]
    assert len(failed) == 2 and "not finite" in failed[0]
    assert lines[-1] == f"report       {tmp_path / 'report.html'}"
    assert any(line.startswith("here         0 of 1 difference ") for line in lines)
