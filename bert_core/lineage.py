"""The origin of a model, in a machine-readable file of its folder."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from bert_core.errors import UserError
from bert_core.strict_files import read_bounded

LINEAGE = "lineage.json"


class Lineage(BaseModel):
    """Records the origin of a model; unknown parts are None or empty.

    `run` is the run's name and `run_id` its id at MLflow, which a run that MLflow did not answer
    has not yet. `data_sha256` is that of the training data as the run read it, `git_dirty` whether
    the code was changed since `git_commit`. Nothing here is a time or a path.
    """

    model_config = ConfigDict(frozen=True)

    run: str | None = None
    run_id: str | None = None
    data_sha256: str | None = None
    git_commit: str | None = None
    git_dirty: bool | None = None
    metrics: dict[str, float] = {}

    def completed(self, other: "Lineage") -> "Lineage":
        """Returns this lineage, with missing parts taken from the other."""
        return other.model_copy(update=self.model_dump(exclude_defaults=True))


def read_lineage(folder: Path) -> Lineage | None:
    """Reads the origin of a model from its folder; None if it is not recorded.

    Another program's file of that name says nothing either: a model is not refused for it.
    """
    try:
        return Lineage.model_validate_json(read_bounded(folder / LINEAGE))
    except (UserError, ValidationError):
        return None
