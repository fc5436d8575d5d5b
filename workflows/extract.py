"""Features of texts: `python workflows/extract.py --model MODEL --input PATH… --output DIR`.

Killed at any moment, the same command finishes the rest, and no row is lost or there twice.
"""

import json
import sys
import time
from collections import Counter, deque
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from bert_core.errors import UserError
from bert_core.features.extractor import check_choice
from bert_core.features.output import join_parts
from bert_core.text.reading.sources import (
    CorpusError,
    CorpusPart,
    UnreadableFileError,
    find_parts,
)
from bert_core.text.reading.texts import TextPart, divide, read_texts
from bert_core.text.shard_index import INDEX_NAME, write_bytes
from workflows.command import run_command
from workflows.extract_settings import ExtractSettings
from workflows.finetuning_data import open_encoder
from workflows.output_folder import (
    absolute_output,
    files_hash,
    is_finished,
    work_folder,
)
from workflows.progress import duration
from workflows.settings import parse_command_line, several_values

_NOT_IN_THE_PLAN = {
    *("output", "fresh", "num_workers", "use_gpu", "threads_per_worker", "max_tokens"),
    *("skip_bad", "storage", "tracking_uri", "model"),
}
TEXTS = "features.parquet"
"""What texts an array `features.npy` beside it is of."""


def extract(settings: ExtractSettings) -> Path:
    """Extracts the features, or finishes them, or finds them finished; returns their folder.

    Raises `UserError`, before anything is written, for what the user can mend.
    """
    from workflows.tracker import default_tracking_uri

    start = time.monotonic()
    output = absolute_output(settings.output)
    storage = Path(settings.storage).expanduser()
    encoder = open_encoder(
        settings.model, storage, settings.tracking_uri or default_tracking_uri(storage)
    )
    choice = settings.choice()
    check_choice(choice, encoder.config)
    num_layers = encoder.config.num_hidden_layers
    skipped: Counter[str] = Counter()
    unreadable: list[UnreadableFileError] = []
    found = _find(settings, skipped, unreadable)
    parts = list(divide(found, settings.part_bytes))
    _try_a_part(parts, settings)
    plan = {
        "settings": settings.model_dump(mode="json", exclude=_NOT_IN_THE_PLAN)
        | settings.resolved(num_layers),
        "encoder": encoder.sha256,
        "files_sha256": files_hash(found).hexdigest(),
    }
    if is_finished(output, plan, fresh=settings.fresh):
        print(f"complete already: {output}")
        print("\n".join(describe(json.loads((output / INDEX_NAME).read_bytes()))))
        return output
    # Not at the top: --help and whatever is wrong until here answer before Ray is loaded.
    from workflows.extraction import FEATURES, Extraction, extract_parts, finished_parts
    from workflows.ray_tasks import connect

    with work_folder(output, plan) as work:
        (work / FEATURES).mkdir(exist_ok=True)
        connect()
        dtype = settings.numbers(num_layers)
        extraction = Extraction(
            work=work,
            parts=parts,
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
            print(f"going on: {len(done):,} of {len(parts):,} parts are done", flush=True)
        records = extract_parts(extraction, done)
        size = choice.strategy.feature_size(num_layers, encoder.config.hidden_size)
        index = _index(settings, records, unreadable, skipped, size, dtype)
        if not index["counts"].get("texts"):
            raise _nothing_to_extract(settings, index)
        _finish(output, work, records, index)
    seconds = time.monotonic() - start
    print("\n".join(describe(index)))
    tokens = index["counts"]["tokens"] - sum(_tokens_of(record) for record in done.values())
    print(f"{duration(seconds)}, {tokens / seconds:,.0f} tokens a second")
    written = [output / FEATURES]
    if settings.format == "npy":
        written = [(output / TEXTS).with_suffix(".npy"), output / TEXTS]
    print(f"features: {' and '.join(map(str, written))}")
    return output


def _find(
    settings: ExtractSettings, skipped: Counter[str], unreadable: list[UnreadableFileError]
) -> list[CorpusPart]:
    """The parts of the input; raises `CorpusError` for what is not made of texts.

    Files that cannot be read are put into `unreadable`, where they are to be skipped.
    """
    skip = settings.skip_bad
    try:
        found = list(
            find_parts(
                settings.input,
                settings.text_column,
                skipped,
                unreadable=unreadable if skip else None,
            )
        )
    except UnreadableFileError as error:
        from workflows.extraction import OR_SKIP

        raise CorpusError(error.what, error.where, f"{error.remedy}, {OR_SKIP}") from error
    for part in found:
        if part.kind in ("documentation", "hugging_face"):
            raise CorpusError("no file of texts", part.typed, "give .txt, .jsonl or .parquet files")
    return found


def _try_a_part(parts: Sequence[TextPart], settings: ExtractSettings) -> None:
    """Reads the first part, so that a column that is not there is said before anything starts."""
    for part in parts[:1]:
        columns = {"text_column": settings.text_column, "id_column": settings.id_column}
        try:
            texts = read_texts(part, Counter(), **columns)
            deque(islice(texts, 1) if part.part.compression else texts, maxlen=0)
        except UnreadableFileError:
            continue  # said, or left out, in its turn


def _nothing_to_extract(settings: ExtractSettings, index: dict[str, Any]) -> UserError:
    reasons = [*_dropped(index), *(f"left out: {each}" for each in index["bad_files"])]
    what = f"no texts ({'; '.join(reasons) or 'the input is empty'})"
    return UserError(what, f"--input {' '.join(settings.input)}", "give files with texts")


def _tokens_of(record: dict[str, Any]) -> int:
    return record.get("counts", {}).get("tokens", 0)


def _index(
    settings: ExtractSettings,
    records: list[dict[str, Any]],
    unreadable: Sequence[UnreadableFileError],
    skipped: Counter[str],
    size: int,
    dtype: str,
) -> dict[str, Any]:
    """What stands in index.json."""
    counts: Counter[str] = Counter()
    dropped = Counter(skipped)
    bad = [str(error) for error in unreadable]
    parts = []
    weights = None
    for record in records:
        if "error" in record:
            bad.append("{}: {} ({})".format(*record["error"]))
            continue
        weights = record["layer_weights"]
        counts += Counter(record["counts"])
        dropped += Counter(record["dropped"])
        parts.append({"name": record["name"], **record["counts"]})
    return {
        "feature_size": size,
        "dtype": dtype,
        "format": settings.format,
        "unit": settings.unit,
        "strategy": settings.chosen_strategy().name,
        "layer_weights": weights,
        "model": Path(settings.model).name,
        "counts": dict(counts),
        "dropped": dict(+dropped),
        "bad_files": sorted(set(bad)),
        "parts": parts,
    }


def _finish(output: Path, work: Path, records: list[dict[str, Any]], index: dict[str, Any]) -> None:
    """Moves the parts to their place, all at once, or joins them; the index comes last."""
    from workflows.extraction import FEATURES, part_path

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
    lines.append(f"dropped: {', '.join(_dropped(index)) or 'nothing'}")
    lines += [f"left out: {each}" for each in index["bad_files"]]
    return lines


def _dropped(index: dict[str, Any]) -> list[str]:
    """What was dropped, and how often."""
    counted = sorted(index["dropped"].items())
    return [f"{number:,} {name.replace('_', ' ')}" for name, number in counted if number]


def main(arguments: Sequence[str]) -> int:
    """Extracts what the command line says; returns the exit code (see `run_command`)."""

    def action() -> bool:
        extract(parse_command_line(ExtractSettings, several_values(arguments, "--input")))
        return True

    return run_command(action)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
