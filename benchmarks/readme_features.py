"""The README's block on the speed of features, beside sentence-transformers and transformers."""

from pathlib import Path

from benchmarks.readme_parts import RESULTS, Results, link, read_results, table

PREFIX = "features-"


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
