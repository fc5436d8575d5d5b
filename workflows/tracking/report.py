"""Whether MLflow holds a run's metrics exactly once.

In: a run folder and the MLflow store it was sent to. Out: what is missing, repeated or different.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from bert_core.errors import UserError
from workflows.tracking.journal import read_records
from workflows.tracking.mlflow_run import RunSender, open_client
from workflows.tracking.tracker import JOURNAL_NAME


@dataclass(frozen=True)
class TrackingReport:
    """How MLflow's history compares with the journal; entries are (step, name)."""

    num_metrics: int
    missing: list[tuple[int, str]]
    repeated: list[tuple[int, str]]
    unknown: list[tuple[int, str]]  # at MLflow only
    different: list[tuple[int, str]]  # once on both sides, but with another value

    @property
    def correct(self) -> bool:
        """Whether each (step, name) of the journal stands in MLflow exactly once, and no other."""
        return not (self.missing or self.repeated or self.unknown or self.different)


def verify_exactly_once(run_folder: Path) -> TrackingReport:
    """Compares MLflow's whole history of a run with its journal, system metrics left aside."""
    sender = RunSender(run_folder)
    if "run_id" not in sender.state:
        raise UserError("never sent to MLflow", str(run_folder), "send it first")
    client = open_client(sender.run.tracking_uri)
    journal = {
        (record.step, name): value
        for record in read_records(run_folder / JOURNAL_NAME)
        for name, value in record.metrics.items()
    }
    names = {name for _, name in journal} | set(client.get_run(sender.run_id).data.metrics)
    times: Counter[tuple[int, str]] = Counter()
    values: dict[tuple[int, str], float] = {}
    for name in sorted(name for name in names if not name.startswith("system/")):
        for metric in client.get_metric_history(sender.run_id, name):
            times[metric.step, name] += 1
            values[metric.step, name] = metric.value
    return TrackingReport(
        num_metrics=len(journal),
        missing=sorted(journal.keys() - times.keys()),
        repeated=sorted(entry for entry, number in times.items() if number > 1),
        unknown=sorted(times.keys() - journal.keys()),
        different=sorted(
            entry
            for entry in journal.keys() & values.keys()
            if repr(journal[entry]) != repr(values[entry])
        ),
    )
