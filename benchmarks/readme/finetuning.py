"""The README's blocks on fine-tuning: speed, and results beside transformers'."""

from pathlib import Path

from benchmarks.readme.parts import RESULTS, Results, link, read_results, table

SPEED, QUALITY = "finetuning-", "finetuning-quality-"
TITLES = {"mrpc": "MRPC", "cola": "CoLA", "conll2003": "CoNLL-2003", "squad": "SQuAD 1.1"}
METRICS = {"f1": "F1", "matthews": "Matthews", "exact_match": "exact match"}


def finetuning_block(root: Path) -> str:
    """Training examples per second, a row for each task and device."""
    found = [(name, read_results(root, name)) for name in _names(root, SPEED)]
    if not found:
        return "Still to be measured: `python -m benchmarks.finetuning`.\n"
    rows = [
        [
            TITLES[result["settings"]["task"]],
            f"{result['mean_length']:.0f}, {result['longest']} at most",
            *(f"{arm['examples_per_second']:.1f}" for arm in result["arms"].values()),
            f"{result['ratio']:.2f} times as fast",
            link(name),
        ]
        for name, result in found
    ]
    header = ["task", "tokens of a row", "ours, examples/s", "transformers, examples/s"]
    header += ["ours is", ""]
    setups = sorted({_setup(result) for _, result in found})
    return table(header, rows, right=(2, 3)) + "\n" + ";\n".join(setups) + ".\n"


def _setup(result: Results) -> str:
    encoder, around = result["encoder"], result["surroundings"]
    return (
        f"{encoder['num_hidden_layers']} layers, {encoder['hidden_size']} wide, steps of "
        f"{result['settings']['batch']} on {around['device']} ({around['threads']} threads); "
        f"torch {around['torch']}, transformers {around['transformers']}"
    )


def finetuning_quality_block(root: Path) -> str:
    """Dev metrics of both arms, a row for each task."""
    rows, missing = [], dict(TITLES)
    for name in _names(root, QUALITY):
        result = read_results(root, name)
        task, criterion = result["settings"]["task"], result["criterion"]
        found = result["summary"].get(criterion)
        if found is None:
            continue
        missing.pop(task, None)
        seeds = result["summary"]["seeds"]
        between = found["difference"] or result["compared"][str(seeds[0])][criterion]
        rows.append(
            [
                TITLES[task],
                f"{result['examples']['train']:,} x {result['settings']['epochs']}",
                METRICS.get(criterion, criterion),
                str(len(seeds)),
                f"{100 * found['ours']:.1f}",
                f"{100 * found['transformers']:.1f}",
                f"{100 * between['value']:+.1f} ({100 * between['low']:+.1f} to "
                f"{100 * between['high']:+.1f})",
                link(name),
            ]
        )
    header = ["task", "examples x epochs", "metric", "seeds", "ours", "transformers"]
    header += ["difference, 95 % interval", ""]
    text = table(header, rows, right=(3, 4, 5)) if rows else ""
    if missing:
        text += "\n" * bool(rows) + f"Still to be measured: {', '.join(missing.values())}.\n"
    return text


def _names(root: Path, prefix: str) -> list[str]:
    """The results that begin so; those of the speed are not those of the quality."""
    names = sorted(path.stem for path in (root / RESULTS).glob(f"{prefix}*.json"))
    return [name for name in names if (QUALITY in name) == (prefix == QUALITY)]
