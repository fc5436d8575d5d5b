"""The README's block on sweeps: the example in docs/, and what a sweep costs besides its trials."""

import json
from pathlib import Path

from benchmarks.readme.parts import Results, link, read_results, results_path

EXAMPLE = "docs/sweep-mrpc"
"""The folder of a sweep's report."""
COSTS = "tuning-cpu"


def tuning_block(root: Path) -> str:
    """What the example found, with its picture, and the time of a sweep beside its trials'."""
    report = root / EXAMPLE / "report.json"
    found = _example(json.loads(report.read_text(encoding="utf-8"))) if report.exists() else ""
    costs = _costs(read_results(root, COSTS)) if results_path(root, COSTS).exists() else ""
    return "\n".join(filter(None, (found, costs))) or "Still to be measured: a whole grid.\n"


def _example(report: Results) -> str:
    points, best = report["points"], report["points"][0]
    shown = ", ".join(
        f"{name.rpartition('.')[2]} {value:g}" for name, value in best["point"].items()
    )
    seeds = max(len(each["trials"]) for each in points)
    level = sum(each["level"] for each in points) - 1
    hours = sum(report["device_hours"].values())
    trained = sum(each["seconds"] for each in report["trials"])
    ratio = report["wall_seconds"] * report["at_once"] / trained
    return (
        f"![A line for each setting]({EXAMPLE}/parallel.svg)\n\n"
        f"The paper's grid on {report['data']} from {report['model']} (22 M parameters), {seeds}"
        f" seeds, {len(report['trials'])} trials, {hours:.1f} core-hours: the best mean is\n"
        f"{100 * best['mean']:.1f} ± {100 * best['deviation']:.1f} ({shown}), and {level} of the"
        f" other {len(points) - 1} settings cannot be told from it\n"
        f"([the report]({EXAMPLE}/report.md); as a page [{EXAMPLE}/report.html]"
        f"({EXAMPLE}/report.html)). The sweep took {ratio:.2f} times\nits trials' training time"
        f" divided by the {report['at_once']} that ran at once.\n"
    )


def _costs(result: Results) -> str:
    tiny, large = result["tiny"], result["trials"]
    return (
        f"A sweep of {len(tiny['trial_seconds'])} tiny trials takes {tiny['command_seconds']:.0f} s"
        f" once Ray is up. One of {len(large['trial_seconds'])} trials of"
        f" {min(large['trial_seconds']):.0f} s and more, {large['at_once']} at once, takes"
        f" {large['command_ratio']:.2f} times\ntheir training, the whole command with report and"
        f" registration ({link(COSTS)}, `python -m benchmarks.tuning`).\n"
    )
