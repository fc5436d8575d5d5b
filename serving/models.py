"""Opens model folders for serving; models with equal encoders share one batcher."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from tokenizers import Tokenizer

from bert_core.config import ModelConfig
from bert_core.disk import file_sha256
from bert_core.errors import UserError
from bert_core.example import ModelExample, check_example, read_example
from bert_core.example_answers import Source, question_of
from bert_core.features.extractor import Extractor, FeatureChoice, check_choice, learned_weights
from bert_core.features.sentence_pooling import (
    SentencePooling,
    read_sentence_pooling,
    read_sparse_pooling,
)
from bert_core.features.units import cut_texts, unit_rows
from bert_core.lineage import Lineage, read_lineage
from bert_core.masked_language_model import (
    masked_token_answers,
    next_sentence_answers,
    word_weight_answers,
)
from bert_core.model.bert import Bert
from bert_core.model.encoder import Encoder
from bert_core.model.tagger import FEATURE_TAGGER
from bert_core.model_folder import CHECKSUMS, CONFIG, load_model_folder
from bert_core.quantization import Precision, for_inference, read_precision
from bert_core.tasks.classification import Classification
from bert_core.tasks.encoded_rows import EncodedRows
from bert_core.tasks.foreign_models import find_task
from bert_core.tasks.reranking import Reranking
from bert_core.tasks.task import FloatArray, Task, head_answers, layers_read
from bert_core.tasks.text_embedding import TextEmbedding
from bert_core.tasks.zero_shot import entailment_outputs
from serving.batching import Batcher, Head, Work
from serving.request_context import InFlight
from serving.rollout.aliases import Pointer

Products = Literal["float32", "bfloat16"]
"""In which numbers products are computed, of models that are not in int8."""


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A model folder that is served: what it can do, and what computes it.

    `task` is None of an encoder that was not fine-tuned; `head` then is, too. `pointer` is None of
    a folder that does not come from MLflow's registry. `precision` is that of the encoder's
    products, `in_flight` counts the requests that it answers, `opened_at` is in Unix seconds. Where
    it is the last good version, `refused` is the one that could not be opened, and why.
    """

    name: str
    folder: Path
    model: Bert
    tokenizer: Tokenizer
    batcher: Batcher
    task_name: str | None
    task: Task | None
    head: Head | None
    pointer: Pointer | None = None
    precision: Precision | Products = "float32"
    in_flight: InFlight = field(default_factory=InFlight)
    opened_at: float = field(default_factory=time.time)
    refused: tuple[Pointer, str] | None = None

    def __post_init__(self) -> None:
        """Reads the folder now: the cache may remove it once another version is served."""
        _ = self.sha256, self.lineage, self.created, self.example
        for name in ("sentence_pooling", "sparse_pooling"):
            with suppress(UserError):  # raised again where it is asked for
                getattr(self, name)

    @property
    def config(self) -> ModelConfig:
        """The encoder's architecture."""
        return self.model.config

    @cached_property
    def sha256(self) -> str | None:
        """The hash of the folder's list of checksums; None of a folder without one."""
        checksums = self.folder / CHECKSUMS
        return file_sha256(checksums) if checksums.is_file() else None

    @cached_property
    def created(self) -> int:
        """When the folder was written, Unix seconds."""
        return int((self.folder / CONFIG).stat().st_mtime)

    @cached_property
    def version(self) -> str | None:
        """What its answers say: the registry's version, or the beginning of the folder's hash."""
        if self.pointer is not None:
            return str(self.pointer.version)
        return None if self.sha256 is None else self.sha256[:12]

    @cached_property
    def sentence_pooling(self) -> SentencePooling:
        """How the folder says that texts become vectors; the mean where it says nothing.

        Raises `UserError` for what is not known here.
        """
        return read_sentence_pooling(self.folder, self.config.max_position_embeddings)

    @cached_property
    def sparse_pooling(self) -> SentencePooling:
        """The prompts and the longest row of the folder, where its words are weighed.

        Raises `UserError` for weights that are not known here.
        """
        return read_sparse_pooling(self.folder, self.config.max_position_embeddings)

    @cached_property
    def lineage(self) -> Lineage | None:
        """Where the model comes from, as its folder and the registry say; None if neither does."""
        of_folder = read_lineage(self.folder)
        if self.pointer is None:
            return of_folder
        return (of_folder or Lineage()).completed(self.pointer.lineage)

    @cached_property
    def example(self) -> ModelExample | None:
        """The example in its folder; None without one. Raises `UserError` for a damaged one."""
        return read_example(self.folder)

    @property
    def reads_words_in_a_row(self) -> bool:
        """Whether the head reads words in their context, as an LSTM does.

        It was trained on first sub-words alone and can answer for no others.
        """
        return FEATURE_TAGGER in self.model.heads

    def work(self, rows: EncodedRows) -> Work:
        """What the task's head is to say of rows."""
        assert self.task is not None and self.head is not None
        shape = self.task.head
        layers = layers_read(self.model)
        return Work(rows, layers, self.head, shape.num_outputs, per_row=shape.per_row)

    @cached_property
    def _masked_token_head(self) -> Head:
        # One object, by which the batcher knows that questions belong together.
        return partial(masked_token_answers, self.model)

    @cached_property
    def _word_weight_head(self) -> Head:
        return partial(word_weight_answers, self.model)

    @cached_property
    def _next_sentence_head(self) -> Head:
        return partial(next_sentence_answers, self.model)

    def masked_token_work(self, rows: EncodedRows, *, only_targets: bool = False) -> Work:
        """What the masked-token head is to say at places: of the vocabulary, or of the targets."""
        targets = rows.notes["targets"] if only_targets else None
        last, size = (self.config.num_hidden_layers,), self.config.vocab_size
        return Work(rows, last, self._masked_token_head, size, targets)

    def word_weight_work(self, rows: EncodedRows) -> Work:
        """How much each word of the vocabulary says of each row, by the masked-token head."""
        last, size = (self.config.num_hidden_layers,), self.config.vocab_size
        return Work(rows, last, self._word_weight_head, size, per_row=True)

    def next_sentence_work(self, rows: EncodedRows) -> Work:
        """What the next-sentence head is to say of pairs."""
        return Work(rows, (self.config.num_hidden_layers,), self._next_sentence_head, 2)

    def extractor(self, choice: FeatureChoice) -> Extractor:
        """What makes rows of texts for a choice of features, and features of their states.

        A weighted sum has the weights that a tagger in the folder has learned. Raises `UserError`
        where none has, and for what the encoder cannot give.
        """
        check_choice(choice, self.config)
        if choice.strategy.is_learned:
            layers = choice.strategy.layers_of(self.config.num_hidden_layers)
            weights = learned_weights(self.model, layers)
            if weights is None:
                what = f"{self.name} has learned no weights of these layers"
                remedy = "take another strategy, or a model that was trained with this one"
                raise UserError(what, choice.strategy.name, remedy)
            choice = replace(choice, layer_weights=weights)
        return Extractor(self.model.encoder, self.tokenizer, torch.device("cpu"), choice)

    def feature_work(self, rows: EncodedRows, choice: FeatureChoice) -> Work:
        """The states of the layers that a choice of features reads."""
        return Work(rows, choice.strategy.layers_of(self.config.num_hidden_layers))


