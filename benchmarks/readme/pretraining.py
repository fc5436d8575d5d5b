"""The README's blocks on the speed of pre-training, beside transformers', on CPUs and on GPUs."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.readme.parts import RESULTS, Results, link, read_results, table
from bert_core.config import SIZES

GPU = "pretraining-cuda-"

_UNMEASURED = (
    "Still to be measured: everything on a GPU; the code for it is here and has not run on one "
    "yet:\n"
    "`python -m benchmarks.pretraining --device cuda --preset base --sequence_length 512 "
    f"--lengths natural --json {RESULTS}/{GPU}base-512-natural.json`;\n"
    "`--ablation` in place of the peers tells what each technique is worth.\n"
)


def pretraining_block(root: Path) -> str:
    """A table of steps on the CPU."""
    names = ("pretraining-cpu-tiny", "pretraining-cpu-mini", "pretraining-cpu-mini-8192")
    header = ["model", "step", "ours, tokens/s", "transformers, tokens/s", "ours is", ""]
    found = {name: read_results(root, name) for name in names}
    return _tables(header, {name: _row(name, found[name]) for name in names}, found, right=(2, 3))


def pretraining_gpu_block(root: Path) -> str:
    """The same on GPUs with utilisation and memory, and what techniques are worth there."""
    names = sorted(path.stem for path in (root / RESULTS).glob(f"{GPU}*.json"))
    found = {name: read_results(root, name) for name in names}
    timed = {name: result for name, result in found.items() if _timed(result)}
    if not timed:
        return _UNMEASURED
    compared = {name: each for name, each in timed.items() if "ablation" not in each}
    header = ["model", "step", "ours, real tokens/s", "of the matrix product, data sheet", "GB"]
    header += ["transformers, real tokens/s", "GB", "ours is", ""]
    rows = {name: _gpu_row(name, result) for name, result in compared.items()}
    parts = [_tables(header, rows, compared, right=(2, 4, 5, 6))] if rows else []
    parts += [_recipe(result) for result in compared.values() if _with_dropout(result)]
    parts += [_ablation(name, each) for name, each in timed.items() if "ablation" in each]
    return "\n".join(parts)


def _timed(result: Results) -> dict[str, Results]:
    """The arms that have figures: a run that was killed may have left some that have none."""
    arms = result.get("arms", {})
    return {name: arm for name, arm in arms.items() if "tokens_per_second" in arm}


def fastest(result: Results, *, ours: bool) -> tuple[str, Results]:
    """The arm of ours, or of the peers, with the most tokens a second, by its name."""
    arms = [(name, arm) for name, arm in _timed(result).items() if ("ratio" not in arm) == ours]
    return max(arms, key=lambda named: named[1]["tokens_per_second"])


def _tables(
    header: list[str],
    rows: dict[str, list[str]],
    results: dict[str, Results],
    right: Sequence[int],
) -> str:
    """A table for each set-up, for figures of two machines do not stand side by side."""
    setups: dict[str, list[list[str]]] = {}
    for name, row in rows.items():
        setups.setdefault(_setup(results[name]), []).append(row)
    return "\n".join(
        table(header, each, right=right) + f"\n{setup}.\n" for setup, each in setups.items()
    )


def _row(name: str, result: Results) -> list[str]:
    ours, theirs = fastest(result, ours=True), fastest(result, ours=False)
    return [
        _model(result),
        _step(result),
        _rate(*ours),
        _rate(*theirs),
        f"{theirs[1]['ratio']:.1f} times as fast",
        link(name),
    ]


def _gpu_row(name: str, result: Results) -> list[str]:
    ours = fastest(result, ours=True)
    peers = [arm for arm in _timed(result).values() if "ratio" in arm]
    cells = [_model(result), _step(result), _rate(*ours), _utilisation(ours[1]), _memory(ours[1])]
    if peers:
        theirs = fastest(result, ours=False)
        ratio = f"{theirs[1]['ratio']:.2f} times as fast"
        cells += [_rate(*theirs), _memory(theirs[1]), ratio]
    else:
        cells += ["not measured", "", ""]
    return [*cells, "; ".join([link(name), *_notes(result)])]


def _notes(result: Results) -> list[str]:
    """What a reader must know of a run that was not whole, or not quiet."""
    notes = ["unfinished"] if result.get("unfinished") else []
    if left_out := result.get("left_out"):
        notes.append(f"left out: {', '.join(left_out)}")
    if failed := result.get("failed"):
        notes.append(f"failed: {', '.join(failed)}")
    arms = _timed(result) | result.get("ablation", {})
    loose = [
        f"{name} {arm['spread_of_rounds']:.0%}" for name, arm in arms.items() if not arm["steady"]
    ]
    return [*notes, *([f"rounds differ: {', '.join(loose)}"] if loose else [])]


def _with_dropout(result: Results) -> dict[str, Results]:
    """The arms of the paper's recipe."""
    return {name: arm for name, arm in _timed(result).items() if "attention dropout" in name}


def _recipe(result: Results) -> str:
    said = ", ".join(
        f"{name.partition(',')[0]} {arm['tokens_per_second']:,.0f}"
        for name, arm in _with_dropout(result).items()
    )
    return (
        f"With attention dropout 0.1, as in the paper, which needs padded rows: {_model(result)}, "
        f"{_step(result)}: {said} real tokens/s.\n"
    )


def _ablation(name: str, result: Results) -> str:
    rows = [
        [row["without"], f"{row['tokens_per_second']:,.0f}", f"{row['ratio']:.2f} times as fast"]
        for row in result["ablation"].values()
    ]
    whole = next(iter(_timed(result).values()))["tokens_per_second"]
    notes = "; ".join([link(name), *_notes(result)])
    intro = (
        f"What one technique is worth where the others stay: {_model(result)}, {_step(result)}, "
        f"{whole:,.0f} real tokens/s with all of them ({notes}).\n"
    )
    header = ["without", "real tokens/s", "with it"]
    return f"{intro}\n{table(header, rows, right=(1,))}\n{_setup(result)}.\n"


def _model(result: Results) -> str:
    config = SIZES[result["settings"]["preset"]]
    size = f"{config.num_hidden_layers} layers, {config.hidden_size} wide"
    return f"{size}, {result['settings']['vocab']:,} words"


def _step(result: Results) -> str:
    settings = result["settings"]
    up_to = "up to " if settings["lengths"] == "natural" else ""
    rows = result.get("rows_per_step", settings["batch"])
    return f"{rows:,} rows of {up_to}{settings['sequence_length']}"


def _utilisation(arm: Results) -> str:
    sheet = arm["mfu_of_data_sheet"]
    return f"{arm['mfu']:.0%}" + ("" if sheet is None else f", {sheet:.0%}")


def _memory(arm: Results) -> str:
    return "" if arm["peak_bytes"] is None else f"{arm['peak_bytes'] / 1e9:.0f}"


def _setup(result: Results) -> str:
    settings, around = result["settings"], result["surroundings"]
    precision = "bfloat16" if settings["device"] == "cuda" else "float32"
    return (
        f"On {around['device']} ({around['threads']} threads) in {precision}, dropout "
        f"{settings['dropout']:g}, attention dropout {settings['attention_dropout']:g}; "
        f"torch {around['torch']}, transformers {around['transformers']}"
    )


def _rate(name: str, arm: Results) -> str:
    how = name.partition(", ")[2]
    return f"{arm['tokens_per_second']:,.0f}" + (f" ({how})" if how else "")
