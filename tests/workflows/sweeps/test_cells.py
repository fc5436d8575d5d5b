from dataclasses import replace

from made_up_sweeps import (
    GRID,
    made_up_outcome,
    made_up_trial,
    not_begun,
    paper_grid,
    without_score,
)

from workflows.sweeps.cells import MOST_SEED_COLUMNS, costs, point_table, troubles
from workflows.sweeps.findings import sweep_findings


def test_the_table_has_each_seeds_score():
    findings = sweep_findings(paper_grid())
    heads, rows = point_table(findings)
    assert heads == [
        "rank", "F1", "level", "batch_size", "peak_learning_rate", "epochs", "seeds", "seed 0",
        "seed 1", "best epochs", "time of a trial",
    ]  # fmt: skip
    assert all(len(cells) == len(heads) for _, cells in rows)
    texts = [[cell.text for cell in cells] for _, cells in rows]
    assert sum("failed" in each for each in texts) == sum("missing" in each for each in texts) == 1
    best, point = texts[0], rows[0][0]
    assert best[0] == "1" and best[2] == "yes" and best[6] == "2"
    assert best[7:9] == [f"{100 * each:.2f}" for each in point.scores.scores]
    orders = [cells[1].order for _, cells in rows]
    assert orders == sorted(orders, reverse=True)


def test_points_without_a_score_come_last():
    trials = [without_score(made_up_trial(GRID[0], 0)), made_up_trial(GRID[1], 0)]
    heads, rows = point_table(sweep_findings(made_up_outcome(trials)))
    assert "level" not in heads, "nothing says which are"
    assert [cells[1].text for _, cells in rows][-1] == "–"
    assert rows[-1][0].point == GRID[0]


def test_many_seeds_share_a_column():
    trials = [made_up_trial(GRID[0], seed) for seed in range(MOST_SEED_COLUMNS + 1)]
    trials.append(made_up_trial(GRID[1], 0))
    heads, rows = point_table(sweep_findings(made_up_outcome(trials)))
    assert "each seed's" in heads and "seed 0" not in heads
    column = heads.index("each seed's")
    assert {rows[0][1][column].text.count(","), rows[1][1][column].text.count(",")} == {6, 0}


def test_what_is_used_is_told_with_its_assumption():
    outcome = paper_grid()
    rows = dict(costs(sweep_findings(outcome)))
    hours = sum(each.device_hours for each in outcome.trials)
    assert rows["all trials"].startswith(f"{hours:.2f} core-hours, about ")
    assert rows["all trials"].endswith("kWh (assuming 10 W per core)")
    assert "on average, 3 min" in rows["a trial"] and "core-hours" in rows["a trial"]
    assert rows["tokens"] == f"{sum(e.num_tokens for e in outcome.trials):,}, every epoch counted"
    assert rows["wall time"].startswith("1 h 30 min, up to 2 trials at once; the trials took 2 h")


def test_gpu_hours_and_those_of_failures_are_told():
    trial = replace(made_up_trial(GRID[0], 0), device="cuda", device_hours=2.0)
    lost = replace(without_score(trial, "dead"), seed=1, device="cuda", device_hours=1.5)
    rows = dict(costs(sweep_findings(made_up_outcome([trial, lost], at_once=1))))
    assert rows["all trials"] == "3.50 GPU-hours, about 2.45 kWh (assuming 700 W per GPU)"
    assert rows["of it failed"] == "1.50 hours of the devices"
    assert rows["a trial"].endswith("2 GPU-hours")
    assert "one trial at a time" in rows["wall time"]
    assert dict(costs(sweep_findings(not_begun())))["all trials"] == "nothing yet"


def test_what_went_wrong_is_named():
    failed, missing = troubles(sweep_findings(paper_grid()))
    assert failed[1:] == (
        "batch_size 16, peak_learning_rate 5e-5, epochs 4, seed 1",
        "out of memory: lower --max_tokens from 4096",
    )
    assert missing[2] == "not finished: 2 epochs done"
    assert {why for *_, why in troubles(sweep_findings(not_begun()))} == {"has not begun"}
