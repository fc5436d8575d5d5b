"""What an ablation varies: settings of pre-training go in, the variants of a study come out.

The studies are those of Devlin et al. 2018, tables 5, 6 and 8, one of the masking rate, one of the
block, one of parts of the recipe, and the controls of continued pre-training.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_core.errors import UserError, nearest
from workflows.paper.published import (
    ADAPTATION_FIGURES,
    BLOCKS,
    MASKING_RATE,
    RECIPE_PARTS,
    TABLE_5,
    TABLE_6,
    TABLE_8,
    PaperAblation,
)
from workflows.pretraining.sections import DROPOUT, MODERN_FIELDS, ModelSettings, Phase
from workflows.pretraining.settings import PretrainSettings
from workflows.settings import validated
from workflows.sweeps.outcome import Point
from workflows.sweeps.settings import with_point

Shape = tuple[int, int, int]
"""Layers, width and attention heads: L, H and A in the paper."""

_ATTENTION_HEAD = 64  # the width of one in all published sizes


@dataclass(frozen=True)
class Variant:
    """One way to pre-train: its name, what it is called, and what it sets.

    `paper_row` is the row of the paper's table that it stands beside, "" for none. All others are
    compared with the `is_reference` one, the paper's own choice. One step of a variant that is not
    `is_trained` changes nothing: a start model, to be measured.
    """

    name: str
    title: str
    changes: Point
    paper_row: str = ""
    is_reference: bool = False
    is_trained: bool = True


@dataclass(frozen=True)
class Study:
    """A question to pre-training: the fields that it varies, and the paper's answer.

    Nobody gives `fields` besides; `derived` are those that variants make of what was given.
    """

    question: str
    fields: tuple[str, ...]
    paper: PaperAblation
    variants: Callable[[PretrainSettings], Sequence[Variant]]
    derived: tuple[str, ...] = ()


def _objectives(settings: PretrainSettings) -> list[Variant]:
    del settings
    said = {
        "mlm_nsp": ("MLM + NSP", "BERT base"),
        "mlm": ("MLM only", "No NSP"),
        "left_to_right": ("left to right", "LTR & No NSP"),
    }
    return [
        Variant(name, title, {"rows.objective": name}, row, is_reference=name == "mlm_nsp")
        for name, (title, row) in said.items()
    ]


def _masking_shares(settings: PretrainSettings) -> list[Variant]:
    """Raises `UserError` where nothing is masked."""
    _refuse_no_masks(settings, "masking")
    variants = []
    for name in TABLE_8.rows:
        masked, _, random = (int(each) / 100 for each in name.split("/"))
        changes = {"rows.mask_token_share": masked, "rows.random_token_share": random}
        variants.append(Variant(name, name, changes, name, is_reference=name == "80/10/10"))
    return variants


def _masking_rates(settings: PretrainSettings) -> list[Variant]:
    """Raises `UserError` where nothing is masked, or a phase has a rate of its own."""
    _refuse_own_rates(settings, "masking_rate")
    return [
        Variant(
            f"{rate:g}",
            f"{rate:.0%} predicted",
            {"rows.masked_share": rate},
            is_reference=rate == 0.15,
        )
        for rate in (0.1, 0.15, 0.2, 0.3, 0.4)
    ]


def _refuse_no_masks(settings: PretrainSettings, study: str) -> None:
    if settings.rows.objective == "left_to_right":
        what = f"the study {study} varies masks, and left_to_right has none"
        raise UserError(what, "--rows.objective", "leave it out")


def _refuse_own_rates(settings: PretrainSettings, study: str) -> None:
    _refuse_no_masks(settings, study)
    if any(phase.masked_share is not None for phase in settings.phases):
        what = f"the study {study} varies the masking rate, and a phase has its own"
        raise UserError(what, "masked_share of --phases", "leave it out")


def _sizes(settings: PretrainSettings) -> list[Variant]:
    own = shape_of(settings)
    fields = STUDIES["size"].fields
    variants = []
    for shape, row in shapes_around(own).items():
        # What is as in the settings is left out: so the run has the name that it has elsewhere.
        changes = {
            name: value
            for name, value, before in zip(fields, shape, own, strict=False)
            if value != before
        }
        name = shape_text(shape)
        variants.append(Variant(name, name, changes, row, is_reference=shape == own))
    return variants


def shape_of(settings: PretrainSettings) -> Shape:
    """The shape that settings of pre-training have."""
    config = settings.model.config(vocab_size=30_000, pad_token_id=0)
    return config.num_hidden_layers, config.hidden_size, config.num_attention_heads


def shape_text(shape: Shape) -> str:
    """As the paper's table 6 writes it: 12/768/12."""
    return "/".join(map(str, shape))