def is_reranker(model: ServedModel) -> bool:
    """Whether it gives pairs of texts one score."""
    task = model.task
    if isinstance(task, Classification):
        return task.head.num_outputs == 1 and task.reads_pairs is not False
    return isinstance(task, Reranking)


def is_embedder(model: ServedModel, vectors: Literal["dense", "sparse"]) -> bool:
    """Whether it was trained for embeddings with such vectors."""
    return isinstance(model.task, TextEmbedding) and model.task.vectors == vectors


def fills_masks(model: ServedModel) -> bool:
    """Whether it says which word a [MASK] hides."""
    return "masked_token" in model.model.heads and not is_embedder(model, "sparse")


def is_entailment(model: ServedModel) -> bool:
    """Whether it says of pairs whether the second text follows from the first."""
    return isinstance(model.task, Classification) and entailment_outputs(model.task) is not None


@dataclass(frozen=True)
class Ability:
    """What a route needs of a model: a noun for messages ("no model for …"), and which have it."""

    name: str
    of: Callable[[ServedModel], bool]


RERANKING = Ability("reranking", is_reranker)
ENTAILMENT = Ability("entailment", is_entailment)
MASKED_TOKEN = Ability("masked token", fills_masks)
NEXT_SENTENCE = Ability("next sentence", lambda model: "next_sentence" in model.model.heads)
SPARSE = Ability("sparse embeddings", lambda model: is_embedder(model, "sparse"))
WORDS = Ability("sparse embeddings", lambda model: "masked_token" in model.model.heads)
"""Sparse vectors come from any masked-token head, best from one that was trained for it."""


