"""Features of texts: `python workflows/extract.py --model MODEL --input PATH… --output DIR`.

Killed at any moment, the same command finishes the rest, and no row is lost or there twice.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_core.strict_json import read_json_object
from bert_core.text.shards import INDEX_NAME, write_bytes
from workflows.command import run_command
from workflows.finetuning.data import open_encoder
from workflows.inference.extraction import ExtractSettings
from workflows.inference.text_input import (
    OF_ONE_START,
    TextInput,
    find_input,
    gathered,
    left_out,
    no_texts,
    num_tokens,
    refuse_many_skipped,
)
from workflows.output_folder import (
    absolute_output,
    files_hash,
    is_finished,
    work_folder,
)
from workflows.progress import duration
from workflows.settings import parse_command_line

TEXTS = "features.parquet"
"""What texts an array `features.npy` beside it is of."""


def extract(settings: ExtractSettings) -> Path:
    """Extracts the features, or finishes them, or finds them finished; returns their folder.

    Raises `UserError`, before anything is written, for what the user can mend.
    """
    from bert_core.features.extractor import check_choice  # loads torch
    from workflows.runs.tracker import default_tracking_uri

    start = time.monotonic()
    output = absolute_output(settings.output)
    storage = Path(settings.storage).expanduser()
    encoder = open_encoder(
        settings.model, storage, settings.tracking_uri or default_tracking_uri(storage)
    )
    choice = settings.choice()
    check_choice(choice, encoder.config)
    num_layers = encoder.config.num_hidden_layers
    given = find_input(settings, {"text_column": settings.text_column})
    plan = {
        "settings": settings.model_dump(mode="json", exclude={*OF_ONE_START})
        | settings.resolved(num_layers),
        "encoder": encoder.sha256,
        "files_sha256": files_hash(given.found).hexdigest(),
    }
    if is_finished(output, plan, fresh=settings.fresh):
        print(f"complete already: {output}")
        print("\n".join(describe(read_json_object(output / INDEX_NAME))))
        return output
    # Not at the top: --help and whatever is wrong until here answer before Ray is loaded.
    from workflows.clusters.tasks import connect
    from workflows.inference.extraction import FEATURES, Extraction
    from workflows.inference.text_parts import do_parts, finished_parts

    with work_folder(output, plan) as work:
        (work / FEATURES).mkdir(exist_ok=True)
        connect()
        dtype = settings.numbers(num_layers)
        extraction = Extraction(
            work=work,
            parts=given.parts,
            model=encoder.path.absolute(),
            choice=choice,
            text_column=settings.text_column,
            id_column=settings.id_column,
            output_format=settings.format,
            dtype=dtype,
            skip_bad=settings.skip_bad,
            bfloat16=settings.precision == "bfloat16",
            max_tokens=settings.max_tokens,
            num_workers=settings.num_workers,
            use_gpu=settings.use_gpu,
            threads_per_worker=settings.threads_per_worker,
        )
        done = finished_parts(extraction)
        if done:
            print(f"going on: {len(done):,} of {len(given.parts):,} parts are done", flush=True)
        records = do_parts(extraction, done)
        size = choice.strategy.feature_size(num_layers, encoder.config.hidden_size)
        index = _index(settings, records, given, size, dtype)
        if not index["counts"].get("texts"):
            raise no_texts(settings, index)
        refuse_many_skipped(settings, records, given)
        _finish(output, work, records, index)
    seconds = time.monotonic() - start
    print("\n".join(describe(index)))
    tokens = index["counts"]["tokens"] - num_tokens(done.values())
    print(f"{duration(seconds)}, {tokens / seconds:,.0f} tokens a second")
    written = [output / FEATURES]
    if settings.format == "npy":
        written = [(output / TEXTS).with_suffix(".npy"), output / TEXTS]
    print(f"features: {' and '.join(map(str, written))}")
    return output


def _index(
    settings: ExtractSettings,
    records: Iterable[Mapping[str, Any]],
    given: TextInput,
    size: int,
    dtype: str,
) -> dict[str, Any]:
    """What stands in index.json."""
    weights = [each["layer_weights"] for each in records if "error" not in each]
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


def _finish(output: Path, work: Path, records: list[dict[str, Any]], index: dict[str, Any]) -> None:
    """Moves the parts to their place, all at once, or joins them; the index comes last."""
    from bert_core.features.output import join_parts
    from workflows.inference.extraction import FEATURES, part_path

    paths = [part_path(work, record["name"]) for record in records if "name" in record]
    if index["format"] == "npy" and paths:
        join_parts(paths, output / TEXTS)
    elif not (output / FEATURES).is_dir():  # there when a kill came between this and the index
        (work / FEATURES).replace(output / FEATURES)
    write_bytes(output / INDEX_NAME, json.dumps(index, indent=1, sort_keys=True).encode() + b"\n")


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


def main(arguments: Sequence[str]) -> int:
    """Extracts what the command line says; returns the exit code (see `run_command`)."""

    def action() -> bool:
        extract(parse_command_line(ExtractSettings, arguments))
        return True

    return run_command(action)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
