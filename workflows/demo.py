"""Shows the line on this machine: `python workflows/demo.py --help`; `make demo` runs it.

Nothing goes in. A small encoder is pre-trained on documentation that is here, then fine-tuned on
three tasks made of it, each beside the same head on the weights that the pre-training began with.
In the end what was trained is served and asked. The same command goes on after any death; a
finished demo prints its table, and serves.
"""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from workflows.command import run_command
from workflows.demonstration.questions import FILE as QUESTIONS
from workflows.demonstration.questions import read_questions
from workflows.demonstration.serving import Serve, serve_demo
from workflows.model_location import locate_model
from workflows.pretrain import pretrain
from workflows.pretraining.settings import PretrainSettings
from workflows.runs.folder import RunFolder
from workflows.runs.storage import Storage, open_storage
from workflows.runs.tracker import default_tracking_uri
from workflows.settings import (
    CommandLineSettings,
    default_storage,
    parse_command_line,
    settings_hash,
)

# Imports within functions load torch, which takes seconds: --help is answered before.


class DemoSettings(CommandLineSettings):
    """Pre-trains a small encoder and shows what that is worth on three tasks.

    Pre-training is the quickstart of workflows/pretrain.py.
    """

    storage: str = Field(
        default_factory=default_storage,
        description="folder of runs and the MLflow store, by default ~/.bertline; or an address:"
        " see workflows/pretrain.py",
    )
    fresh: bool = Field(default=False, description="set earlier runs aside and start over")
    model: str | None = Field(
        default=None,
        description="an encoder to take instead of pre-training one: a model folder,"
        " models:/NAME@ALIAS, or the name of a run",
    )
    data: str = Field(default="docs://", description="documentation that the tasks are made of")
    max_examples: int = Field(default=2500, ge=200, description="examples of each task to learn")
    serve: Serve = Field(
        default="auto",
        description="whether to serve and ask what was trained: yes, until Ctrl-C; auto, until"
        " Ctrl-C on a terminal, else until all is asked; no, the table is the end",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code (see `run_command`)."""
    given = sys.argv[1:] if arguments is None else arguments
    return run_command(lambda: demo(parse_command_line(DemoSettings, given)))


def demo(settings: DemoSettings) -> bool:
    """Whatever is left of the demo; False when it was told to stop.

    Raises `UserError` for what the user can mend.
    """
    encoder = pretrained_encoder(settings)
    if encoder is None:
        return False
    name, path = encoder
    storage = open_storage(settings.storage)
    folder = demo_folder(settings, storage, name)
    if settings.fresh:
        shutil.rmtree(folder, ignore_errors=True)
    table = folder / "table.txt"
    if not (table.exists() and (folder / QUESTIONS).exists()):
        from workflows.demonstration.tasks import learn_and_compare

        if not learn_and_compare(settings, storage, path, folder):
            return False
    print(table.read_text(encoding="utf-8"), flush=True)
    questions = read_questions(folder)
    runs = {name: storage.folder / "runs" / run for name, run in questions.runs.items()}
    models = {"encoder": path} | {name: RunFolder(run).model for name, run in runs.items()}
    serve_demo(models, questions, folder, settings.serve)
    return True


def demo_folder(settings: DemoSettings, storage: Storage, encoder: str) -> Path:
    """Where table, picture, report and questions of an encoder lie."""
    values = settings.model_dump(mode="json", exclude={"storage", "fresh", "model", "serve"})
    return storage.folder / "demo" / f"{encoder}-{settings_hash(values)}"


def pretrained_encoder(settings: DemoSettings) -> tuple[str, Path] | None:
    """A name for the encoder, and its model folder; None when its training was told to stop."""
    if settings.model is not None:
        storage = open_storage(settings.storage).folder
        path = locate_model(settings.model, storage, default_tracking_uri(storage))
        return path.parent.name if path.name == "model" else path.name, path
    options = ["--storage", settings.storage, *(["--fresh"] if settings.fresh else [])]
    run = pretrain(parse_command_line(PretrainSettings, options))
    return None if run is None else (run.name, run.model)


if __name__ == "__main__":
    sys.exit(main())
