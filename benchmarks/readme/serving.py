"""The README's blocks on serving: costs, rates and waits beside the peers', overload, swaps."""

from pathlib import Path

from benchmarks.readme.parts import Results, link, read_results, results_path, table

CPU, OVERLOAD, SWAPS = "serving-cpu", "serving-overload-cpu", "swaps-cpu"
_TITLES = {
    "pipeline": "FastAPI, transformers' pipeline",
    "litserve": "LitServe",
    "mlflow": "`mlflow models serve`",
    "infinity": "Infinity",
}
_MIX = "10-200 tokens"


def serving_block(root: Path) -> str:
    """Processor time of a request in every cell; rates and waits for texts of mixed lengths."""
    if not results_path(root, CPU).exists():
        return "Still to be measured: `python -m benchmarks.serving`.\n"
    result = read_results(root, CPU)
    cells = result["cells"]
    header = ["CPU ms of a request", *(_short(cell) for cell in cells)]
    servers = list(next(iter(cells.values())))
    rows = [
        [_title(name), *(f"{cells[cell][name]['cpu_ms']:.1f}" for cell in cells)]
        for name in servers
    ]
    costs = table(header, rows, right=range(1, len(header)))
    return f"{costs}\n{_rates(result, servers)}\n{_setup(result)}"


def _rates(result: Results, servers: list[str]) -> str:
    """Of texts of mixed lengths."""
    mixed = {cell: each for cell, each in result["cells"].items() if cell.startswith(_MIX)}
    header = [f"{_MIX} long"]
    for cell in mixed:
        clients = cell.split(", ")[1]
        header += [f"{clients}: requests/s", "p50, p99 ms"]
    rows = []
    for name in servers:
        row = [_title(name)]
        for each in mixed.values():
            found = each[name]
            row += [f"{found['requests_per_second']:.0f}"]
            row += [f"{found['p50_ms']:,.0f}, {found['p99_ms']:,.0f}"]
        row += [f"{result['ready_seconds'][name]:.1f}"]
        row += [f"{result['resident_bytes'][name][-1] / 1e6:,.0f}"]
        rows.append(row)
    header += ["ready after s", "MB at the end"]
    return table(header, rows, right=range(1, len(header)))


def _setup(result: Results) -> str:
    encoder, around, settings = result["encoder"], result["surroundings"], result["settings"]
    threads = settings["threads"]
    how = "threads as each has them by default" if threads is None else f"OMP_NUM_THREADS={threads}"
    return (
        f"A classifier of {encoder['num_hidden_layers']} layers, {encoder['hidden_size']} wide, a"
        f" text a request; all servers up at once and in turns of {settings['seconds']:g} s,"
        f" {settings['rounds']} for each cell, medians; each peer in an environment of its own,\n"
        f"{how}; {around['cores']} cores ({around['device']}), which the clients share; torch"
        f" {around['torch']}. CPU time and memory are those of all processes of a server, Ray's"
        f" too ({link(CPU)}).\n"
    )


def overload_block(root: Path) -> str:
    """A sentence on a server that is asked ten times as much as it can."""
    if not results_path(root, OVERLOAD).exists():
        return "Overload is still to be measured: `python -m benchmarks.serving_overload`.\n"
    result = read_results(root, OVERLOAD)
    header = ["texts of a request", "capacity, requests/s", "asked", "answered, of capacity"]
    header += ["with the same processor time", "429 after ms: half, 99 %", "within 50 ms"]
    rows = [
        [
            size,
            f"{each['capacity']:.0f}",
            f"{each['offered_per_second']:,.0f}",
            f"{each['share_of_capacity']:.0%}",
            f"{each['share_of_capacity_by_server_time']:.0%}",
            f"{each['refused_p50_ms']:.0f}, {each['refused_p99_ms']:.0f}",
            f"{each['refused_within_50_ms']:.1%}",
        ]
        for size, each in result["texts_of_a_request"].items()
    ]
    return (
        f"Asked {result['settings']['times']} times as much as it can, by clients on the same"
        f" {result['surroundings']['cores']} cores (`python -m benchmarks.serving_overload`,"
        f" {link(OVERLOAD)}), it answers what it can and tells the rest:\n\n"
        + table(header, rows, right=range(7))
    )


def swaps_block(root: Path) -> str:
    """A sentence on a server whose versions change many times."""
    if not results_path(root, SWAPS).exists():
        return "Many swaps are still to be measured: `python -m benchmarks.swaps`.\n"
    result = read_results(root, SWAPS)
    after, seconds = result["after"], result["switch_seconds"]
    first, last = min(after, key=int), max(after, key=int)
    megabytes = {number: after[number]["resident_bytes"] / 1e6 for number in (first, last)}
    failed = len(result["failures"]) or "none"
    cores = result["surroundings"]["cores"]
    loads = (result["load_average_before"], result["load_average_after"])
    return (
        f"Its alias moved {last} times while a client asked (`python -m benchmarks.swaps`,"
        f" {link(SWAPS)}): {megabytes[first]:.0f} MB after {first} swaps, {megabytes[last]:.0f} MB"
        f" after {last} ({result['growth']:+.1%}),\nthe first answer of a new version"
        f" {seconds['median']:.1f} s after the alias moved ({seconds['largest']:.1f} s at most),"
        f" and of {result['requests']:,} requests {failed} failed;"
        f" {cores} cores, load average {loads[0]:.1f} before and {loads[1]:.1f} after.\n"
    )


def _short(cell: str) -> str:
    """A cell's tokens and clients, in the head of a column."""
    tokens, clients = cell.split(", ")
    return f"{tokens.removesuffix(' tokens')} × {clients.split()[0]}"


def _title(name: str) -> str:
    return _TITLES.get(name, name)
