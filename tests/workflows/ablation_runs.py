"""Ablations for tests: tiny encoders of a made-up language and a task in it, and outcomes."""

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from finetuning_runs import write_task
from pretraining_runs import REPOSITORY, Run, write_corpus

from workflows.ablations.ablation import VARIANT, AblationOutcome, VariantOutcome
from workflows.ablations.settings import AblateSettings, parse
from workflows.ablations.studies import (
    chosen_variants,
    shape_of,
    shape_text,
    variant_settings,
)
from workflows.sweeps.outcome import SweepOutcome, TrialOutcome


def write_inputs(folder: Path) -> Path:
    """Token shards in `corpus`, and in `data` train and dev of a task that can be learned."""
    write_corpus(folder / "corpus")
    write_task(folder / "data", train=300)
    return folder


@dataclass
class AblationCommand(Run):
    """An ablation over what lies in `shards`, as a process; `settings` are options as well.

    Those of several values are tuples.
    """

    program: ClassVar[Path] = REPOSITORY / "workflows" / "ablate.py"

    @property
    def folder(self) -> Path:
        return self.storage / "ablations" / self.name

    def arguments(self) -> list[str]:
        """The command line after the program's name: those of a pre-training run, and more."""
        own = self.settings
        settings: dict[str, object] = {
            "study": "objective",
            "task": f"classification={self.shards / 'data'}",
            "seeds": 2,
            "finetuning.epochs": 2,
            "finetuning.max_length": 32,
            **own,
        }
        of_pretraining = Run(
            self.storage,
            self.name,
            self.shards / "corpus",
            self.steps,
            {"checkpoint.every_steps": 5},
        )
        given = of_pretraining.arguments()
        for name, value in settings.items():
            values = value if isinstance(value, tuple) else (value,)
            given += [f"--{name}", *map(str, values)]
        return given


def ablation_settings(storage: Path, inputs: Path, **changed: object) -> AblateSettings:
    """The settings of a small ablation."""
    options = {name.replace("__", "."): value for name, value in changed.items()}
    return parse(AblationCommand(storage, "ablation", inputs, 8, options).arguments())


CRITERIA = {
    "docs_library": "accuracy",
    "docs_parameters": "f1",
    "docs_answers": "f1",
    "mnli": "accuracy",
    "mrpc": "f1",
    "sst2": "accuracy",
    "conll2003": "f1",
    "conll2003:features": "f1",
}


def made_up_variants(study, *options):
    """The pre-trainings of a study, finished; each a little worse than the one before."""
    settings = parse(["--study", study, *options])
    found = []
    for number, variant in enumerate(chosen_variants(study, settings, settings.variants)):
        own = variant_settings(settings, variant)
        is_next = own.rows.objective == "left_to_right"
        first = "next" if is_next else "masked"
        loss = 5.03 + 0.07 * number - (0.4 if is_next else 0)
        figures = {
            f"heldout/{first}_token_loss": loss,
            f"heldout/{first}_token_accuracy": 0.22 - 0.004 * number,
            "heldout/next_token_perplexity" if is_next else "heldout/perplexity": 2.71828**loss,
            "heldout/unigram_loss": 6.05,
        }
        if own.rows.objective == "mlm_nsp":
            figures |= {"heldout/next_sentence_accuracy": 0.67, "heldout/next_sentence_loss": 0.6}
        question = "next tokens" if is_next else f"masked tokens, {own.rows.mask_token_share:g}"
        found.append(
            VariantOutcome(
                name=variant.name,
                title=variant.title,
                run=f"quickstart-{number:08x}",
                shape=shape_text(shape_of(own)),
                question=question,
                paper_row=variant.paper_row,
                is_reference=variant.is_reference,
                num_parameters=1_463_936 + 100_000 * number,
                figures=figures,
                curve=tuple((325 * k, loss + 2.0 * 0.72**k) for k in range(1, 9)),
                num_tokens=4_607_326,
                seconds=400.0 + 20 * number,
                device_hours=0.11,
            )
        )
    return tuple(found)


def made_up_sweep(key, variants, effects, *, seeds=3, noise=0.6):
    """Fine-tunings of all variants; `effects` are points from the reference, by variant."""
    task, criterion = key.partition(":")[0], CRITERIA[key]
    trials = []
    for variant in variants:
        for seed in range(seeds):
            draw = random.Random(f"{key} {variant.name} {seed}")
            score = (62 + effects.get(variant.name, 0) + draw.gauss(0, noise)) / 100
            trials.append(
                TrialOutcome(
                    name=f"{task}-{draw.getrandbits(32):08x}",
                    point={VARIANT: variant.name},
                    seed=seed,
                    score=score,
                    best_epoch=3,
                    figures={f"dev/{criterion}": score, "dev/accuracy": score, "dev/loss": 1.1},
                    seconds=50.0,
                    device_hours=0.014,
                    num_tokens=190_000,
                )
            )
    return SweepOutcome(
        name=f"{task}-sweep",
        task=task,
        criterion=criterion,
        model="quickstart-00000000",
        data="docs://",
        num_train=2500,
        num_dev=600,
        axes=(VARIANT,),
        trials=tuple(trials),
        settings={},
    )


