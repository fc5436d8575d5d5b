"""The command of an audit on a real cluster: killed, repeated, the same in the end."""

import json
from dataclasses import dataclass
from typing import ClassVar

import pytest
from audit_runs import audit_arguments, write_flipped
from mlflow import MlflowClient
from pretraining_runs import REPOSITORY, Run

FILES = ("suspects.csv", "suspects.jsonl", "ranking.jsonl", "report.json", "report.md")


@dataclass
class AuditCommand(Run):
    """An audit over what lies in `shards`, as a process."""

    program: ClassVar = REPOSITORY / "workflows" / "audit.py"

    @property
    def folder(self):
        return self.storage / "audits" / self.name

    def arguments(self):
        """The command line after the program's name."""
        return audit_arguments(self.shards, name=self.name, storage=self.storage, **self.settings)


def artifacts(run):
    return {name: (run.folder / "artifacts" / name).read_bytes() for name in FILES}


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(900)
def test_a_killed_audit_ends_as_one_that_was_not(tmp_path, ray_cluster):
    write_flipped(tmp_path / "data")
    environment = {"RAY_ADDRESS": ray_cluster}
    whole = AuditCommand(tmp_path / "whole", "audit", tmp_path, 0, {}, environment)
    assert "retrained    accuracy" in whole.finish()

    killed = AuditCommand(tmp_path / "killed", "audit", tmp_path, 0, {"at_once": 1}, environment)
    driver = killed.start()
    driver.until(lambda: len(list(killed.storage.glob("runs/*/trial.json"))) > 1, 300)
    driver.kill()
    driver = killed.start()  # in the retraining, if the machine is not too fast
    driver.until(lambda: list(killed.folder.glob("artifacts/suspects.csv")), 300)
    driver.kill()
    printed = killed.finish()
    assert artifacts(killed) == artifacts(whole)
    assert "runs     3 folds, 0 left" in printed and "runs     3 folds, 0 left" in killed.finish()
    report = json.loads((killed.folder / "artifacts" / "report.json").read_text())
    assert report["retrained"]["num_train"][0] == 120

    client = MlflowClient(f"sqlite:///{killed.storage / 'mlflow' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("audits")
    runs = client.search_runs([experiment.experiment_id])
    (parent,) = (run for run in runs if "mlflow.parentRunId" not in run.data.tags)
    assert len(runs) == 6 and {run.info.status for run in runs} == {"FINISHED"}
    assert parent.data.metrics["suspects"] == report["num_suspects"]
    sent = {file.path for file in client.list_artifacts(parent.info.run_id)}
    assert {"report.html", "suspects.csv", "noise.svg"} <= sent
