"""The settings of a promotion, of a rollback and of the look at what was before."""

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from workflows.settings import CommandLineSettings, default_storage

MOST_REASON = 1000
"""Characters of a reason: an entry of the history has to fit into a tag of any MLflow (5,000)."""


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


Reason = Annotated[
    str,
    Field(max_length=MOST_REASON, description="why, for the history"),
    AfterValidator(_one_line),
]


class HistorySettings(CommandLineSettings):
    """Shows who moved the alias champion of a registered model, when, why, from where to where.

    Refused promotions stand there too, and those that were killed before they moved it.
    """

    name: str = Field(description="name of the registered model")
    storage: str = Field(
        default_factory=default_storage,
        description="folder of the MLflow store and of fetched models; by default ~/.bertline",
    )
    tracking_uri: str | None = Field(
        default=None, description="MLflow tracking URI; by default the store under the storage"
    )


class RollbackSettings(HistorySettings):
    """Gives the alias champion back to the version that had it before, by the history.

    No gate: that version has been champion. Done again, it goes one further back.
    """

    reason: Reason = ""


class PromoteSettings(HistorySettings):
    """Moves the alias champion of a registered model to a version that passes a gate.

    Both versions are measured on the same data, latency and memory on this machine; a table says
    what was asked and found. A drop is judged by the 95 % interval of the paired difference: the
    whole of it has to lie above what may be lost, so that too few examples refuse and never let
    pass. Without data the metrics recorded in training count, if both are of the same data.

    Without --gate: with --data, no drop of the task's criterion beyond 0.02;
    without, none at all in what was recorded. The first champion needs nothing then.

    Exit codes: 0 it is champion, 2 something is wrong with the input, or another promotion of this
    model is under way, 3 the gate refused. Also: promote.py rollback --name NAME gives the alias
    back, promote.py history --name NAME shows who moved it, when and why.
    """

    version: str = Field(description="number of the version, or an alias of it such as challenger")
    gate: Path | None = Field(
        default=None, description="YAML file of what the version must meet, see docs/promotion.md"
    )
    data: str | None = Field(
        default=None,
        description="held-out data in place of the gate's: file of examples, folder with the files"
        " of the splits, or hf://OWNER/NAME[:CONFIG]",
    )
    reason: Reason = ""
    num_resamples: int = Field(
        default=1000, ge=100, description="bootstrap samples behind the 95 % interval of a drop"
    )
    seed: int = Field(default=0, ge=0, description="decides the bootstrap samples and the checks")
    max_tokens: int = Field(default=4096, ge=8, description="tokens of one forward pass, at most")
