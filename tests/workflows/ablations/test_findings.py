import math
from dataclasses import replace

import pytest
from made_up_ablations import OUTCOMES, half_way, made_up_ablation, masking, objective, size

from workflows.ablations.findings import ablation_findings


def test_scores_are_those_of_the_seeds_in_points():
    outcome = objective()
    findings = ablation_findings(outcome)
    library = findings.tasks[0]
    trials = outcome.tasks["docs_library"].trials
    assert library.scores["mlm"] == tuple(100 * each.score for each in trials[3:6])
    assert [each.metric for each in findings.tasks] == ["accuracy", "f1", "f1"]
    assert findings.num_wanted == 27 and len(findings.trials) == 27


def test_all_are_compared_with_the_reference():
    findings = ablation_findings(objective())
    told = {(v.name, t.key) for v, t, each in findings.compared() if each.is_told_apart}
    assert told == {("left_to_right", "docs_parameters"), ("left_to_right", "docs_answers")}
    assert len(list(findings.compared())) == 6


def test_the_papers_metric_is_taken_where_the_paper_has_the_task():
    outcome = made_up_ablation("size", {"mrpc": {}, "docs_answers": {}})
    trials = tuple(
        replace(each, figures={"dev/f1": each.score, "dev/accuracy": 0.5})
        for each in outcome.tasks["mrpc"].trials
    )
    sweep = replace(outcome.tasks["mrpc"], trials=trials)
    findings = ablation_findings(replace(outcome, tasks=dict(outcome.tasks) | {"mrpc": sweep}))
    mrpc, answers = findings.tasks
    assert mrpc.metric == "accuracy" and set(mrpc.scores["1/128/2"]) == {50.0}
    assert answers.metric == "f1" and answers.column is None
    without = tuple(replace(each, figures={}) for each in trials)  # as those that ended early
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
    by_name = {each.name: each for each in findings.others}
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
    assert all(math.isfinite(each.mean) for each in library.differences.values())


@pytest.mark.parametrize("name", OUTCOMES)
def test_every_state_of_an_ablation_has_findings(name):
    findings = ablation_findings(OUTCOMES[name]())
    assert findings.reference.is_reference and findings.table().rows
