"""An ablation's findings in words and cells: what the page and the Markdown report both say."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean

from bert_core.evaluation.sweep import Difference
from workflows.ablations.findings import AblationFindings, TaskFound
from workflows.ablations.outcome import VARIANT, VariantOutcome
from workflows.ablations.studies import find_study
from workflows.paper.paper_table import DASH, metric_title
from workflows.progress import duration
from workflows.runs.tracker import without_machine_paths
from workflows.sweeps.outcome import TrialOutcome
from workflows.sweeps.words import number_of
from workflows.versions.finished_run import Usage

MISSING = "missing"
"""Why a run has no figures that has not failed."""


def described(findings: AblationFindings) -> str:
    """What was asked of what."""
    outcome = findings.outcome
    text = without_machine_paths(outcome.text)
    return f"{find_study(outcome.study).question} Pre-training on {text}."


def counts(findings: AblationFindings) -> str:
    """How far it has come."""
    outcome = findings.outcome
    finished = sum(each.score is not None for each in findings.trials)
    failed = sum(each.failure is not None for each in findings.trials)
    failed += sum(each.failure is not None for each in outcome.variants)
    parts = [
        f"{len(findings.pretrained)} of {number_of(len(outcome.variants), 'encoder')} pre-trained",
        f"{finished:,} of {findings.num_wanted:,} fine-tunings finished "
        f"({number_of(len(outcome.wanted_tasks), 'task')}, {number_of(outcome.seeds, 'seed')})",
    ]
    return ", ".join([*parts, f"{failed} failed"] if failed else parts)


def verdict(findings: AblationFindings) -> str:
    """What these figures say about the variants, in a sentence or two, and what they do not."""
    reference, compared = findings.reference.title, list(findings.compared())
    if not compared:
        return "No variant can be compared with another yet."
    judged = [each for each in compared if each[2].reach is not None]
    if not judged:
        return (
            "One seed of each does not say how far a seed alone moves a score, so it is open "
            f"whether any variant differs from {reference} ({_range(compared)}). More seeds "
            "(--seeds 3) answer that."
        )
    told = [each for each in judged if each[2].is_told_apart]
    if not told:
        return (
            f"These figures do not tell any variant from {reference}: what lies between them "
            f"({_range(judged)}) may be the work of seeds alone."
        )
    sentences = [f"Against {reference}, {'; '.join(_by_variant(told))}."]
    rest = len(compared) - len(told)
    if rest:
        sentences.append(
            f"In the other {rest} of {len(compared)} comparisons these figures do not tell them "
            "apart."
        )
    return " ".join(sentences)


def _by_variant(told: Sequence[tuple[VariantOutcome, TaskFound, Difference]]) -> list[str]:
    """`MLM only is worse on mrpc (-1.2) and better on squad (+0.8)`, for each variant."""
    by_title: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for variant, task, difference in told:
        side = "better" if difference.mean > 0 else "worse"
        by_title[variant.title][side].append(f"{task.title} ({signed(difference.mean)})")
    return [
        f"{title} is {' and '.join(f'{side} on {_listed(tasks)}' for side, tasks in sides.items())}"
        for title, sides in by_title.items()
    ]


def _range(compared: Sequence[tuple[VariantOutcome, TaskFound, Difference]]) -> str:
    means = [difference.mean for _, _, difference in compared]
    if len(means) == 1:
        return f"{signed(means[0])} points"
    return f"{signed(min(means))} to {signed(max(means))} points"


def _listed(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def signed(points: float, digits: int = 2) -> str:
    """A difference with its sign, a real minus."""
    return f"{points:+.{digits}f}".replace("-", "−")


def method(findings: AblationFindings) -> list[str]:
    """What has to be known to read the figures."""
    said = [
        *findings.outcome.recipe,
        f"In points (0 to 100): {_metrics(findings)}. Ours are of the dev set, mean ± standard "
        "deviation over the seeds of fine-tuning, each at its best epoch, which the same dev set "
        "has chosen.",
        "Each variant was pre-trained once: how far another seed of the pre-training would move "
        "it is in no ± and no interval.",
    ]
    if findings.paper.rows:
        said.append(
            "The paper's encoders are BERT base but where the row says otherwise, pre-trained on "
            "3.3 billion words: what compares are differences between rows, not rows."
        )
    return [*said, *findings.paper.notes]


def _metrics(findings: AblationFindings) -> str:
    """`accuracy of mrpc and MNLI-m, F1 of SQuAD`."""
    by_metric: dict[str, dict[str, None]] = defaultdict(dict)
    for title, metric in [
        *((each.title, each.metric) for each in findings.tasks),
        *((each.title, each.metric) for each in findings.paper.columns),
    ]:
        by_metric[metric_title(metric)][title] = None
    said = [f"{metric} of {_listed([*titles])}" for metric, titles in by_metric.items()]
    return ", ".join(said) or "each task's metric"


def difference_table(findings: AblationFindings) -> tuple[list[str], list[list[tuple[str, bool]]]]:
    """Heads, and for each variant its differences from the reference; True where told apart."""
    with_paper = [
        any(findings.paper_difference(each, task) is not None for each in findings.others)
        for task in findings.tasks
    ]
    heads = [f"less {findings.reference.title}"]
    for task, has_paper in zip(findings.tasks, with_paper, strict=True):
        heads += [task.title, "the paper's"] if has_paper else [task.title]
    rows = []
    for variant in findings.others:
        cells = [(variant.title, False)]
        for task, has_paper in zip(findings.tasks, with_paper, strict=True):
            found = task.differences.get(variant.name)
            cells.append((DASH, False) if found is None else _difference_cell(found))
            if has_paper:
                papers = findings.paper_difference(variant, task)
                cells.append((DASH if papers is None else signed(papers, 1), False))
        rows.append(cells)
    return heads, rows


def _difference_cell(difference: Difference) -> tuple[str, bool]:
    reach = "" if difference.reach is None else f" ± {difference.reach:.2f}"
    return signed(difference.mean) + reach, bool(difference.is_told_apart)


def difference_words(findings: AblationFindings) -> list[str]:
    """What the intervals of the differences are."""
    if not any(each.reach is not None for _, _, each in findings.compared()):
        return ["In points. Without several seeds there are no intervals."]
    return [
        "In points, with intervals of 95 % for all variants of a task together (Dunnett 1955); "
        "bold where the interval leaves out 0. What a seed alone does is taken to be the same for "
        "all variants of a task."
    ]


def pretraining_table(findings: AblationFindings) -> tuple[list[str], list[list[str]]]:
    """Heads, and for each variant what its pre-training came to."""
    papers = findings.paper.perplexity
    shaped = [each.shape for each in findings.outcome.variants if each.shape != each.title]
    heads = ["variant", *(["L/H/A"] if shaped else []), "parameters", "loss", "perplexity"]
    heads += ["the paper's"] if papers else []
    heads += ["accuracy", "unigram loss", "next sentence", "time", "tokens"]
    rows = []
    for each in findings.outcome.variants:
        figures, objective = each.figures, _prefix(each)
        cells = [each.title, *([each.shape] if shaped else []), f"{each.num_parameters:,}"]
        cells += [
            _figure(figures, f"heldout/{objective}_token_loss", "{:.3f}"),
            _figure(figures, perplexity_name(each), "{:.4g}"),
        ]
        if papers:
            cells.append(f"{papers[each.paper_row]:.2f}" if each.paper_row in papers else DASH)
        cells += [
            _figure(figures, f"heldout/{objective}_token_accuracy", "{:.1%}"),
            _figure(figures, "heldout/unigram_loss", "{:.3f}"),
            _figure(figures, "heldout/next_sentence_accuracy", "{:.1%}"),
            duration(each.seconds) if each.is_finished else DASH,
            f"{each.num_tokens:,}" if each.is_finished else DASH,
        ]
        rows.append(cells)
    return heads, rows


def _prefix(variant: VariantOutcome) -> str:
    return "next" if is_next_token(variant) else "masked"


def is_next_token(variant: VariantOutcome) -> bool:
    """Whether its loss is that of next tokens, and not of masked ones."""
    return "heldout/next_token_loss" in variant.figures


def perplexity_name(variant: VariantOutcome) -> str:
    """What its perplexity is called."""
    return "heldout/next_token_perplexity" if is_next_token(variant) else "heldout/perplexity"


def _figure(figures: dict[str, float], name: str, form: str) -> str:
    return form.format(figures[name]) if name in figures else DASH


def pretraining_words(findings: AblationFindings) -> list[str]:
    """Which losses compare, and what they say."""
    said = ["On held-out documents, losses in nats, at the last step."]
    groups: dict[str, list[VariantOutcome]] = defaultdict(list)
    for each in findings.pretrained:
        groups[each.question].append(each)
    if len(groups) > 1:
        said.append(
            "Losses compare only where the same is predicted from the same text: "
            + "; ".join(f"{question}: {_titles(some)}" for question, some in groups.items())
            + "."
        )
    if len({is_next_token(each) for each in findings.pretrained}) > 1:
        said.append(
            "Next tokens are learned from at every place, masked ones at their share of them: in "
            "as many steps left to right is taught more. The paper (C.1) finds MLM a little "
            "slower to converge and soon ahead, at its size and with its amount of text."
        )
    for some in groups.values():
        if len(some) > 1:
            best, *_, worst = sorted(some, key=_loss)
            what = "next" if is_next_token(best) else "masked"
            said.append(
                f"{what.capitalize()} tokens are predicted best by {best.title} (loss "
                f"{_loss(best):.3f}) and worst by {worst.title} ({_loss(worst):.3f})."
            )
    return said


def _titles(variants: Iterable[VariantOutcome]) -> str:
    return ", ".join(each.title for each in variants)


def _loss(variant: VariantOutcome) -> float:
    return variant.figures[f"heldout/{_prefix(variant)}_token_loss"]


def costs(findings: AblationFindings) -> list[tuple[str, str]]:
    """What the ablation has used, each with a name; runs that were there before are counted."""
    outcome = findings.outcome
    finished = [each for each in findings.trials if each.score is not None]
    rows = [
        ("pre-training", _used(findings.pretrained)),
        ("fine-tuning", _used(findings.trials)),
    ]
    if finished:
        mean = duration(fmean(each.seconds for each in finished))
        rows.append(("a fine-tuning", f"{mean} on average"))
    at_once = f"up to {outcome.at_once} runs at once" if outcome.at_once > 1 else "one at a time"
    rows.append(("wall time", f"{duration(outcome.wall_seconds)}, {at_once}"))
    return rows


def _used(runs: Sequence[VariantOutcome] | Sequence[TrialOutcome]) -> str:
    hours: dict[str, float] = defaultdict(float)
    for each in runs:
        hours[each.device] += each.device_hours
    used = [str(Usage(device, some)) for device, some in sorted(hours.items()) if some]
    return "; ".join(used) or "nothing yet"


def troubles(findings: AblationFindings) -> list[tuple[str, str, str]]:
    """For each run that has not finished its name, what it is, and why."""
    rows = [
        (each.run, f"pre-training, {each.title}", without_machine_paths(each.failure or MISSING))
        for each in findings.outcome.variants
        if not each.is_finished
    ]
    for task in findings.tasks:
        rows += [
            (
                each.name,
                f"{task.key}, {findings.titled(each.point[VARIANT])}, seed {each.seed}",
                without_machine_paths(each.failure or MISSING),
            )
            for each in task.sweep.trials
            if each.score is None
        ]
    return rows
