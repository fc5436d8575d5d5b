"""The README's figures, written from the committed results.

`python -m benchmarks.readme` rewrites each block of README.md between `<!-- figures: NAME -->` and
`<!-- end of figures -->` from benchmarks/results; with `--check` it changes nothing, names the
blocks that differ and returns 1. The prose around the blocks is written by hand.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.readme_features import extraction_block, features_block, table7_block
from benchmarks.readme_finetuning import finetuning_block, finetuning_quality_block
from benchmarks.readme_parts import RESULTS, Results, link, read_results, results_path, table
from benchmarks.readme_serving import overload_block, serving_block, swaps_block
from benchmarks.readme_tuning import tuning_block
from bert_core.config import SIZES
from bert_core.errors import UserError

ROOT = Path(__file__).parent.parent
CURVE_PICTURE = "docs/learning-curve-mini.png"
END = "<!-- end of figures -->"
_BLOCK = re.compile(rf"(<!-- figures: (.*?) -->\n)(.*?)({re.escape(END)})", re.DOTALL)


def main(arguments: list[str], root: Path = ROOT) -> int:
    """Rewrites or checks the blocks: 1 where one differs, 2 where they cannot be written."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.readme", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing, name what differs")
    options = parser.parse_args(arguments)
    path = root / "README.md"
    text = path.read_text(encoding="utf-8")
    try:
        found = blocks_of(text)
        written = {name: write(root) for name, write in BLOCKS.items()}
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    changed = [name for name in BLOCKS if found[name] != written[name]]
    if options.check:
        for name in changed:
            print(f"{path}: {name!r} is not what {RESULTS} say; run python -m benchmarks.readme")
        return 1 if changed else 0
    path.write_text(_BLOCK.sub(lambda m: m[1] + written[m[2]] + m[4], text), encoding="utf-8")
    print(f"{path}: rewrote {', '.join(changed) or 'nothing'}")
    return 0


def blocks_of(text: str) -> dict[str, str]:
    """What stands in each block. Raises `UserError` unless all are there, each once."""
    blocks = [(match[2], match[3]) for match in _BLOCK.finditer(text)]
    names = [name for name, _ in blocks]
    if sorted(names) != sorted(BLOCKS) or text.count(END) != len(names):
        remedy = f"each of {', '.join(BLOCKS)} stands once, from its name to {END}"
        raise UserError("blocks missing, unknown or not closed", "README.md", remedy)
    return dict(blocks)


def data_block(root: Path) -> str:
    """A sentence on text preparation, beside the faster arm of the libraries alone."""
    name = "data-cpu"
    result = read_results(root, name)
    megabytes = result["text_bytes"] / 1e6
    rate = result["arms"]["ours"]["tokens_per_second"] * megabytes / result["tokens"]
    theirs = _fastest(result, ours=False)[1]
    memory = result["peak_bytes_above_idle_cluster"] / 1e6
    return (
        f"{megabytes:.0f} MB of text on {result['cores']} cores (load average "
        f"{result['load_average_before']:.1f} when it began): {rate:.1f} MB/s, "
        f"{theirs['ratio']:.1f} times the rate of `tokenizers` and sentencex alone;\n"
        f"{memory:,.0f} MB of memory at most above the idle cluster ({link(name)}).\n"
    )


def pretraining_block(root: Path) -> str:
    """A table of steps on the CPU."""
    names = ("pretraining-cpu-tiny", "pretraining-cpu-mini", "pretraining-cpu-mini-8192")
    return _pretraining_tables(root, names)


def pretraining_gpu_block(root: Path) -> str:
    """The same table of steps on GPUs, as soon as there are results of any."""
    names = sorted(path.stem for path in (root / RESULTS).glob("pretraining-cuda-*.json"))
    if not names:
        return (
            "Still to be measured: everything on a GPU; the code for it is here and has not run on "
            "one yet.\n"
        )
    return _pretraining_tables(root, names)


def _pretraining_tables(root: Path, names: Sequence[str]) -> str:
    """A table for each set-up, for figures of two machines do not stand side by side."""
    rows: dict[str, list[list[str]]] = {}
    for name in names:
        result = read_results(root, name)
        rows.setdefault(_setup(result), []).append(_pretraining_row(name, result))
    header = ["model", "step", "ours, tokens/s", "transformers, tokens/s", "ours is", ""]
    return "\n".join(
        table(header, each, right=(2, 3)) + f"\n{setup}.\n" for setup, each in rows.items()
    )


