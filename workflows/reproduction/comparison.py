"""Compares a recorded run with its reproduction: inputs, hardware, and all figures."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from bert_core.machine import processor_name
from workflows.clusters.settings import ClusterSettings
from workflows.reporting.render import aligned_lines
from workflows.reproduction.recorded_run import RecordedRun, Values
from workflows.reproduction.run_origin import ROOT, CodeState, training_files
from workflows.runs.tracker import code_tags
from workflows.settings import differences

PACKAGES = ("torch", "tokenizers", "numpy")
"""Packages whose versions may change results or tokenization."""
NOT_RECORDED = "the run has not recorded"
_MAY_DIFFER = "the last bits may differ"
_MOST_NAMES = 6

_FIRST = ("dev/", "heldout/")
"""Prefixes of the figures that come first in the table."""


@dataclass(frozen=True)
class Finding:
    """The comparison of one input; `refuses` if the run cannot be reproduced with it."""

    what: str
    text: str
    refuses: bool = False

    def __str__(self) -> str:
        """The line to print."""
        return f"{self.what:<9}{self.text}"


def data_finding(recorded: RecordedRun, now: dict[str, Any]) -> Finding:
    """Compares the data by hash, and says which counts differ."""
    was, is_now = recorded.data_sha256, now["sha256"]
    if was == is_now:
        return Finding("data", f"the same, {is_now[:12]}")
    if was is None:
        return Finding("data", f"{NOT_RECORDED} what they were", refuses=True)
    hidden = {"sha256", "source", "prepared_with"}
    before, after = (
        {name: value for name, value in data.items() if name not in hidden}
        for data in (recorded.data, now)
    )
    changed = differences(before, after) if before else []
    how = _some(changed, "; ") or "as many, but others"
    return Finding("data", f"differ, {was[:12]} -> {is_now[:12]}: {how}", refuses=True)


def encoder_finding(recorded: RecordedRun, sha256: str, what: str = "encoder") -> Finding:
    """Compares the encoder, or the teacher, by hash."""
    was = recorded.tags.get(f"{what}.sha256")
    name = recorded.tags.get(f"{what}.name", "")
    if was == sha256:
        return Finding(what, f"the same, {sha256[:12]}")
    if was is None:
        return Finding(what, f"{NOT_RECORDED} which it was", refuses=True)
    how = f"differs, {was[:12]} -> {sha256[:12]}: it was {name or 'another'}"
    return Finding(what, how, refuses=True)


def code_finding(recorded: RecordedRun, now: CodeState) -> Finding:
    """Compares the files that training imports with every state that the run was started under."""
    commit = recorded.tags.get("mlflow.source.git.commit")
    was_dirty = recorded.tags.get("git.dirty") == "true"
    commits = f"commit {_short(commit)}, now {_short(now.git_commit)}"
    if not recorded.code:
        same = commit is not None and commit == now.git_commit
        if same and not was_dirty and not now.git_dirty:
            return Finding("code", f"the same, commit {_short(commit)}")
        changes = ", with changes that are not recorded" if was_dirty else ""
        here = " with changes" if now.git_dirty else ""
        return Finding("code", f"cannot be told: {commits}{here}{changes}", refuses=True)
    names = training_files()
    changed = sorted({name for state in recorded.code for name in state.changed(now, names)})
    if not changed:
        other = "" if commit == now.git_commit else f"; {commits}"
        return Finding("code", f"the same in all {len(names)} files that training reads{other}")
    text = f"differs in {len(changed)} of the {len(names)} files that training reads: "
    text += f"{_some(changed, ', ')}; {commits}"
    if commit is not None and not was_dirty:
        text += f"; git diff {_short(commit)} shows how"
    if len(recorded.code) > 1:
        text += f"; the run itself was started under {len(recorded.code)} states of it"
    return Finding("code", text, refuses=True)


def package_findings(recorded: RecordedRun) -> list[Finding]:
    """Returns a finding for each package with another version."""
    now = code_tags(ROOT)
    return [
        Finding(name, f"{now.get(f'version.{name}')} where it was {was}: {_MAY_DIFFER}")
        for name in PACKAGES
        if (was := recorded.tags.get(f"version.{name}")) not in (None, now.get(f"version.{name}"))
    ]


def hardware_findings(recorded: RecordedRun, cluster: ClusterSettings) -> list[Finding]:
    """Returns a finding for each difference in hardware; one finding if there is none."""
    device = "cuda" if cluster.use_gpu else "cpu" if cluster.tpu is None else "tpu"
    here = processor_name(torch.device(device)) if device == "cpu" else None
    now = {
        "device": device,
        "processor": here,
        "num_threads": cluster.threads_per_worker,
        "world_size": cluster.num_workers,
    }
    labels = {"num_threads": "threads", "world_size": "workers", "processor": "cpu"}
    if recorded.outcome.get("device") == "cuda":
        labels["processor"] = "gpu"
    if not recorded.outcome:
        return [Finding("machine", f"the run has not recorded which it was: {_MAY_DIFFER}")]
    findings = [
        Finding(labels.get(name, name), f"{value} where it was {was}: {_MAY_DIFFER}")
        for name, value in now.items()
        if (was := recorded.outcome.get(name)) is not None and value not in (None, was)
    ]
    threads = f"workers {now['world_size']}, threads {now['num_threads']}"
    return findings or [Finding("machine", f"the same: {here or device}; {threads}")]


def _short(commit: str | None) -> str:
    return commit[:12] if commit else "unknown"


def _some(names: list[str], between: str) -> str:
    more = len(names) - _MOST_NAMES
    return between.join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True)
class Comparison:
    """The figures of the recorded run and of its reproduction, by step and name.

    The hashes of the weights are None if unknown.
    """

    recorded: Values
    again: Values
    weights_recorded: str | None
    weights_again: str | None

    @cached_property
    def different(self) -> list[tuple[int, str]]:
        """Steps and names of the recorded figures that are missing or not bit-equal, in order."""
        # By repr, for which NaN is NaN and 0.0 is not -0.0.
        return sorted(
            key
            for key, value in self.recorded.items()
            if key not in self.again or repr(value) != repr(self.again[key])
        )

    @property
    def weights_are_known(self) -> bool:
        """Whether both hashes of the weights are known."""
        return None not in (self.weights_recorded, self.weights_again)

    @property
    def is_equal(self) -> bool:
        """Whether everything is bit-equal, the weights too if they are known."""
        weights = not self.weights_are_known or self.weights_recorded == self.weights_again
        return bool(self.recorded) and not self.different and weights

    def is_within(self, tolerance: float) -> bool:
        """Returns whether each figure is reproduced within the tolerance; 0 means bit-equal."""
        if not tolerance:
            return self.is_equal
        return bool(self.recorded) and all(self.distance(key) <= tolerance for key in self.recorded)

    def distance(self, key: tuple[int, str]) -> float:
        """Returns the difference of two figures; infinite if one is missing or not a number."""
        if key not in self.again:
            return math.inf
        was, now = self.recorded[key], self.again[key]
        if repr(was) == repr(now):
            return 0.0
        apart = abs(was - now)
        return apart if math.isfinite(apart) else math.inf


def table_lines(comparison: Comparison) -> list[str]:
    """Formats the last figure of each name, recorded and reproduced, and the weights."""
    last: dict[str, tuple[int, str]] = {}
    for key in sorted(comparison.recorded):
        last[key[1]] = key
    names = sorted(last, key=lambda name: (not name.startswith(_FIRST), name))
    rows = [("figure", "recorded", "again", "difference")]
    for name in names:
        key = last[name]
        again = comparison.again.get(key)
        apart = comparison.distance(key)
        was, now = f"{comparison.recorded[key]:.9g}", "none" if again is None else f"{again:.9g}"
        rows.append((name, was, now, f"{apart:.3g}" if apart else "0"))
    hashes = [comparison.weights_recorded, comparison.weights_again]
    was, now = (digest[:12] if digest else "unknown" for digest in hashes)
    verdict = "the same" if was == now else "another"
    rows.append(("weights", was, now, verdict if comparison.weights_are_known else "unknown"))
    return aligned_lines(rows, numeric=(False, True, True, True))


def verdict_line(comparison: Comparison, tolerance: float) -> str:
    """Says in one line whether the runs are equal, or what differs, by how much and since when."""
    number = len(comparison.recorded)
    if comparison.is_equal:
        weights = "the weights too" if comparison.weights_are_known else "the weights are not known"
        return f"the same to the bit: {number:,} figures; {weights}"
    if not comparison.different:
        same = "no figure is recorded" if not number else f"all {number:,} figures are the same"
        return f"{same}, the weights are not"
    first_step, first_name = comparison.different[0]
    worst = max(comparison.different, key=comparison.distance)
    apart = comparison.distance(worst)
    most = f"by {apart:.3g}" if math.isfinite(apart) else "there is none again"
    text = (
        f"{len(comparison.different):,} of {number:,} figures differ, the first in step "
        f"{first_step} ({first_name}), most {worst[1]} of step {worst[0]}: {most}"
    )
    if comparison.is_within(tolerance):
        text += f"; within the tolerance of {tolerance:g}"
    return text
