"""Features of texts: `python workflows/extract.py --model MODEL --input PATH… --output DIR`.

Killed at any moment, the same command finishes the rest, and no row is lost or there twice.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from workflows.command import command
from workflows.inference.extraction import Extraction, ExtractSettings, part_path
from workflows.inference.text_parts import (
    OF_ONE_START,
    TextInput,
    TextJob,
    find_input,
    gathered,
    left_out,
    move_parts,
    run_job,
)
from workflows.model_location import open_encoder
from workflows.output_folder import files_hash
from workflows.settings import parse_command_line

TEXTS = "features.parquet"
"""What texts an array `features.npy` beside it is of."""


def extract(settings: ExtractSettings) -> Path:
    """Extracts the features, or finishes them, or finds them finished; returns their folder.

    Raises `UserError`, before anything is written, for input that the user can fix.
    """
    from bert_core.features.extractor import check_choice  # loads torch

    encoder = open_encoder(settings.model, settings.storage_folder, settings.mlflow_uri)
    choice = settings.choice(encoder.path, encoder.config)
    check_choice(choice, encoder.config)
    num_layers = encoder.config.num_hidden_layers
    given = find_input(settings, {"text_column": settings.text_column})
    plan = {
        "settings": settings.model_dump(mode="json", exclude={*OF_ONE_START})
        | settings.resolved(choice, num_layers),
        "encoder": encoder.sha256,
        "files_sha256": files_hash(given.found).hexdigest(),
    }
    dtype = settings.numbers(num_layers)
    size = choice.strategy.feature_size(num_layers, encoder.config.hidden_size)
    return run_job(
        settings,
        plan,
        given,
        lambda work: Extraction(
            work=work,
            parts=given.parts,
            model=encoder.path.absolute(),
            choice=choice,
            text_column=settings.text_column,
            output_format=settings.format,
            dtype=dtype,
            **settings.of_job(),
        ),
        index_of=lambda records: _index(settings, records, given, size, dtype),
        describe=describe,
        publish=_publish,
    )


def _index(
    settings: ExtractSettings,
    records: Iterable[Mapping[str, Any]],
    given: TextInput,
    size: int,
    dtype: str,
) -> dict[str, Any]:
    weights = [record["layer_weights"] for record in records if "error" not in record]
    return {
        "feature_size": size,
        "dtype": dtype,
        "format": settings.format,
        "unit": settings.unit,
        "strategy": settings.chosen_strategy().name,
        "layer_weights": weights[-1] if weights else None,
        "model": Path(settings.model).name,
        **gathered(records, given),
    }


def _publish(job: TextJob, output: Path, index: Mapping[str, Any]) -> list[Path]:
    """Moves the parts to the output, or joins them to an array and a file that says whose."""
    if index["format"] != "npy":
        return move_parts(job, output, index)
    from bert_core.features.output import join_parts

    join_parts([part_path(job.work, part["name"]) for part in index["parts"]], output / TEXTS)
    return [(output / TEXTS).with_suffix(".npy"), output / TEXTS]


def describe(index: dict[str, Any]) -> list[str]:
    """The lines of the summary: what there is, and all that was dropped."""
    counts = Counter(index["counts"])
    windows = counts["rows"] - counts["texts"]
    lines = [
        f"{counts['texts']:,} texts of {counts['tokens']:,} tokens, in {counts['rows']:,} rows"
        f" ({max(windows, 0):,} more windows of long texts; nothing is cut)",
        f"{counts['units']:,} vectors of {index['feature_size']:,} numbers ({index['dtype']}), one"
        f" for each {index['unit']}: {index['strategy']} of {index['model']}",
    ]
    if index["layer_weights"] is not None:
        weights = ", ".join(f"{each:.3g}" for each in index["layer_weights"])
        lines.append(f"weights of the layers: {weights}")
    if index["unit"] == "word" and counts["words_without_tokens"]:
        lines.append(f"{counts['words_without_tokens']:,} words without tokens, which have zeros")
    return lines + left_out(index)


main = command(lambda given: bool(extract(parse_command_line(ExtractSettings, given))))


if __name__ == "__main__":
    sys.exit(main())
