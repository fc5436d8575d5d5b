"""The README's blocks on features: speed beside peers, a long extraction, Table 7."""

import statistics
from pathlib import Path

from benchmarks.readme.parts import RESULTS, Results, link, read_results, results_path, table
from workflows.paper.paper_table import score_text
from workflows.paper.published import TABLE_7_DEV, TABLE_7_TITLES

PREFIX, LONG_RUN, TABLE7_PREFIX = "features-", "extraction-cpu", "table7-"


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
        f" the last three tenths {result['last_rate_over_first']:.2f} of the rate in the second to"
        f" fourth;\n"
        f"{memory[0] / 1e6:,.0f} MB above the idle cluster in the second tenth,"
        f" {memory[-1] / 1e6:,.0f} MB in the last; killed in the middle and started again,"
        f" {same} ({link(LONG_RUN)}).\n"
    )


def table7_block(root: Path) -> str:
    """Table 7, a column for each encoder it was run for, and what its report says of each."""
    names = sorted(path.stem for path in (root / RESULTS).glob(f"{TABLE7_PREFIX}*.json"))
    if not names:
        return "Not run at full length yet.\n"
    results = {name: read_results(root, name) for name in names}
    short = [name.removeprefix(TABLE7_PREFIX) for name in names]
    rows = [
        [
            title,
            *(_scores_of(result, row) for result in results.values()),
            f"{TABLE_7_DEV[row]:.1f}",
        ]
        for row, title in TABLE_7_TITLES.items()
    ]
    header = ["F1 on dev", *short, "the paper's BERT base, cased"]
    lines = [table(header, rows, right=range(1, len(header)))]
    for name, each in zip(short, names, strict=True):
        encoder, recipe, *_, order = results[each]["notes"]
        seeds = max(len(row["dev"]) for row in results[each]["rows"].values())
        lines.append(f"- `{name}`, seeds: {seeds}. {encoder} {recipe} {order} ({link(each)})")
    return "\n".join(lines) + "\n"


def _scores_of(result: Results, row: str) -> str:
    return score_text(result["rows"].get(row, {"dev": []})["dev"])
