"""What a user types after --model goes in; a local model folder comes out."""

from pathlib import Path

from bert_core.errors import UserError
from serving.registry import fetch_model


def locate_model(model: str, storage: Path, tracking_uri: str) -> Path:
    """The folder of a model: its path, `models:/NAME@ALIAS`, or a run of the storage by its name.

    Raises `UserError` where there is none.
    """
    if model.startswith("models:/"):
        return fetch_model(model, tracking_uri, storage / "models").folder
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    of_run = storage / "runs" / model / "model"
    if "/" in model or not of_run.is_dir():
        raise UserError(
            "no such model",
            model,
            "give a model folder, models:/NAME@ALIAS, or the name of a finished run",
        )
    return of_run


def model_name(folder: Path) -> str:
    """What people call a model: its folder, or the run that it is of."""
    resolved = folder.resolve()
    return resolved.parent.name if resolved.name == "model" else resolved.name
