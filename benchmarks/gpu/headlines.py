"""The results of a benchmark -> one line with the figures that matter."""

from collections.abc import Callable, Mapping
from typing import Any

Results = Mapping[str, Any]

MOST_FIGURES = 6


def headline(results: Results) -> str:
    """One line, or that the results have to be looked at where they are not as expected."""
    tell = _BY_BENCHMARK.get(str(results.get("benchmark")), _any_figures)
    try:
        return tell(results)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        return "not all is there"


def _pretraining(results: Results) -> str:
    if "ablation" in results:
        return _ablation(results)
    arms = results["arms"]
    own = {name: arm for name, arm in arms.items() if "ratio" not in arm}
    name, best = max(own.items(), key=lambda item: item[1]["tokens_per_second"])
    parts = [f"{best['tokens_per_second']:,.0f} tokens/s ({name})", f"MFU {best['mfu']:.1%}"]
    ratios = {name: arm["ratio"] for name, arm in arms.items() if "ratio" in arm}
    if ratios:
        peer, ratio = min(ratios.items(), key=lambda item: item[1])
        parts.append(f"{ratio:.2f} times as fast as {peer}")
    return ", ".join(parts)


def _ablation(results: Results) -> str:
    rows = {**results.get("arms", {}), **results["ablation"]}
    return ", ".join(f"{name} {row['tokens_per_second']:,.0f}" for name, row in rows.items())


def _finetuning(results: Results) -> str:
    ours, peer = results["arms"].items()
    return (
        f"{ours[1]['examples_per_second']:,.0f} examples/s, MFU {ours[1]['mfu']:.1%}, "
        f"{results['ratio']:.2f} times as fast as {peer[0]}"
    )


def _features(results: Results) -> str:
    share = results["flops_per_second"] / results["peak_flops_per_second"]
    parts = [
        f"{results['arms']['ours']['tokens_per_second']:,.0f} tokens/s",
        f"{share:.1%} of the peak",
    ]
    parts += [f"{each:.2f} times as fast as {name}" for name, each in results["ratios"].items()]
    return ", ".join(parts)


def _encoder_run(results: Results) -> str:
    record = results["pretraining"]
    end = record["heldout"][-1]
    parts = [
        f"{record['step']:,} steps, {record['tokens']:,} tokens",
        f"held-out masked-token loss {end['masked_token_loss']:.3f}",
    ]
    for task, stage in results["finetuning"].items():
        compared = stage["compared"]
        pair = f"{compared['pre-trained']:.3f} (untrained {compared['untrained']:.3f})"
        parts.append(f"{task} {pair}")
    return ", ".join(parts)


def _any_figures(results: Results) -> str:
    """The first numbers that stand at the top or one level below."""
    figures = []
    for name, value in results.items():
        below = value.items() if isinstance(value, Mapping) else ()
        for each, number in [(name, value), *((f"{name}.{key}", it) for key, it in below)]:
            if isinstance(number, int | float) and not isinstance(number, bool):
                figures.append(f"{each} {number:,.4g}")
    return ", ".join(figures[:MOST_FIGURES])


_BY_BENCHMARK: Mapping[str, Callable[[Results], str]] = {
    "pretraining": _pretraining,
    "finetuning": _finetuning,
    "features": _features,
    "encoder_run": _encoder_run,
}
