"""What a model folder says of its origin: the tags of its run, its id at MLflow, its figures."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from bert_core.lineage import Lineage
from serving.registry import lineage_of_tags
from workflows.tracking.tracker import STATE_NAME, read_json
from workflows.versions.registration import lineage_tags

if TYPE_CHECKING:
    from workflows.training.job import TrainingJob

MEASURED = ("heldout/", "dev/")
"""How the names of the figures begin that are measured on what was not trained on."""


def lineage_of(job: "TrainingJob", figures: Mapping[str, float]) -> Lineage:
    """The lineage of a run that is about to write its model folder.

    `run_id` is None where MLflow has not answered by then.
    """
    _, described, _ = job.described()
    measured = {
        name: value
        for name, value in figures.items()
        if name.startswith(MEASURED) and math.isfinite(value)
    }
    return lineage_of_tags(described | lineage_tags(job.folder)).model_copy(
        update={
            "run": job.folder.name,
            "run_id": read_json(job.folder.path / STATE_NAME).get("run_id"),
            "metrics": measured,
        }
    )
