"""The README's figures, written from the committed results.

`python -m benchmarks.readme` rewrites each block of README.md between `<!-- figures: NAME -->` and
`<!-- end of figures -->` from benchmarks/results; with `--check` it changes nothing, names the
blocks that differ and returns 1. The prose around the blocks is written by hand.
"""

import argparse
import re
import sys
from pathlib import Path

from benchmarks.readme.encoder import encoder_run_block
from benchmarks.readme.features import extraction_block, features_block, table7_block
from benchmarks.readme.finetuning import finetuning_block, finetuning_quality_block
from benchmarks.readme.parts import RESULTS, Results, link, read_results, results_path, table
from benchmarks.readme.pretraining import pretraining_block, pretraining_gpu_block
from benchmarks.readme.serving import overload_block, serving_block, swaps_block
from benchmarks.readme.tuning import tuning_block
from bert_core.errors import UserError

ROOT = Path(__file__).parents[2]
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
    """Sentences on text preparation, beside the libraries alone, and on loading."""
    name = "data-cpu"
    result = read_results(root, name)
    megabytes = result["text_bytes"] / 1e6
    rate = result["arms"]["ours"]["tokens_per_second"] * megabytes / result["tokens"]
    arms = result["arms"].items()
    both = min(arm["ratio"] for each, arm in arms if "sentencex" in each)
    bare = [arm["ratio"] for each, arm in arms if "ratio" in arm and "sentencex" not in each]
    beside = f" ({bare[0]:.1f} times that of `tokenizers` given the sentences)" if bare else ""
    memory = result["peak_bytes_above_idle_cluster"] / 1e6
    return (
        f"{megabytes:.0f} MB of text on {result['cores']} cores (load average "
        f"{result['load_average_before']:.1f} when it began): {rate:.1f} MB/s, "
        f"{both:.1f} times the rate of `tokenizers` and sentencex alone{beside};\n"
        f"{memory:,.0f} MB of memory at most above the idle cluster ({link(name)}).\n"
        + _loading_sentence(result.get("loading"))
    )


def _loading_sentence(loading: Results | None) -> str:
    """What the loader gives; nothing until it was measured."""
    if loading is None:
        return ""
    alone, settings = loading["alone"], loading["settings"]
    rounds = loading["of_staged_of_rounds"]
    return (
        f"One process makes batches of {alone['tokens_per_second'] / 1e6:.1f} M tokens/s, packed "
        f"{alone['fill']:.1%} full; training `{settings['preset']}` with the loader has "
        f"{loading['of_staged']:.2f} of the rate with the same batches staged before, "
        f"{min(rounds):.2f} to {max(rounds):.2f} over {len(rounds)} rounds.\n"
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
    "encoder-run": encoder_run_block,
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
