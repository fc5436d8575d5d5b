import math
from dataclasses import replace

import pytest
from made_up_ablations import (
    OUTCOMES,
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

from workflows.ablations.findings import (
    ablation_findings,
    costs,
    counts,
    signed,
    troubles,
    verdict,
)
from workflows.ablations.outcome import by_variant


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


def test_the_reference_is_the_papers_choice():
    assert objective().reference.name == "mlm_nsp"


def test_a_sweep_over_runs_becomes_one_over_variants():
    variants = made_up_variants("objective")
    runs = {each.run: each.name for each in variants}
    sweep = made_up_sweep("docs_library", variants, {}, seeds=2)
    by_run = {name: run for run, name in runs.items()}
    trials = [each.__class__(**{**vars(each), "point": {"model": by_run[each.point["variant"]]}})
              for each in reversed(sweep.trials)]  # fmt: skip
    renamed = by_variant(sweep.__class__(**{**vars(sweep), "trials": tuple(trials)}), runs)
    assert renamed.axes == ("variant",)
    assert [each.point["variant"] for each in renamed.trials] == [
        "mlm_nsp", "mlm_nsp", "mlm", "mlm", "left_to_right", "left_to_right"
    ]  # fmt: skip
    assert sorted(each.name for each in renamed.trials) == sorted(each.name for each in trials)


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


def test_a_difference_has_its_sign():
    assert [signed(1.0), signed(-1.234), signed(-0.6, 1)] == ["+1.00", "−1.23", "−0.6"]
