"""The settings of a pre-training run, each with its unit; the defaults are the paper's base."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from bert_core.command_help import Example, Guide
from bert_core.config import ModelConfig
from bert_core.settings import (
    BINS_VERSION,
    ORDER_VERSION,
    BatchSettings,
    DistillationSettings,
    PretrainingOptimizerSettings,
    Recompute,
    RowSettings,
)
from workflows.pretraining.sections import EvaluationSettings, ModelSettings, Phase
from workflows.training.run_settings import REGISTER, RunSettings

ADAPT = "adapt"
"""The preset that continues from an encoder."""


class PretrainSettings(RunSettings):
    """Pre-trains a BERT encoder on token shards and registers it in MLflow.

    Without arguments: the quickstart, on the documentation that is on this machine.
    """

    guide: ClassVar[Guide] = Guide(
        examples=(
            Example("the quickstart: a small encoder on the documentation of this machine", ""),
            Example("an encoder of 4 layers on prepared shards", "--preset mini --shards shards"),
            Example(
                "the paper's base size on GPUs, with a lower learning rate",
                "--preset base --profile gpu --shards shards --optimizer.peak_learning_rate 5e-5",
            ),
        ),
        common=(
            "preset",
            "profile",
            "shards",
            "text",
            "name",
            "storage",
            "fresh",
            "seed",
            "optimizer.peak_learning_rate",
            "batch.global_batch_size",
        ),
        aliases=REGISTER,
    )

    machine_fields = RunSettings.machine_fields | {
        "preset",
        "shards",
        "replay",
        "decay_from",
        "teacher",
    }
    trains_on_tpu = True

    preset: str = Field(
        default="quickstart", description="what to train: name of a preset, or a YAML file"
    )
    shards: Path | None = Field(
        default=None,
        description="folder of token shards; by default --text is prepared first",
    )
    text: list[str] = Field(default=["docs://"], description="text to prepare without --shards")
    text_column: str = Field(default="text", description="its column in .jsonl and .parquet files")
    vocabulary_size: int = Field(
        default=30_000, ge=100, description="size of the trained vocabulary, without --shards"
    )
    heldout_share: float = Field(
        default=0.01,
        gt=0,
        lt=1,
        description="share of documents for evaluation, without --shards",
    )
    start_from: str | None = Field(
        default=None,
        description="encoder to continue from: model folder, models:/NAME@ALIAS, hf://OWNER/NAME or"
        " finished run; shape and tokenizer are those of this model",
    )
    vocabulary: Literal["keep", "extend"] = Field(
        default="keep",
        description="with --start_from, extend: add word pieces learned from the text, as"
        " prepare.py --new_pieces does",
    )
    new_pieces: int = Field(
        default=2000, ge=1, le=100_000, description="word pieces to learn from --text"
    )
    replay: Path | None = Field(
        default=None,
        description="folder of token shards of a second corpus, such as the one that the encoder"
        " was trained on, of which rows stand among those of --shards",
    )
    replay_share: float = Field(
        default=0.05, gt=0, lt=1, description="share of the rows that are of --replay"
    )
    teacher: str | None = Field(
        default=None,
        description="pre-trained model of the same tokenizer to learn from, too: a model folder,"
        " models:/NAME@ALIAS, hf://OWNER/NAME or finished run",
    )
    distillation: DistillationSettings = Field(default_factory=DistillationSettings)
    model: ModelSettings = Field(default_factory=ModelSettings)
    rows: RowSettings = Field(default_factory=RowSettings)
    batch: BatchSettings = Field(default_factory=BatchSettings)
    phases: list[Phase] = Field(
        default=[
            Phase(sequence_length=128, steps=900_000),
            Phase(sequence_length=512, steps=100_000),
        ],
        min_length=1,
        description="sequence lengths and steps, in order; one schedule for all. A phase may have"
        " its own global_batch_size, micro_batch_size, masked_share and global_rope_theta",
    )
    optimizer: PretrainingOptimizerSettings = Field(  # pyright: ignore - frozen, so it may narrow
        default_factory=PretrainingOptimizerSettings
    )
    compile: bool = Field(
        default=False,
        description="compile the forward pass on GPU; on TPU, XLA always compiles the step",
    )
    decay_from: Path | None = Field(
        default=None,
        description="checkpoint of the stable part of a run with --optimizer.schedule wsd: model"
        " and optimizer go on, with a learning rate that only falls",
    )
    recompute: Recompute = "nothing"
    evaluation: EvaluationSettings = Field(default_factory=EvaluationSettings)

    @model_validator(mode="before")
    @classmethod
    def _the_block_has_defaults(cls, values: Any) -> Any:  # noqa: ANN401 - what a user wrote
        """The modern block reads one text, and from scratch predicts more of it: by default.

        Why more: docs/guides/ablations.md#recipe. Both blocks are compared at the paper's rate.
        """
        rows, model = values.get("rows", {}), values.get("model")
        both = cls._compares_blocks(values)
        is_modern = isinstance(model, dict) and model.get("block") == "modern"
        if not (is_modern or both) or not isinstance(rows, dict):
            return values
        if rows.get("objective", "mlm") != "mlm":
            return values  # it will be refused for that, not for what stands here
        usual = {"objective": "mlm", "input_format": "full_sentences"}
        usual |= {} if both or values.get("start_from") else {"masked_share": 0.3}
        return values | {"rows": usual | rows}

    @classmethod
    def _compares_blocks(cls, values: Mapping[str, Any]) -> bool:  # noqa: ARG003 - of an ablation
        return False

    @model_validator(mode="after")
    def _the_block_can_be_trained_so(self) -> Self:
        if self.model.block != "modern":
            return self
        if self.rows.objective != "mlm" or self.rows.input_format != "full_sentences":
            raise ValueError(
                "the modern block reads one text, both ways: set --rows.objective mlm and "
                "--rows.input_format full_sentences"
            )
        if self.cluster.tpu is not None:
            raise ValueError("the modern block does not run on TPU: take another --profile")
        return self

    @model_validator(mode="after")
    def _rows_fit_the_positions(self) -> Self:
        follows_start = "max_position_embeddings" not in self.model.model_fields_set
        if self.start_from is not None and follows_start:  # `continued_from` knows how many
            return self
        longest = max(phase.sequence_length for phase in self.phases)
        if longest > self.model.max_position_embeddings:
            raise ValueError(
                f"a phase of {longest} tokens is longer than the position table: raise "
                f"--model.max_position_embeddings from {self.model.max_position_embeddings}"
            )
        return self

    @model_validator(mode="after")
    def _phases_are_of_this_model(self) -> Self:
        if self.rows.objective == "left_to_right" and self.evaluation.masked_share is not None:
            raise ValueError("left_to_right masks nothing: leave out --evaluation.masked_share")
        for number, phase in enumerate(self.phases):
            if phase.masked_share is not None:
                self.rows_of(number)  # raises where nothing is masked
            # With a start model the block is known once that is read, and checked again then.
            is_known = self.start_from is None or "block" in self.model.model_fields_set
            if phase.global_rope_theta is not None and is_known and self.model.block != "modern":
                raise ValueError(
                    "a phase has global_rope_theta, and the block no rotary positions: leave it "
                    "out, or add --model.block modern"
                )
        return self

    @model_validator(mode="after")
    def _no_option_is_ignored(self) -> Self:
        """Options that need another one, where that is not given."""
        starts, extends = self.start_from is not None, self.vocabulary == "extend"
        fields = type(self).model_fields
        without = {
            "vocabulary": (starts, "--start_from MODEL, whose vocabulary is extended"),
            "new_pieces": (extends, "--vocabulary extend"),
            "replay_share": (self.replay is not None, "--replay SHARDS"),
            "distillation": (self.teacher is not None, "--teacher MODEL"),
        }
        for name, (is_used, remedy) in without.items():
            if not is_used and getattr(self, name) != fields[name].get_default(
                call_default_factory=True
            ):
                raise ValueError(f"{name} needs another option: give {remedy}")
        if starts and self.vocabulary_size != fields["vocabulary_size"].default:
            raise ValueError(
                "the vocabulary is the start model's: leave out --vocabulary_size, or, if the "
                "preset sets it, take --preset adapt"
            )
        if not starts and self.model.position_extension != "cyclic":
            raise ValueError("no position table is extended: give --start_from MODEL")
        if not extends and any(phase.trains == "new_pieces" for phase in self.phases):
            raise ValueError(
                "a phase trains new pieces, and there are none: add --vocabulary extend"
            )
        if self.decay_from is not None and self.optimizer.schedule != "linear":
            raise ValueError("a run with --decay_from falls linearly: leave out optimizer.schedule")
        return self

    @model_validator(mode="after")
    def _a_teacher_is_computed_as_it_is(self) -> Self:
        if self.teacher is not None and self.compile:
            raise ValueError("a step with a teacher is not compiled: leave out --compile")
        if self.teacher is not None and self.cluster.tpu is not None:
            raise ValueError("on TPU there is no teacher: leave out --teacher")
        return self

    @model_validator(mode="after")
    def _every_worker_has_rows(self) -> Self:
        cluster, rows = self.cluster, self.fewest_rows
        # A slice of a TPU has all its hosts: `with_rows_for_every_worker` cannot leave some out.
        workers = cluster.fewest_workers if cluster.tpu is None else cluster.most_workers
        if workers > rows:
            raise ValueError(
                f"{workers} workers cannot share {rows} rows a step: raise "
                "--batch.global_batch_size or lower --cluster.num_workers"
            )
        return self

    @model_validator(mode="after")
    def _packed_attention_exists(self) -> Self:
        """The kernel for packed rows on GPU works in 16 bits and has no dropout."""
        if self.batch.packed and self.cluster.use_gpu:
            if self.model.attention_probs_dropout_prob:
                raise ValueError(
                    "packed rows have no attention dropout on GPU: set "
                    "--model.attention_probs_dropout_prob 0 or --batch.packed false"
                )
            if self.precision == "float32":
                raise ValueError(
                    "packed rows need 16 bits on GPU: set --precision bfloat16 or "
                    "--batch.packed false"
                )
        return self

    @model_validator(mode="after")
    def _tpu_has_padded_rows(self) -> Self:
        """The TPU's profiles say so too, over what a preset says; here it was asked for."""
        if self.cluster.tpu is not None and self.batch.packed:
            raise ValueError("packed rows do not run on TPU: set --batch.packed false")
        if self.cluster.tpu is not None and self.recompute != "nothing":
            raise ValueError("on TPU nothing is recomputed: set --recompute nothing")
        if self.cluster.tpu is not None and self.optimizer.name == "stableadamw":
            raise ValueError("on TPU updates are not clipped: set --optimizer.name adamw or lamb")
        if self.cluster.tpu is not None and any(phase.trains != "all" for phase in self.phases):
            raise ValueError("on TPU all phases train all weights: leave out trains in --phases")
        return self

    @property
    def total_steps(self) -> int:
        """Optimizer steps of all phases."""
        return sum(phase.steps for phase in self.phases)

    @property
    def warmup_steps(self) -> int:
        """Steps of the warm-up; none where the learning rate has been up before."""
        return 0 if self.decay_from is not None else self.optimizer.warmup_of(self.total_steps)

    def phase_at(self, step: int) -> tuple[int, int]:
        """The number of the phase that step (from 0) falls into, and its first step."""
        first = 0
        for number, phase in enumerate(self.phases):
            if step < first + phase.steps:
                return number, first
            first += phase.steps
        raise ValueError(f"step {step} is beyond the last of {first}")

    def first_of_its_rows(self, phase: int) -> int:
        """The first of the phases up to this one that have rows of one length: one sequence."""
        length = self.phases[phase].sequence_length
        while phase and self.phases[phase - 1].sequence_length == length:
            phase -= 1
        return phase

    @property
    def batches(self) -> list[BatchSettings]:
        """The batch settings of each phase."""
        own = (phase.model_dump(include={*BatchSettings.model_fields}) for phase in self.phases)
        return [self.batch.model_copy(update=changes) for changes in own]

    @property
    def fewest_rows(self) -> int:
        """Rows of a step of the phase with the smallest batch."""
        return min(batch.global_batch_size for batch in self.batches)

    @property
    def rows_per_step(self) -> list[int]:
        """The rows of a step: one number, or the fewest and the most of all phases."""
        sizes = {batch.global_batch_size for batch in self.batches}
        return sorted({min(sizes), max(sizes)})

    def with_rows_for_every_worker(self) -> Self:
        """These settings with no more workers, at most, than a step has rows in every phase."""
        cluster, rows = self.cluster, self.fewest_rows
        if cluster.most_workers <= rows:
            return self
        fewer = cluster.model_copy(update={"num_workers": (cluster.fewest_workers, rows)})
        return self.model_copy(update={"cluster": fewer})

    def rows_of(self, phase: int) -> RowSettings:
        """The rows of a phase."""
        changes = self.phases[phase].model_dump(include={"masked_share"})
        return RowSettings.model_validate(self.rows.model_dump() | changes)

    @property
    def heldout_rows(self) -> RowSettings:
        """Held-out rows: the same in all phases, so that what is measured in them compares."""
        changes = self.evaluation.model_dump(include={"masked_share"}, exclude_none=True)
        return self.rows.model_copy(update=changes)

    def global_rope_theta_of(self, phase: int) -> float:
        """The base of rotary positions in the global layers of the modern block, in a phase."""
        return self.phases[phase].global_rope_theta or self.model.global_rope_theta

    def continued_from(self, start: ModelConfig) -> Self:
        """These settings with the architecture of a start model.

        Raises `ValueError` for what the start model contradicts.
        """
        if start.is_decoder != (self.rows.objective == "left_to_right"):
            reads = "left to right" if start.is_decoder else "both ways"
            raise ValueError(
                f"the start model reads {reads}: not with --rows.objective {self.rows.objective}"
            )
        if self.rows.input_format == "segment_pair" and start.type_vocab_size < 2:
            raise ValueError(
                "the start model knows one segment: set --rows.input_format full_sentences and "
                "--rows.objective mlm"
            )
        model = self.model.continued_from(start)
        values = self.model_dump(mode="json") | {"model": model.model_dump(mode="json")}
        type(self).model_validate(values)  # whether the rest fits this model
        return self.model_copy(update={"model": model})

    @property
    def heads(self) -> tuple[str, ...]:
        """The heads that the objective trains, by their names in `HEADS`."""
        if self.rows.objective == "left_to_right":
            return ("next_token",)
        pairs = self.rows.objective == "mlm_nsp"
        return ("masked_token", "pooler", "next_sentence") if pairs else ("masked_token",)

    def architecture(self, vocab_size: int, pad_token_id: int) -> ModelConfig:
        """The encoder for a vocabulary; it attends to the left only where the objective does."""
        is_decoder = self.rows.objective == "left_to_right"
        return self.model.config(vocab_size, pad_token_id, is_decoder=is_decoder)

    def recipe(self) -> dict[str, object]:
        """What decides the weights that come out: a run may only go on under the same.

        Fields that came later are left out where they say what was so before there were any: a
        default run keeps its name, and an older one may go on.
        """
        changeable = {"preset", "profile", "name", "storage", "fresh", "shards", "text"}
        # The contents of these stand in the recipe beside that of the data.
        changeable |= {"start_from", "replay", "decay_from", "teacher"}
        if self.teacher is None:
            changeable |= {"distillation"}
        if self.replay is None:
            changeable |= {"replay_share"}
        changeable |= {
            "text_column",
            "vocabulary_size",
            "heldout_share",
            "vocabulary",
            "new_pieces",
        }
        changeable |= {"tracking", "cluster", "checkpoint", "evaluation", "recompute"}
        values = self.model_dump(mode="json", exclude=changeable)
        for section, fields in self._as_before().items():
            for name, value in fields.items():
                if values[section][name] == value:
                    del values[section][name]
        if self.batch.packed:
            values["batch"]["bins"] = BINS_VERSION
        goes_on = any(self.first_of_its_rows(each) != each for each in range(len(self.phases)))
        if goes_on or self.decay_from is not None:
            values["rows"]["order"] = ORDER_VERSION
        if self.evaluation.masked_share is not None:
            # It decides no weights, but every figure: only runs of one share are comparable.
            values["evaluation"] = {"masked_share": self.evaluation.masked_share}
        return values

    def _as_before(self) -> dict[str, dict[str, object]]:
        """What older runs did, by the fields that they did not have."""
        alone = self.rows.objective == "mlm"  # it had full sentences
        return {
            "rows": {"input_format": "full_sentences" if alone else "segment_pair"},
            "model": {
                "hidden_size": None,
                "num_attention_heads": None,
                "intermediate_size": None,
                "position_extension": "cyclic",
                "block": "bert",
                "local_attention": 128,
                "global_every": 3,
                "global_rope_theta": 10_000.0,
            },
            "optimizer": {"warmup_share": None, "schedule": "linear", "decay_share": 0.1},
        }


