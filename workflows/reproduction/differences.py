"""Whether what a run was made of is what it was: data, encoder, code, and what computes.

A recorded run and what there is now go in; findings come out, each a line to print.
"""

from dataclasses import dataclass
from typing import Any

import torch

from bert_core.processor import processor_name
from workflows.clusters.settings import ClusterSettings
from workflows.reproduction.code_files import CodeState, training_files
from workflows.reproduction.recorded_run import RecordedRun
from workflows.settings import differences
from workflows.tracking.tracker import code_tags

PACKAGES = ("torch", "tokenizers", "numpy")
"""The packages whose other versions may compute other bits, or cut other words."""
NOT_RECORDED = "the run has not recorded"
_MAY_DIFFER = "the last bits may differ"
_MOST_NAMES = 6


@dataclass(frozen=True)
class Finding:
    """One thing: whether it is as it was, in words; `refuses` where the run cannot come out."""

    what: str
    text: str
    refuses: bool = False

    def __str__(self) -> str:
        """The line to print."""
        return f"{self.what:<9}{self.text}"


def data_finding(recorded: RecordedRun, now: dict[str, Any]) -> Finding:
    """Compares the data by their hash, and says in which counts they differ."""
    was, is_now = recorded.data_sha256, now["sha256"]
    if was == is_now:
        return Finding("data", f"the same, {is_now[:12]}")
    if was is None:
        return Finding("data", f"{NOT_RECORDED} what they were", refuses=True)
    hidden = {"sha256", "source", "prepared_with"}
    before, after = (
        {name: value for name, value in each.items() if name not in hidden}
        for each in (recorded.data, now)
    )
    changed = differences(before, after) if before else []
    how = _some(changed, "; ") or "as many, but others"
    return Finding("data", f"differ, {was[:12]} -> {is_now[:12]}: {how}", refuses=True)


def encoder_finding(recorded: RecordedRun, sha256: str) -> Finding:
    """Compares the encoder by its hash."""
    was = recorded.tags.get("encoder.sha256")
    name = recorded.tags.get("encoder.name", "")
    if was == sha256:
        return Finding("encoder", f"the same, {sha256[:12]}")
    if was is None:
        return Finding("encoder", f"{NOT_RECORDED} which it was", refuses=True)
    how = f"differs, {was[:12]} -> {sha256[:12]}: it was {name or 'another'}"
    return Finding("encoder", how, refuses=True)


def code_finding(recorded: RecordedRun, now: CodeState) -> Finding:
    """Compares the files that training reads, in every state that the run was started under."""
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
    """A finding for each package of another version than it was."""
    from workflows.reproduction.code_files import ROOT

    now = code_tags(ROOT)
    return [
        Finding(name, f"{now.get(f'version.{name}')} where it was {was}: {_MAY_DIFFER}")
        for name in PACKAGES
        if (was := recorded.tags.get(f"version.{name}")) not in (None, now.get(f"version.{name}"))
    ]


def hardware_findings(recorded: RecordedRun, cluster: ClusterSettings) -> list[Finding]:
    """A finding for each device and number that is not what it was; one where all are the same."""
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
    found = [
        Finding(labels.get(name, name), f"{value} where it was {was}: {_MAY_DIFFER}")
        for name, value in now.items()
        if (was := recorded.outcome.get(name)) is not None and value not in (None, was)
    ]
    threads = f"workers {now['world_size']}, threads {now['num_threads']}"
    return found or [Finding("machine", f"the same: {here or device}; {threads}")]


def _short(commit: str | None) -> str:
    return commit[:12] if commit else "unknown"


def _some(names: list[str], between: str) -> str:
    more = len(names) - _MOST_NAMES
    return between.join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
