"""The README's blocks on features: their speed beside peers, and a long extraction."""

import statistics
from pathlib import Path

from benchmarks.readme_parts import RESULTS, Results, link, read_results, results_path, table

PREFIX, LONG_RUN = "features-", "extraction-cpu"


def features_block(root: Path) -> str:
    """Tokens per second, a table for each file of results."""
    names = sorted(path.stem for path in (root / RESULTS).glob(f"{PREFIX}*.json"))
    if not names:
        return "Still to be measured: `python -m benchmarks.features`.\n"
    return "\n".join(_table(name, read_results(root, name)) for name in names)


def _table(name: str, result: Results) -> str:
    rows = [
        [
            arm,
            f"{figures['tokens_per_second']:,.0f}",
            f"{result['ratios'][arm]:.2f} times as fast" if arm in result["ratios"] else "",
        ]
        for arm, figures in result["arms"].items()
    ]
    encoder, around = result["encoder"], result["surroundings"]
    share = result["flops_per_second"] / result["peak_flops_per_second"]
    return (
        table(["", "tokens/s", "ours is"], rows, right=(1,))
        + f"\n{result['num_texts']:,} texts of {result['num_tokens']:,} tokens, the longest"
        f" {result['longest']}; {encoder['num_hidden_layers']} layers, {encoder['hidden_size']}"
        f" wide, {result['settings']['precision']}, on {around['device']}"
        f" ({around['threads']} threads); torch {around['torch']}. Ours does"
        f" {result['flops_per_second'] / 1e9:,.0f} GFLOP/s, {share:.0%} of the\nlargest matrix"
        f" product in the same run; vectors differ by {result['largest_difference']:.0e} at most;"
        f" {result['padding_of_peers']:.0%} of what the peers compute is padding ({link(name)}).\n"
    )


def extraction_block(root: Path) -> str:
    """A sentence on a long extraction, or that it is still to be measured."""
    if not results_path(root, LONG_RUN).exists():
        return "A million texts are still to be measured: `python -m benchmarks.extraction`.\n"
    result = read_results(root, LONG_RUN)
    memory, rates = result["bytes_above_idle"], result["texts_per_second"]
    same = "the same features again" if result["same_after_kill"] else "**other features**"
    return (
        f"{result['texts']:,} sentences through a `{result['size']}` encoder on {result['cores']}"
        f" cores (`python -m benchmarks.extraction`): {statistics.median(rates):,.0f} texts/s, in"
        f" the last tenth {result['last_rate_over_first']:.2f} of the rate in the second;\n"
        f"{memory[0] / 1e6:,.0f} MB above the idle cluster in the second tenth,"
        f" {memory[-1] / 1e6:,.0f} MB in the last; killed in the middle and started again,"
        f" {same} ({link(LONG_RUN)}).\n"
    )