def made_up_ablation(study, effects, *options, seeds=3, **changed):
    """An ablation that has finished; `effects` are points by variant, by task."""
    variants = made_up_variants(study, *options)
    tasks = {key: made_up_sweep(key, variants, each, seeds=seeds) for key, each in effects.items()}
    outcome = AblationOutcome(
        name=f"{study}-1f2e3d4c",
        study=study,
        text="docs://",
        variants=variants,
        tasks=tasks,
        wanted_tasks=tuple(effects),
        seeds=seeds,
        recipe=("All encoders see the same text.", "All learn alike."),
        wall_seconds=2_400.0,
        at_once=2,
    )
    return replace(outcome, **changed)


def objective(**changed):
    """Table 5: left to right is clearly worse, next sentences make no difference."""
    effects = {
        "docs_library": {"left_to_right": -1.0},
        "docs_parameters": {"left_to_right": -6.0, "mlm": 0.2},
        "docs_answers": {"left_to_right": -9.0, "mlm": -0.4},
    }
    return made_up_ablation("objective", effects, **changed)


def masking():
    """Table 8 on the paper's own tasks."""
    effects = {
        "mnli": {"0/0/100": -0.6, "0/20/80": -0.5},
        "conll2003": {"100/0/0": -0.5},
        "conll2003:features": {"100/0/0": -4.0, "0/0/100": 9.0},
    }
    return made_up_ablation("masking", effects)


def size():
    """Table 6 at small scale, with the paper's MRPC and SST-2 among the tasks."""
    wide = {"1/128/2": -4, "1/128/1": -3, "2/192/3": 2.5, "4/192/3": 5}
    return made_up_ablation("size", {"docs_library": wide, "mrpc": wide, "sst2": wide})


def rates():
    """The masking rate, of which the paper has no table."""
    return made_up_ablation("masking_rate", {"docs_library": {"0.4": 2.0}, "docs_answers": {}})


def adaptation(**changed):
    """Adapted it is better than the control on one task, and than the start model on both."""
    effects = {
        "docs_library": {"adapted": 9.0, "control": 1.0, "scratch": -9.0},
        "mrpc": {"adapted": 4.0, "control": 4.0, "scratch": -9.0},
    }
    options = ("--preset", "adapt", "--start_from", "general", "--control", "other")
    whole = made_up_ablation("adaptation", effects, *options, **changed)
    bits = zip(whole.variants, (2.1, 1.7, 2.0, 2.9), strict=True)
    variants = tuple(
        replace(
            variant,
            figures=variant.figures | {"heldout/bits_per_byte": own, "other/bits_per_byte": 2.2},
        )
        for variant, own in bits
    )
    return replace(whole, variants=variants)


def without_effect():
    """Nothing can be told apart."""
    return made_up_ablation("objective", {"docs_library": {}, "docs_answers": {}})


def single_seed():
    """One seed says nothing of noise."""
    return objective(seeds=1)


def not_begun():
    """Before the first step."""
    variants = made_up_variants("objective")
    blank = tuple(
        replace(variant, figures={}, curve=(), num_tokens=0, seconds=0.0, device_hours=0.0)
        for variant in variants
    )
    return objective(variants=blank, tasks={}, wall_seconds=0.0)


def half_way():
    """One encoder has failed; of the second task some fine-tunings are missing, one has failed."""
    whole = objective()
    first, second, third = whole.variants
    lost = replace(third, figures={}, curve=(), failure="not finite at /srv/machine/run step 7")
    library = whole.tasks["docs_library"]
    library = replace(library, trials=library.trials[:6])
    answers = whole.tasks["docs_answers"]
    trials = [
        replace(answers.trials[0], score=None, figures={}, failure="<b>out</b> of memory | lower"),
        answers.trials[1],
        *(replace(trial, score=None, figures={}) for trial in answers.trials[2:6]),
    ]
    answers = replace(answers, trials=tuple(trials))
    tasks = {"docs_library": library, "docs_answers": answers}
    return replace(whole, variants=(first, second, lost), tasks=tasks)


OUTCOMES = {
    each.__name__: each
    for each in (
        objective,
        masking,
        size,
        rates,
        adaptation,
        without_effect,
        single_seed,
        not_begun,
        half_way,
    )
}
