"""What one start of an ablation writes down; what it does goes through Ray in `test_ablate.py`."""

from dataclasses import replace

import pytest
from ablation_runs import ablation_settings, write_inputs
from made_up_ablations import made_up_sweep

from workflows.ablations.ablation import opened_ablation
from workflows.ablations.run import note_figures
from workflows.runs.journal import read_records
from workflows.runs.storage import open_storage
from workflows.sweeps.run import append_figures


@pytest.fixture
def ablation(tmp_path):
    write_inputs(tmp_path)
    settings = ablation_settings(tmp_path, tmp_path)
    with opened_ablation(settings, open_storage(str(tmp_path))) as ablation:
        yield ablation


def test_an_ablation_keeps_its_run_at_mlflow(ablation, tmp_path):
    first = ablation.tracked_run()
    assert first == ablation.tracked_run() and first.experiment == "ablations"
    assert first.run_name == "ablation" and first.params["study"] == "objective"
    assert first.params["tasks"] == "classification"
    assert first.tags["data.sha256"] == ablation.shards.data_hash
    assert str(tmp_path) not in "".join(first.params.values())


def test_figures_are_noted_once(ablation):
    variants = [each.outcome for each in ablation.variants]
    sweep = made_up_sweep("docs_library", variants, {"mlm": 20}, seeds=2)
    ablation.sweeps["docs_library"] = sweep
    figures = ablation.mean_figures()
    assert figures.keys() == {f"docs_library/{each.name}" for each in variants}
    scores = [each.score for each in sweep.trials if each.point["variant"] == "mlm"]
    assert figures["docs_library/mlm"] == pytest.approx(sum(scores) / 2)
    for _ in range(2):
        note_figures(ablation)
    ablation.sweeps["docs_library"] = replace(sweep, trials=sweep.trials[1:])
    note_figures(ablation)
    records = list(read_records(ablation.folder.path / "journal.jsonl"))
    assert [(each.step, each.metrics) for each in records] == [
        (1, figures), (2, {"docs_library/mlm_nsp": sweep.trials[1].score})
    ]  # fmt: skip


def test_names_of_shares_and_approaches_are_metrics_too(ablation):
    append_figures(ablation, {"conll2003:features/80/10/10": 0.9})
    (record,) = read_records(ablation.folder.path / "journal.jsonl")
    assert record.metrics == {"conll2003:features/80/10/10": 0.9}