def shapes_around(own: Shape) -> dict[Shape, str]:
    """The shapes of table 6, or, for an encoder that is not in it, as many times its own.

    Each with the row of the paper that it stands for. Widths are rounded to whole attention heads
    of 64, layers and heads to at least one; shapes that become the same are one.
    """
    papers: dict[str, Shape] = {
        row: (int(each[0]), int(each[1]), int(each[2]))
        for row in TABLE_6.rows
        for each in [row.split("/")]
    }
    if own in papers.values():
        return {shape: row for row, shape in papers.items()}
    layers, width, heads = own
    found: dict[Shape, str] = {}
    for row, paper in papers.items():
        wide = max(1, round(width * paper[1] / 768 / _ATTENTION_HEAD)) * _ATTENTION_HEAD
        shape = (
            max(1, round(layers * paper[0] / 12)),
            width if paper[1] == 768 else wide,
            max(1, round(heads * paper[2] / 12)),
        )
        found[shape] = row  # the later row is the one that was rounded less
    return found


BLOCK = "block"


def _blocks(settings: PretrainSettings) -> list[Variant]:
    """Each with the dropout that it has by default, unless one was given for both.

    That of settings with the modern block is for both; what it alone has is the modern one's.
    """
    modern: dict[str, Any] = {"model.block": "modern", "model.position_embedding": "rotary"}
    given = settings.model.model_fields_set
    modern |= {f"model.{name}": 0.0 for name in DROPOUT if name not in given}
    papers: dict[str, Any] = {"model.block": "bert"}
    if settings.model.block == "modern":
        own = ("position_embedding", *MODERN_FIELDS)
        papers |= {f"model.{name}": ModelSettings.model_fields[name].default for name in own}
        papers |= {f"model.{name}": getattr(settings.model, name) for name in DROPOUT}
    if any(phase.global_rope_theta is not None for phase in settings.phases):
        papers["phases"] = _without(settings.phases, "global_rope_theta")
    return [
        Variant("bert", "the paper's block", papers, is_reference=True),
        Variant("modern", "modern block", modern),
    ]


def _without(phases: Sequence[Phase], name: str) -> list[dict[str, Any]]:
    """The phases without what they say of one field."""
    return [phase.model_dump(mode="json", exclude={name}) for phase in phases]


