"""The outcome of an ablation, pre-trainings and fine-tunings, as plain data for reports."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from workflows.sweeps.outcome import SweepOutcome

VARIANT = "variant"
"""The only axis of a task's sweep in an ablation."""


@dataclass(frozen=True)
class VariantOutcome:
    """The outcome of one pre-training.

    `name` and `title` are the variant's, `run` is its run's, `shape` says layers, width and heads.
    `figures` are those of held-out documents at the last step (`heldout/perplexity`), `curve` its
    losses there by step, in nats; both are empty where it has not finished. Losses of variants with
    one `question` compare: they predict the same tokens from the same text. `seconds` and
    `device_hours` count every start; `failure` says why it did not finish.
    """

    name: str
    title: str
    run: str
    shape: str
    question: str
    paper_row: str = ""
    is_reference: bool = False
    num_parameters: int = 0
    figures: dict[str, float] = field(default_factory=dict)
    curve: tuple[tuple[int, float], ...] = ()
    num_tokens: int = 0
    seconds: float = 0.0
    device: str = "cpu"
    device_hours: float = 0.0
    failure: str | None = None

    @property
    def is_finished(self) -> bool:
        """Whether it has been trained to its end."""
        return bool(self.figures)


@dataclass(frozen=True)
class AblationOutcome:
    """An ablation, finished or as far as it has come.

    `tasks` are the sweeps over its encoders by what a task is called, in the order given, those
    that have begun; their only axis is VARIANT. `wanted_tasks` are all. `recipe` says in sentences
    how all encoders were trained and how they learn. `wall_seconds` is the time of all starts, in
    which `at_once` runs trained side by side.
    """

    name: str
    study: str
    text: str
    variants: tuple[VariantOutcome, ...]
    tasks: Mapping[str, SweepOutcome]
    wanted_tasks: tuple[str, ...]
    seeds: int
    recipe: tuple[str, ...] = ()
    wall_seconds: float = 0.0
    at_once: int = 1

    @property
    def reference(self) -> VariantOutcome:
        """What the others are compared with."""
        return next(each for each in self.variants if each.is_reference)


def by_variant(outcome: SweepOutcome, variants: Mapping[str, str]) -> SweepOutcome:
    """A sweep over runs (`model`) as one over the variants that they are, in the variants' order.

    `variants` are the names of variants by those of their runs.
    """
    order = list(variants)
    trials = sorted(outcome.trials, key=lambda each: order.index(each.point["model"]))
    renamed = (replace(each, point={VARIANT: variants[each.point["model"]]}) for each in trials)
    return replace(outcome, axes=(VARIANT,), trials=tuple(renamed))
