"""A sweep without its training: folders, journals, and what MLflow must then have of them."""

from tracked_runs import described, write_steps

from workflows.runs.journal import Journal
from workflows.runs.mlflow_run import open_client
from workflows.runs.sender import verify_exactly_once
from workflows.runs.sweep_tracker import SweepTracker
from workflows.runs.tracker import JOURNAL_NAME


class Sweep:
    """A sweep's driver: folders as they lie in a storage, trials that write their journals."""

    def __init__(self, storage, uri, key="1"):
        self.storage, self.uri, self.key = storage, uri, key
        self.folder = storage / "sweeps" / "sweep"

    def track(self):
        return SweepTracker(
            self.folder,
            self.run(self.folder),
            interval_seconds=0.2,
            system_interval_seconds=0.5,
        )

    def run(self, folder):
        experiment = f"sweep {self.key}"  # of its own, so that runs too many are seen
        key = f"key of {folder.name} {self.key}"
        return described(self.uri, folder, experiment=experiment, run_key=key)

    def trial(self, name):
        return self.storage / "runs" / name

    def begin(self, tracker, name):
        tracker.begin(self.trial(name), self.run(self.trial(name)))

    def write(self, name, steps):
        write_steps(Journal(self.trial(name) / JOURNAL_NAME), steps)

    def runs(self, uri=None):
        """All runs at MLflow by name; fails where a name is there twice."""
        client = open_client(uri or self.uri)
        experiment = client.get_experiment_by_name(f"sweep {self.key}")
        assert experiment is not None
        runs = client.search_runs([experiment.experiment_id])
        by_name = {run.info.run_name: run for run in runs}
        assert len(by_name) == len(runs), [run.info.run_name for run in runs]
        return by_name

    def assert_complete(self, *names, uri=None):
        """Each curve is at MLflow once, below the sweep."""
        runs = self.runs(uri)
        assert runs.keys() == {"sweep", *names}
        for name in names:
            report = verify_exactly_once(self.trial(name))
            assert report.correct and report.num_metrics > 0, report
            assert runs[name].data.tags["mlflow.parentRunId"] == runs["sweep"].info.run_id
        assert "mlflow.parentRunId" not in runs["sweep"].data.tags
        assert verify_exactly_once(self.folder).correct