def _recipes(settings: PretrainSettings) -> list[Variant]:
    """What newer recipes do otherwise, each alone; all are measured on the same held-out rows.

    Optimizers are compared where they have one learning rate: LAMB's is another. Raises `UserError`
    where nothing is masked, and for masking rates that cannot be doubled, or are a phase's own.
    """
    own = settings.rows.masked_share
    _refuse_own_rates(settings, "recipe")
    if 2 * own >= 1:
        what = f"the study recipe doubles the masking rate, which is {own:.0%}"
        raise UserError(what, "--rows.masked_share", "train with less than 50%")
    measured = {"evaluation.masked_share": settings.heldout_rows.masked_share}
    growing = [
        part
        for phase, batch in zip(settings.phases, settings.batches, strict=True)
        for quarter in [{"global_batch_size": max(1, batch.global_batch_size // 4)}]
        for part in _parts(phase, [(0.2, quarter), (0.8, {})])
    ]
    shares = [(1 / 3, {"masked_share": round(times * own, 6)}) for times in (2, 1.5, 1)]
    falling = [part for phase in settings.phases for part in _parts(phase, shares)]
    others = {"adamw": {"stableadamw": "StableAdamW"}, "stableadamw": {"adamw": "AdamW"}}
    optimizers = others.get(settings.optimizer.name, {})
    packing = ("padded", "padded rows") if settings.batch.packed else ("packed", "packed rows")
    return [
        Variant("reference", "as given", {}, is_reference=True),
        Variant("masks", f"{2 * own:.0%} masked", {"rows.masked_share": 2 * own} | measured),
        Variant("falling_masks", f"{2 * own:.0%} masked, falling", {"phases": falling} | measured),
        *(Variant(name, title, {"optimizer.name": name}) for name, title in optimizers.items()),
        Variant(*packing, {"batch.packed": not settings.batch.packed}),
        Variant("growing_batches", "batches that grow", {"phases": growing}),
    ]


def _parts(
    phase: Phase, parts: Sequence[tuple[float, Mapping[str, Any]]]
) -> Iterator[dict[str, Any]]:
    """A phase in parts: shares of its steps, one step at least, and what differs in them."""
    left = phase.steps
    for number, (share, own) in enumerate(parts, start=1):
        steps = max(1, left if number == len(parts) else round(share * phase.steps))
        left -= steps
        yield phase.model_dump(mode="json") | {"steps": steps} | dict(own)


ADAPTATION, ADAPTED, CONTROL = "adaptation", "adapted", "control"
_NO_LEARNING_RATE = 1e-60
"""0 in single precision: changes no weight."""


_FROM_SCRATCH = {
    "start_from": None,
    "vocabulary": "keep",  # that of the shards, whatever the start model's was
    "new_pieces": PretrainSettings.model_fields["new_pieces"].default,
    "model.position_extension": "cyclic",
}


def _adaptation(settings: PretrainSettings) -> list[Variant]:
    """The start model, adapted, as many steps on other text, and from scratch."""
    measured_as = {"sequence_length", "global_batch_size", "micro_batch_size"}
    one_step = settings.phases[-1].model_dump(mode="json", include=measured_as) | {"steps": 1}
    unchanged = {"phases": [one_step], "optimizer.peak_learning_rate": _NO_LEARNING_RATE}
    from_scratch = _FROM_SCRATCH
    if any(phase.trains != "all" for phase in settings.phases):  # it has no new pieces
        from_scratch = _FROM_SCRATCH | {"phases": _without(settings.phases, "trains")}
    return [
        Variant("start", "start model", unchanged, "RoBERTa", is_reference=True, is_trained=False),
        Variant(ADAPTED, "adapted", {}, "adapted to the domain"),
        Variant(CONTROL, "control: other text", {}, "adapted to another domain"),
        Variant("scratch", "from scratch", from_scratch),
    ]


STUDIES: dict[str, Study] = {
    "objective": Study(
        "What do next sentences buy, and what bidirectionality?",
        ("rows.objective",),
        TABLE_5,
        _objectives,
    ),
    "masking": Study(
        "What should stand in the place of a predicted token?",
        ("rows.mask_token_share", "rows.random_token_share"),
        TABLE_8,
        _masking_shares,
    ),
    "masking_rate": Study(
        "How many tokens should be predicted?", ("rows.masked_share",), MASKING_RATE, _masking_rates
    ),
    "size": Study(
        "How large should the encoder be?",
        (
            "model.num_hidden_layers",
            "model.hidden_size",
            "model.num_attention_heads",
            "model.intermediate_size",  # follows the width
        ),
        TABLE_6,
        _sizes,
    ),
    BLOCK: Study(
        "Does the modern block learn more than the paper's, of as many parameters?",
        ("model.position_embedding",),
        BLOCKS,
        _blocks,
        ("phases", *(f"model.{name}" for name in ("block", *DROPOUT, *MODERN_FIELDS))),
    ),
    "recipe": Study(
        "Which parts of newer recipes help here?",
        (),  # each variant does one thing otherwise than what was given
        RECIPE_PARTS,
        _recipes,
        (
            "phases",
            "optimizer.name",
            "batch.packed",
            "rows.masked_share",
            "evaluation.masked_share",
        ),
    ),
    ADAPTATION: Study(
        "Does continued pre-training on this text help, beyond as much of it on other text?",
        (),
        ADAPTATION_FIGURES,
        _adaptation,
    ),
}
"""A study is its variants, and a line here."""


def find_study(name: str) -> Study:
    """The study of a name; raises `UserError` for an unknown one."""
    if name not in STUDIES:
        remedy = f"one of {', '.join(STUDIES)}"
        raise UserError(f"unknown study{nearest(name, STUDIES)}", f"--study {name}", remedy)
    return STUDIES[name]


def chosen_variants(name: str, settings: PretrainSettings, wanted: Sequence[str]) -> list[Variant]:
    """The variants of a study that are wanted, all where none are named, and its reference.

    In the study's order. Raises `UserError` for a name that is none of them.
    """
    variants = {variant.name: variant for variant in find_study(name).variants(settings)}
    for each in wanted:
        if each not in variants:
            near, remedy = nearest(each, variants), f"one of {', '.join(variants)}"
            raise UserError(f"unknown variant{near}", f"--variants {each}", remedy)
    return [
        variant
        for variant in variants.values()
        if not wanted or variant.name in wanted or variant.is_reference
    ]


def variant_settings(settings: PretrainSettings, variant: Variant) -> PretrainSettings:
    """The settings of a variant's pre-training: those given, with what the variant sets.

    Raises `UserError` where the two do not go together.
    """
    values = settings.model_dump(mode="json", include=set(PretrainSettings.model_fields))
    values["model"] = settings.model.model_dump(mode="json", exclude_unset=True)
    values = with_point(values, variant.changes) | {"name": None}
    try:
        return validated(PretrainSettings, values, "the settings")
    except UserError as error:
        raise UserError(f"{variant.title}: {error.what}", error.where, error.remedy) from error


def on_its_text(
    variant: Variant, settings: PretrainSettings, domain: Path, control: Path
) -> PretrainSettings:
    """With the text that a variant of an adaptation reads; the other one is measured, too."""
    text, other = (control, domain) if variant.name == CONTROL else (domain, control)
    evaluation = settings.evaluation.model_copy(update={"other": other})
    return settings.model_copy(update={"shards": text, "evaluation": evaluation})
