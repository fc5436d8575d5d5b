"""What the pre-trainings of an ablation reached on held-out text: a table, curves, a verdict."""

from collections.abc import Sequence

from workflows.ablations.ablation import AblationOutcome, VariantOutcome
from workflows.ablations.equal_time import seconds_until
from workflows.ablations.studies import ADAPTATION, ADAPTED, CONTROL
from workflows.paper.published import DASH, PaperAblation
from workflows.progress import duration
from workflows.reporting.figures import INK, MARK, PANEL, SHADES, Chart, Figure, shortened
from workflows.reporting.render import Cell, Row, Table


def adaptation_verdict(outcome: AblationOutcome) -> str:
    """Whether adaptation lowers the loss on its text more than as much training on other text."""
    figures = {variant.name: variant.figures for variant in outcome.variants}
    names = ("heldout/bits_per_byte", "heldout/masked_token_loss")
    arms = [figures.get(name, {}) for name in ("start", ADAPTED, CONTROL)]
    name = next((name for name in names if all(name in arm for arm in arms)), None)
    if outcome.study != ADAPTATION or name is None:
        return ""
    start, adapted, control = (arm[name] for arm in arms)
    helped = adapted < min(start, control)
    unit = "bits per byte" if name == names[0] else "nats a token"
    of_other = name.replace("heldout/", "other/")
    kept = [arm.get(of_other) for arm in arms[:2]]
    other = "" if None in kept else f"; other text takes {kept[1]:.4f}, {kept[0]:.4f} before"
    return (
        f"{'helped' if helped else 'did not help'} beyond the control: held-out text of the domain "
        f"takes {adapted:.4f} {unit}, {start:.4f} before, {control:.4f} after as much training on "
        f"other text{other}"
    )


def equal_time_verdict(outcome: AblationOutcome) -> str:
    """The losses after the same minutes; of those that compare, when the best had the next one's.

    Losses of variants with one `question` compare, and those of rows of one length.
    """
    variants = _of_equal_time(outcome)
    if not variants or not all(each.is_finished for each in outcome.variants):
        return ""
    last = {each.title: minutes_curve(each)[-1][1] for each in variants}
    parts = [f"{title} {loss:.4f}" for title, loss in last.items()]
    said = f"after {outcome.minutes:g} minutes each, {', '.join(parts)} {_unit(variants)}"
    groups = _by_question(variants)
    if len(groups) > 1:
        said += ", which compare only between variants that predict the same"
    for same in groups:
        best, *others = sorted(same, key=lambda each: last[each.title])
        if others:
            second = last[others[0].title]
            minutes = next(at for at, loss in _at_the_last_length(best) if loss <= second)
            said += f"; {best.title} reaches the {second:.4f} of {others[0].title} "
            said += f"after {minutes:.3g} minutes"
    return said


def _of_equal_time(outcome: AblationOutcome) -> list[VariantOutcome]:
    """The variants that trained for the minutes of the ablation."""
    return [each for each in outcome.variants if each.is_finished and each.phases]


def minutes_curve(variant: VariantOutcome) -> list[tuple[float, float]]:
    """Minutes of training, and bits per byte of held-out text there; nats where bytes are unknown.

    A step takes what one of its phase took when measured: the minutes of which all variants have
    as many. A token of the text stands for as many bytes at every step, so bits are in proportion
    to nats.
    """
    _, loss = variant.curve[-1]
    bits = variant.figures.get("heldout/bits_per_byte", loss)
    return [
        (seconds_until(step, variant.phases) / 60, each * bits / loss)
        for step, each in variant.curve
    ]


def _at_the_last_length(variant: VariantOutcome) -> list[tuple[float, float]]:
    """Of `minutes_curve` what was measured on rows as long as those of the last phase."""
    lengths = [phase.sequence_length for phase in variant.phases for _ in range(phase.steps)]
    return [
        point
        for (step, _), point in zip(variant.curve, minutes_curve(variant), strict=True)
        if lengths[max(step, 1) - 1] == lengths[-1]
    ]


def _unit(variants: Sequence[VariantOutcome]) -> str:
    known = all("heldout/bits_per_byte" in each.figures for each in variants)
    return "bits per byte" if known else "nats a token"