def _pretraining_row(name: str, result: Results) -> list[str]:
    settings, config = result["settings"], SIZES[result["settings"]["preset"]]
    up_to = "up to " if settings["lengths"] == "natural" else ""
    ours, theirs = _fastest(result, ours=True), _fastest(result, ours=False)
    size = f"{config.num_hidden_layers} layers, {config.hidden_size} wide"
    return [
        f"{size}, {settings['vocab']:,} words",
        f"{settings['batch']} rows of {up_to}{settings['sequence_length']}",
        _rate(*ours),
        _rate(*theirs),
        f"{theirs[1]['ratio']:.1f} times as fast",
        link(name),
    ]


def _setup(result: Results) -> str:
    settings, around = result["settings"], result["surroundings"]
    precision = "bfloat16" if settings["device"] == "cuda" else "float32"
    return (
        f"On {around['device']} ({around['threads']} threads) in {precision}, dropout "
        f"{settings['dropout']:g}, attention dropout {settings['attention_dropout']:g}; "
        f"torch {around['torch']}, transformers {around['transformers']}"
    )


def tracking_block(root: Path) -> str:
    """What tracking costs a step in each case; nothing until it was measured."""
    name = "tracking-cpu"
    if not results_path(root, name).exists():
        return ""
    result = read_results(root, name)
    rows = [
        [
            case["case"],
            f"{case['alone_ms']:.2f}",
            f"{case['tracked_ms']:.2f}",
            f"{case['ratio']:.3f} times as long",
            "yes" if case["exactly_once"] else "**no**",
        ]
        for case in result["cases"]
    ]
    header = ["MLflow is", "step alone, ms", "tracked, ms", "a tracked step takes"]
    header.append("every step is there once")
    intro = (
        "What tracking adds to a training step while MLflow is well, and while it is not "
        "(`python -m benchmarks.tracking`):\n"
    )
    outro = (
        f"For the {result['start_seconds']:.0f} s in which the sender starts: "
        f"{result['start_ratio']:.3f} times as long.\n{result['threads']} threads, blocks with "
        f"and without tracking in turn, medians ({link(name)}).\n"
    )
    return "\n".join([intro, table(header, rows, right=(1, 2)), outro])


def learning_curve_block(root: Path) -> str:
    """The picture, and both arms' ends in words."""
    name = "learning-curve-mini"
    if not results_path(root, name).exists():
        return (
            "Still to be measured: `mini` for half an hour beside transformers at the same time\n"
            "(`python -m benchmarks.learning_curve`).\n"
        )
    if not (root / CURVE_PICTURE).exists():
        remedy = f"python -m benchmarks.learning_curve --plot {CURVE_PICTURE}"
        raise UserError("figures without their picture", CURVE_PICTURE, remedy)
    result = read_results(root, name)
    settings = result["settings"]
    ends = {arm: figures["curve"][-1] for arm, figures in result["arms"].items()}
    said = ";\n".join(
        f"{arm} ends at a held-out masked-token loss of {end['masked_token_loss']:.2f} after "
        f"{end['steps']:,} steps at {result['arms'][arm]['tokens_per_second']:,.0f} tokens/s"
        for arm, end in ends.items()
    )
    return (
        f"![Held-out loss over minutes of training]({CURVE_PICTURE})\n\n"
        f"`{settings['size']}`, {settings['minutes']:g} minutes for each, steps of "
        f"{settings['rows']} rows of {settings['sequence_length']}, "
        f"{result['surroundings']['threads']} threads:\n{said};\nthe unigram baseline is at "
        f"{result['unigram_loss']:.2f} ({link(name)}).\n"
    )


BLOCKS = {
    "data": data_block,
    "pretraining": pretraining_block,
    "pretraining-gpu": pretraining_gpu_block,
    "learning-curve": learning_curve_block,
    "tracking": tracking_block,
    "finetuning": finetuning_block,
    "finetuning-quality": finetuning_quality_block,
    "features": features_block,
    "extraction": extraction_block,
    "table7": table7_block,
    "serving": serving_block,
    "overload": overload_block,
    "swaps": swaps_block,
    "tuning": tuning_block,
}


def _fastest(result: Results, *, ours: bool) -> tuple[str, Results]:
    arms = [(name, arm) for name, arm in result["arms"].items() if ("ratio" not in arm) == ours]
    return max(arms, key=lambda named: named[1]["tokens_per_second"])


def _rate(name: str, arm: Results) -> str:
    how = name.partition(", ")[2]
    return f"{arm['tokens_per_second']:,.0f}" + (f" ({how})" if how else "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
