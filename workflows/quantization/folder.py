"""A model folder in float32 and what int8 loses go in; the folder to compute in int8 comes out."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_core.errors import UserError
from bert_core.example import EXAMPLE, read_example
from bert_core.example_answers import answered_by
from bert_core.model_folder import CHECKSUMS, CONFIG, folder_to_publish
from bert_core.quantization import PRECISION_FIELD
from bert_core.strict_json import read_json_object
from workflows.quantization.table import QuantizationLoss
from workflows.tracking.tracker import without_machine_paths

CARD = "README.md"
_TITLE = "## In int8"
_BEFORE = "## How to load"


def write_quantized(source: Path, output: Path, loss: QuantizationLoss) -> None:
    """Writes a copy of a model folder that is computed in int8 and says so, whole or not at all.

    The weights stay those of float32, from which int8 is made whenever the folder is opened: so
    `transformers` reads it too. A model's example is answered anew, in int8. Raises `UserError`
    where there is something already.
    """
    if output.exists():
        raise UserError("the output is there already", str(output), "give a new folder")
    with folder_to_publish(output.absolute()) as written:
        shutil.copytree(source, written, ignore=shutil.ignore_patterns(".*"), dirs_exist_ok=True)
        config = read_json_object(source / CONFIG) | {PRECISION_FIELD: "int8"}
        _replace(written / CONFIG, _json(config))
        card = source / CARD
        title = f"# {source.resolve().name}\n"
        text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else title
        _replace(written / CARD, with_loss(text, loss))
        (written / CHECKSUMS).unlink(missing_ok=True)  # those of the source
        example = read_example(source)
        if example is not None:
            found = answered_by(written, example)
            _replace(written / EXAMPLE, _json(found.model_dump(mode="json")))


def with_loss(card: str, loss: QuantizationLoss) -> str:
    """A model card with what int8 loses in it, before it says how the model is loaded."""
    section = f"{_TITLE}\n\n{_EXPLANATION}\n\n{without_machine_paths(loss.text)}\n"
    before, title, after = card.partition(f"\n{_BEFORE}\n")
    if not title:
        return f"{card.rstrip()}\n\n{section}"
    return f"{before.rstrip()}\n\n{section}{title}{after}"


def _json(values: Mapping[str, Any]) -> str:
    return json.dumps(values, indent=2, sort_keys=True) + "\n"


def _replace(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)  # a copy may be read-only, as its source is
    path.write_text(text, encoding="utf-8")


_EXPLANATION = (
    "Bertline computes the encoder's linear maps of this folder in whole numbers of 8 bits, on the"
    " CPU. The weights in it are those of float32, and with `transformers` so is what is computed."
)