def pretraining_table(outcome: AblationOutcome, paper: PaperAblation) -> Table:
    """What each pre-training reached on held-out documents, at the last step."""
    papers = paper.perplexity
    pretrained = [variant for variant in outcome.variants if variant.is_finished]
    has_shape = any(variant.shape != variant.title for variant in outcome.variants)
    columns = ["variant", *(["L/H/A"] if has_shape else []), "parameters", "loss", "perplexity"]
    columns += ["perplexity, paper"] if papers else []
    bits = [
        (title, name)
        for title, name in (
            ("bits per byte", "heldout/bits_per_byte"),
            ("bits per byte, other text", "other/bits_per_byte"),
        )
        if any(name in each.figures for each in outcome.variants)
    ]
    columns += [title for title, _ in bits]
    columns += ["accuracy", "unigram loss", "next sentence", "time", "tokens", "predicts"]
    rows = []
    for each in outcome.variants:
        objective = "next" if is_next_token(each) else "masked"
        perplexity = (
            "heldout/next_token_perplexity" if is_next_token(each) else "heldout/perplexity"
        )
        published = papers.get(each.paper_row)
        done = each.is_finished
        cells = [
            Cell(each.title),
            *([Cell(each.shape)] if has_shape else []),
            Cell(f"{each.num_parameters:,}", each.num_parameters),
            _figure(each, f"heldout/{objective}_token_loss", "{:.3f}"),
            _figure(each, perplexity, "{:.4g}"),
            *([_number(published, "{:.2f}")] if papers else []),
            *(_figure(each, name, "{:.4f}") for _, name in bits),
            _figure(each, f"heldout/{objective}_token_accuracy", "{:.1%}"),
            _figure(each, "heldout/unigram_loss", "{:.3f}"),
            _figure(each, "heldout/next_sentence_accuracy", "{:.1%}"),
            Cell(duration(each.seconds), each.seconds) if done else Cell(DASH),
            _number(each.num_tokens if done else None, "{:,}"),
            Cell(each.question),
        ]
        rows.append(Row(cells, highlighted=each.is_reference))
    notes = []
    if len({variant.question for variant in outcome.variants}) > 1:
        notes.append("Losses are comparable only between variants that predict the same.")
    if len({is_next_token(each) for each in pretrained}) > 1:
        notes.append(
            "Left to right learns from every token, masked variants from the predicted share."
        )
    if timed := _of_equal_time(outcome):
        steps = (f"{each.title} {_seconds_of_steps(each)}" for each in timed)
        notes.append(
            f"Minutes are by the seconds of a step, measured in turns before: {', '.join(steps)}. "
            "The time is what the runs took, beside all else that the machine did meanwhile."
        )
    return Table("Held-out documents at the last step, losses in nats", columns, rows, notes)


def _seconds_of_steps(variant: VariantOutcome) -> str:
    return " and ".join(f"{phase.seconds:.3g}" for phase in variant.phases)


def _figure(variant: VariantOutcome, name: str, form: str) -> Cell:
    return _number(variant.figures.get(name), form)


def _number(value: float | None, form: str) -> Cell:
    return Cell(DASH) if value is None else Cell(form.format(value), value)


def is_next_token(variant: VariantOutcome) -> bool:
    """Whether it predicts next tokens, not masked ones."""
    return "heldout/next_token_loss" in variant.figures


def curve_figures(outcome: AblationOutcome) -> list[Figure]:
    """Losses on held-out documents by step: a panel for masked tokens, one for next tokens."""
    pretrained = [variant for variant in outcome.variants if variant.is_finished]
    groups = {
        "Masked": [each for each in pretrained if not is_next_token(each)],
        "Next": [each for each in pretrained if is_next_token(each)],
    }
    figures = [_curves(title, variants) for title, variants in groups.items() if variants]
    by_question = _by_question(_of_equal_time(outcome))
    return [*map(_over_minutes, by_question), *figures]


def _by_question(variants: Sequence[VariantOutcome]) -> list[list[VariantOutcome]]:
    """The variants in groups whose losses compare: those of each predict the same."""
    questions = dict.fromkeys(each.question for each in variants)
    return [[each for each in variants if each.question == question] for question in questions]


def _over_minutes(variants: Sequence[VariantOutcome]) -> Figure:
    """Of variants with one question; others have a figure of their own."""
    unit = _unit(variants)
    title = f"{unit[0].upper()}{unit[1:]} over minutes of training, held out"
    chart = _chart_of_lines(title, [(each, minutes_curve(each)) for each in variants], ".4f")
    name = f"over-minutes-{variants[0].name}"
    return chart.finish(name, caption=variants[0].question, alt=title)


def _curves(objective: str, variants: Sequence[VariantOutcome]) -> Figure:
    title = f"{objective}-token loss by step, held out"
    chart = _chart_of_lines(title, [(each, each.curve) for each in variants], ".3f")
    chart.axes.xaxis.set_major_formatter("{x:,.0f}")
    return chart.finish(f"loss-{objective.lower()}", caption="", alt=title)


def _chart_of_lines(
    title: str,
    lines: Sequence[tuple[VariantOutcome, Sequence[tuple[float, float]]]],
    form: str,
) -> Chart:
    """A line for each variant, darker from one to the next, and its last value in the legend."""
    chart = Chart(title, (1.5 * PANEL[0], 1.2 * PANEL[1]))
    others = [variant for variant, _ in lines if not variant.is_reference]
    for variant, curve in lines:
        color = MARK
        if not variant.is_reference:
            share = (others.index(variant) + 1) / len(others)
            color = SHADES[round(share * (len(SHADES) - 1))]
        label = f"{variant.title}, {curve[-1][1]:{form}}"
        line = chart.line(*zip(*curve, strict=True), color=color, label=label)
        line.set_label(shortened(label, 40))
    chart.axes.legend(frameon=False, labelcolor=INK, fontsize=9)
    return chart
