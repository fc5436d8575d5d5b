"""The folder of an exported model: the graph, its tokenizer, config.json, and how to call it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bert_core.disk import write_sorted_json
from bert_core.errors import UserError
from bert_core.model_folder import CONFIG, folder_to_publish
from bert_core.portable import INPUTS, PaddedModel, load_padded_model
from bert_core.strict_files import read_json_object
from bert_core.tokenizer import load_tokenizer, write_tokenizer
from workflows.model_location import model_name
from workflows.portable.card import card_of
from workflows.portable.graphs import FILES, check_size, open_graph, size_of, to_int8, write_graph
from workflows.portable.parity import TOLERANCE, reference
from workflows.portable.settings import Format

EXPORT_FIELD = "bertline_export"
"""Where config.json of an exported folder says what its graph takes and gives."""


def write_portable(
    folder: Path,
    output: Path,
    format: Format,  # noqa: A002 - the option's name
    *,
    int8: bool,
) -> Iterator[str]:
    """Writes a model folder as a graph, atomically; yields a line about each step.

    Raises `UserError` for a folder of a kind that cannot be exported, before work is done, and
    where the graph's outputs differ from the model's by more than `TOLERANCE` in float32.
    """
    model = load_padded_model(folder)
    check_size(model)
    expected = reference(folder, model)
    with folder_to_publish(output) as written:
        write_graph(model, format, written)
        size = size_of(format, written)
        yield f"graph    {FILES[format][0]}, outputs {', '.join(model.output_names)}"
        parity = expected.compare(open_graph(format, written), model)
        yield f"float32  {parity.sentence}"
        if not parity.largest <= TOLERANCE:  # so that NaN is not
            raise UserError(
                f"the graph's outputs differ by {parity.largest:.1e}, more than {TOLERANCE:g}",
                str(folder),
                "try the other --format, or serve the folder with python -m serving",
            )
        sizes = f"{size / 1e6:,.1f} MB"
        if int8:
            to_int8(format, written)
            parity = expected.compare(open_graph(format, written), model)
            yield f"int8     {parity.sentence}"
            sizes += f" in float32, {size_of(format, written) / 1e6:,.1f} MB in int8"
        yield f"size     {sizes}"
        _write_rest(folder, written, model, format, int8=int8)
        card = card_of(model_name(folder), model, format, expected.first, parity, int8=int8)
        (written / "README.md").write_text(card, encoding="utf-8")


def _write_rest(
    folder: Path, written: Path, model: PaddedModel, format: Format, *, int8: bool
) -> None:  # noqa: A002
    write_tokenizer(written, load_tokenizer(folder), model.model.config)
    described: dict[str, Any] = {
        "format": format,
        "precision": "int8" if int8 else "float32",
        "inputs": list(INPUTS),
        "outputs": list(model.output_names),
        "max_length": model.max_length,
    }
    if model.answer in ("vector", "sparse_vector"):
        pooling = model.pooling
        described["prompts"] = dict(pooling.prompts)
        described["default_prompt_name"] = pooling.default_prompt
        if model.answer == "vector":
            described["pooling"] = pooling.pooling
    config = read_json_object(folder / CONFIG) | {EXPORT_FIELD: described}
    write_sorted_json(written / CONFIG, config)