@dataclass(frozen=True)
class ModelLoader:
    """Opens model folders, ours or those of `transformers`; the rest is that of each `Batcher`."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    max_tokens: int = 1024
    max_waiting_tokens: int = 65536
    num_threads: int = 1
    autocast_dtype: torch.dtype | None = None

    def load(
        self, name: str, source: Path | Pointer, present: Iterable[ServedModel] = ()
    ) -> ServedModel:
        """Opens one folder; what comes from MLflow's registry is given as the pointer to it.

        Where one of the models `present` has the same encoder, its batcher computes both. Raises
        `UserError` for a folder that is damaged, and for one in int8 elsewhere than on the CPU.
        """
        pointer = source if isinstance(source, Pointer) else None
        folder = source.folder if isinstance(source, Pointer) else source
        _, model, tokenizer = load_model_folder(folder)
        known = find_task(folder, model)
        precision = read_precision(folder)
        model = for_inference(model, precision, self.device)
        batcher = self._batcher(model.encoder, {other.batcher: None for other in present})
        model.encoder = batcher.encoder
        in_bfloat16 = precision == "float32" and self.autocast_dtype is not None
        return ServedModel(
            name=name,
            folder=folder,
            model=model,
            tokenizer=tokenizer,
            batcher=batcher,
            task_name=known[0] if known else None,
            task=known[1] if known else None,
            head=partial(head_answers, model) if known else None,
            pointer=pointer,
            precision="bfloat16" if in_bfloat16 else precision,
        )

    def _batcher(self, encoder: Encoder, batchers: Iterable[Batcher]) -> Batcher:
        """The batcher of an encoder that computes the same, or a new one."""
        equal = next((batcher for batcher in batchers if are_equal(batcher.encoder, encoder)), None)
        return equal or Batcher(
            encoder,
            device=self.device,
            max_tokens=self.max_tokens,
            max_waiting_tokens=self.max_waiting_tokens,
            num_threads=self.num_threads,
            autocast_dtype=self.autocast_dtype,
        )


def load_models(
    folders: Mapping[str, Path | Pointer], loader: ModelLoader | None = None
) -> dict[str, ServedModel]:
    """Opens model folders by the names they are asked for; see `ModelLoader.load`."""
    loader = loader or ModelLoader()
    served: dict[str, ServedModel] = {}
    for name, source in folders.items():
        served[name] = loader.load(name, source, present=served.values())
    return served


def are_equal(first: Encoder, second: Encoder) -> bool:
    """Whether two encoders compute the same; one in int8 and one in float32 do not."""
    mine, yours = first.state_dict(), second.state_dict()
    if first.config != second.config or mine.keys() != yours.keys():
        return False
    return all(torch.equal(mine[name], yours[name].to(mine[name].device)) for name in mine)


def close_models(models: Sequence[ServedModel], *, finish: bool = True) -> None:
    """Lets each encoder finish what is waiting, or only the micro-batch that it is at."""
    for batcher in {id(model.batcher): model.batcher for model in models}.values():
        batcher.close(finish=finish)


_WARM_UP_TOKENS = 512
"""A row of 8,192 would take seconds, and all the memory that a request for it takes."""


def warm_up(model: ServedModel) -> None:
    """Computes a short row and a long one: the first request need not wait for what is lazy."""
    longest = min(model.config.max_position_embeddings, _WARM_UP_TOKENS)
    tokens = cut_texts(model.tokenizer, ["a", "a " * (longest - 2)], offsets=False)
    rows = unit_rows(tokens, model.tokenizer, unit="text", pooling="cls", max_length=longest).rows
    model.batcher.submit(Work(rows, (model.config.num_hidden_layers,))).result()


_PROBE_SECONDS = 60.0
"""A model that needs longer for a short text is refused."""


def open_model(
    loader: ModelLoader, name: str, source: Path | Pointer, present: Collection[ServedModel]
) -> ServedModel:
    """Loads a model, warms it up and checks its example; see `ModelLoader.load`.

    Raises `UserError` for one that is damaged or does not answer as it should.
    """
    model = loader.load(name, source, present)
    try:
        warm_up(model)
        probe(model)
    except BaseException:
        if model.batcher not in {other.batcher for other in present}:
            model.batcher.close(finish=False)
        raise
    return model


def probe(model: ServedModel) -> None:
    """Asks a model its own example, or without one for the states of a text.

    Raises `UserError` for another answer than when the folder was written, and for values that are
    not finite.
    """
    example = model.example
    longest = model.config.max_position_embeddings
    if example is None:
        tokens = cut_texts(model.tokenizer, ["Is this a text?"], offsets=False)
        rows = unit_rows(
            tokens, model.tokenizer, unit="text", pooling="cls", max_length=longest
        ).rows
        states = _computed(model, Work(rows, (model.config.num_hidden_layers,)))
        wrong = None if np.isfinite(states).all() else "it computes values that are not finite"
    else:
        question = question_of(example, model.task, model.tokenizer, longest)
        rows = question.rows(model.tokenizer)
        outputs = _computed(model, _work_for(question.source, model, rows))
        wrong = check_example(example, question.answer(outputs, rows), model.precision)
    if wrong is not None:
        what = f"{model.name} does not answer as it should: {wrong}"
        remedy = "train or export it again; the folder's example.json has the expected answer"
        raise UserError(what, str(model.folder), remedy)


def _work_for(source: Source, model: ServedModel, rows: EncodedRows) -> Work:
    match source:
        case "task":
            return model.work(rows)
        case "masked_token":
            return model.masked_token_work(rows)
        case "states":
            return model.feature_work(rows, FeatureChoice())


def _computed(model: ServedModel, work: Work) -> FloatArray:
    (found,) = model.batcher.submit(work).result(_PROBE_SECONDS)
    return found