class AdaptSettings(PretrainSettings):
    """Continues the pre-training of an encoder on other text and registers the result in MLflow.

    The encoder, its tokenizer and its masked-token head are taken over; the optimizer is fresh.
    """

    guide: ClassVar[Guide] = Guide(
        examples=(
            Example(
                "a model folder, on the documentation of this machine",
                "--start_from MODEL_FOLDER",
            ),
            Example(
                "a model of the Hugging Face Hub, on text files",
                "--start_from hf://google-bert/bert-base-uncased --text papers/*.txt",
            ),
            Example(
                "a registered version, on prepared shards, with a lower learning rate",
                "--start_from models:/bert@champion --shards shards"
                " --optimizer.peak_learning_rate 5e-5",
            ),
        ),
        common=(
            "start_from",
            "text",
            "shards",
            "phases",
            "optimizer.peak_learning_rate",
            "batch.global_batch_size",
            "profile",
            "name",
            "storage",
            "fresh",
        ),
        aliases=REGISTER,
    )

    preset: str = Field(
        default=ADAPT, description="what to train: name of a preset, or a YAML file"
    )
    start_from: str = Field(  # pyright: ignore - frozen, so it may narrow
        description=PretrainSettings.model_fields["start_from"].description
    )


def out_of_memory_remedy(settings: PretrainSettings) -> str:
    """What makes a step fit: the same run with less in memory, or else another one."""
    if settings.recompute == "nothing" and settings.cluster.tpu is None:
        return "add --recompute layers to the same command"
    pairs = zip(settings.phases, settings.batches, strict=True)
    sizes = [phase.sequence_length * batch.rows_at_once for phase, batch in pairs]
    return lower_micro_batch(settings, sizes.index(max(sizes)))


def lower_micro_batch(settings: PretrainSettings, phase: int) -> str:
    """How to compute less at once in a phase: in another run, as the order of sums changes."""
    size = settings.batches[phase].rows_at_once
    if size == 1:
        return "start a run under another --name with shorter --phases or a smaller --model.size"
    where = "--batch.micro_batch_size"
    if settings.phases[phase].micro_batch_size is not None:
        where = f"micro_batch_size of phase {phase + 1} in --phases"
    return f"start a run under another --name with {where} below {size}"
