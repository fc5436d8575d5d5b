"""Inference with a model folder: predictions, embeddings and words for each [MASK].

Texts of similar lengths are computed together, in micro-batches of a number of tokens.
Shapes: N texts, H hidden size, P places, L outputs of the head.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import isfinite
from numbers import Real
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar, get_args

import numpy as np
import torch
from tokenizers import Tokenizer

from bert_core.errors import UserError
from bert_core.features.extractor import Extractor, FeatureChoice, check_choice
from bert_core.features.sentence_pooling import (
    SentencePooling,
    read_sentence_pooling,
    read_sparse_pooling,
)
from bert_core.features.states import Computing
from bert_core.hub import SCHEME, fetch_hub_model
from bert_core.interface import Aggregation, Filled, OverflowOrError, Pooling
from bert_core.masked_language_model import (
    MASK,
    FillMask,
    count_masks,
    masked_token_outputs,
    named_weights,
    target_ids,
    word_weight_outputs,
)
from bert_core.model.bert import Bert
from bert_core.model.tagger import FEATURE_TAGGER
from bert_core.model_folder import ModelFolderError, load_model_folder
from bert_core.quantization import for_inference, read_precision
from bert_core.tasks.answers import (
    AnswerOptions,
    Codec,
    CutChoices,
    TaskAnswer,
    query_of,
    refuse_other_counts,
)
from bert_core.tasks.encoded_rows import PREDICTION_TOKENS, EncodedRows
from bert_core.tasks.foreign_models import find_task
from bert_core.tasks.outputs import compute_all_outputs
from bert_core.tasks.task import FloatArray, Task
from bert_core.text.texts import text_chunks
from bert_core.text_encoding import lone_surrogate

T = TypeVar("T")

_CHARACTERS_OF_A_MASK = 1 << 12
"""A [MASK] takes as much memory as so many characters: its logits are over the vocabulary."""

_DTYPES = {"float32": None, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Predictor:
    """A model, its tokenizer and, of a fine-tuned model, its task, on a device.

    `bert_core.load` opens a folder as one. `fine_tuned_for` is None, and `task_name` empty, for an
    encoder without a task. Lists may have any length: a thousand inputs at a time are in memory. A
    text has the same answer alone and in any list.

    `overflow` is the same in all methods. It decides about a text that is longer than the model
    reads at once: `error` refuses it, `left` and `right` cut that side, and `window` reads all of
    it in overlapping windows. With all but `error` a too long question, and with `window` the
    shorter text of a pair that is longer than half a row, lose what is beyond, and the answer is
    `truncated`. Choices are not read in windows: there it is refused.
    """

    model: Bert = field(repr=False)
    tokenizer: Tokenizer = field(repr=False)
    fine_tuned_for: Task | None = None
    task_name: str = ""
    device: torch.device = torch.device("cpu")
    autocast_dtype: torch.dtype | None = None
    max_tokens: int = PREDICTION_TOKENS
    folder: Path | None = None

    @property
    def task(self) -> Task:
        """The task of a fine-tuned model; raises `UserError` for a model without one."""
        if self.fine_tuned_for is None:
            raise ModelFolderError(
                "no known task in the model",
                self._name,
                "fine-tune it with workflows/finetune.py; features are by workflows/extract.py",
            )
        return self.fine_tuned_for

    @cached_property
    def sentence_pooling(self) -> SentencePooling:
        """How the folder says that a text becomes a vector; raises `UserError` if unsupported."""
        if self.folder is None:
            return SentencePooling()
        return read_sentence_pooling(self.folder, self.model.config.max_position_embeddings)

    def predict(
        self,
        inputs: Sequence[Any],
        *,
        overflow: OverflowOrError = "error",
        top_k: int | None = None,
        aggregation: Aggregation | None = None,
        max_answer_length: int | None = None,
        align_to_words: bool | None = None,
        null_threshold: float | None = None,
    ) -> list[TaskAnswer]:
        """Answers the task of a fine-tuned model for each input, as the HTTP routes do.

        | task | an input | an answer |
        |---|---|---|
        | classification, regression | a text, or `{"text": …, "text_pair": …}` | `Classified` |
        | tagging | a text | `Tagged` |
        | question answering | `{"question": …, "context": …}` | `Answered` |
        | multiple choice | `{"context": …, "choices": […]}` | `Chosen` |
        | reranking | `{"text": …, "text_pair": …}`, a query and a passage | `Classified` |

        `top_k` limits the labels, best first, by default all, or the answers to a question, by
        default 1. `aggregation` is for tagging, the last three options are for questions; None
        keeps what the model was trained with. `max_answer_length` is in tokens.

        Raises `UserError` for a model without a task, an input of another kind, a text that is too
        long where `overflow` is `error`, and an option that has no effect on the task.

            predictor = bert_core.load("runs/sentiment/model")
            for answer in predictor.predict(["A lovely film.", "I want my evening back."]):
                print(answer.label, answer.scores[0].score, answer.n_tokens)
        """
        options = AnswerOptions(
            overflow, top_k, aggregation, max_answer_length, align_to_words, null_threshold
        )
        _check_options(options)
        query = query_of(self.task, options)
        for name in options.without_effect(query.known):
            raise UserError(f"{name} has no effect on {self.task_name}", name, "leave it out")
        if aggregation not in (None, "first") and FEATURE_TAGGER in self.model.heads:
            what = f"{self._name} was trained on the first sub-word of each word"
            raise UserError(what, f"aggregation {aggregation}", "leave it out")
        examples, sizes = [], []
        for number, given in enumerate(_listed(inputs, "inputs")):
            example = query.read(given)
            if example is None:
                what = f"{type(given).__name__} is no input of {self.task_name}"
                raise UserError(what, f"inputs[{number}]", f"pass {query.inputs}")
            sizes.append(_num_characters(given, f"inputs[{number}]"))
            examples.append(example)
        if isinstance(query.codec, CutChoices):
            refuse_other_counts(examples)
        found = self._found(query.codec, examples, sizes, overflow, "inputs", self._outputs)
        return [query.answer(**read, **query.fields(prediction)) for read, prediction in found]

    def embed(
        self,
        texts: Sequence[str],
        *,
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        prompt_name: str | None = None,
        overflow: OverflowOrError = "error",
    ) -> FloatArray:
        """Embeds texts: float32 [N, H], a row for each text, zero rows for an empty list.

        By default texts are embedded as the folder says, like the server's `/embed`: pooling,
        longest text, prompt, linear maps (their last one sets the width instead of H) and
        normalization of sentence-transformers; the mean of all tokens where it says nothing. With a
        `pooling` (`mean`, `cls` or `max`) it is the last layer's states, like
        `workflows/extract.py`. `normalize` gives vectors the length 1, or does not, whatever the
        folder says. `prompt_name` is one of the folder's prompts.

        Raises `UserError` for a text that is too long where `overflow` is `error`, an unknown
        pooling or prompt, and anything but texts. Warns where `left` or `right` has cut texts.

            vectors = bert_core.load("MODEL_FOLDER").embed(["A cat sleeps."], normalize=True)
        """
        said = self.sentence_pooling if pooling is None else SentencePooling(pooling)
        normalize = said.normalize if normalize is None else normalize
        choice = FeatureChoice(
            pooling=said.pooling,
            prompt=said.prompt(prompt_name),
            normalize=normalize and not said.dense,
            max_length=said.max_length,
        )
        extractor = self._extractor(choice)
        _check_options(AnswerOptions(overflow))
        vectors = [np.empty((0, self.model.config.hidden_size), dtype=np.float32)]
        num_cut = 0
        for first, some in _chunks(texts, _sizes(texts)):
            encoded = extractor.encode(some, overflow)
            self._refuse_long(overflow, encoded.rows.rows, encoded.too_long, "texts", first)
            vectors.append(extractor.of_rows(encoded.rows))
            num_cut += int(encoded.too_long.sum()) if encoded.is_cut else 0
        if num_cut:
            what = f"{num_cut} of {len(texts)} texts are cut to {extractor.max_length} tokens"
            warnings.warn(what, stacklevel=2)
        embedded = np.concatenate(vectors)
        return said.finish(embedded, normalize=normalize) if said.dense else embedded

    def embed_sparse(
        self,
        texts: Sequence[str],
        *,
        prompt_name: str | None = None,
        overflow: OverflowOrError = "error",
    ) -> list[dict[str, float]]:
        """The words that each text is about, with their weights, heaviest first (SPLADE).

        By the masked-token head, best of a model that was trained for it (`--task sparse`). Texts
        are near where the products of their weights add up to much. Raises `UserError` as `embed`
        does, and for a model without such a head.

            (words,) = bert_core.load("MODEL_FOLDER").embed_sparse(["A cat sleeps."])
            print(list(words)[:5])
        """
        self._check_masked_token_head()
        said = SentencePooling()
        if self.folder is not None:
            said = read_sparse_pooling(self.folder, self.model.config.max_position_embeddings)
        prompt, longest = said.prompt(prompt_name), said.max_length
        extractor = self._extractor(
            FeatureChoice(pooling="mean", prompt=prompt, max_length=longest)
        )
        _check_options(AnswerOptions(overflow))
        found: list[dict[str, float]] = []
        for first, some in _chunks(texts, _sizes(texts)):
            encoded = extractor.encode(some, overflow)
            self._refuse_long(overflow, encoded.rows.rows, encoded.too_long, "texts", first)
            weights = word_weight_outputs(self.model, encoded.rows.rows, **self._computing)
            found += named_weights(weights, self.tokenizer)
        return found

    def fill_mask(
        self,
        texts: Sequence[str],
        *,
        top_k: int = 5,
        targets: Sequence[str] | None = None,
        overflow: OverflowOrError = "error",
    ) -> list[Filled]:
        """Finds the `top_k` likeliest tokens for each `[MASK]` of each text, best first.

        Several masks are filled independently. `targets` are words to choose among, each a token of
        the vocabulary. Scores are probabilities among the whole vocabulary.

        Raises `UserError` for a model without a masked-token head, as fine-tuned ones are, a text
        without `[MASK]`, one that is too long where `overflow` is `error`, and an unknown target.

            (filled,) = bert_core.load("runs/pretrain/model").fill_mask(["Paris is in [MASK]."])
            print([candidate.token for candidate in filled.masks[0].candidates])
        """
        self._check_masked_token_head()
        _check_options(AnswerOptions(overflow, top_k))
        sizes = _sizes(texts)
        if targets is not None and not _sizes(targets, "targets"):
            raise UserError("no words to choose among", "targets", "pass a word or more, or None")
        for number, text in enumerate(texts):
            masks = count_masks(text, self.tokenizer)
            if not masks:
                remedy = f"write {MASK} where a word is missing"
                raise UserError(f"no {MASK}", f"texts[{number}]", remedy)
            sizes[number] += _CHARACTERS_OF_A_MASK * masks
        codec = FillMask(
            self.tokenizer,
            self.model.config.max_position_embeddings,
            top_k,
            None if targets is None else target_ids(self.tokenizer, targets),
            "right" if overflow == "error" else overflow,
        )
        logits_of = partial(masked_token_outputs, self.model, **self._computing)
        found = self._found(codec, texts, sizes, overflow, "texts", logits_of)
        return [Filled(**read, **prediction) for read, prediction in found]

    def predict_examples(
        self,
        examples: Sequence[Any],
        *,
        max_tokens: int | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> tuple[list[dict[str, Any]], EncodedRows]:
        """Predicts the task's own examples, as for `Task.metrics` (see `Task.decode`).

        Returns a prediction for each example, and the rows they were made of. `progress` gets the
        share that is computed.
        """
        rows = self.task.encode(examples, self.tokenizer)
        outputs = self._outputs(rows, max_tokens=max_tokens, progress=progress)
        return self.task.decode(outputs, rows, examples), rows

    def answer(
        self,
        codec: Codec,
        rows: EncodedRows,
        examples: Sequence[Any],
        *,
        max_tokens: int | None = None,
    ) -> list[dict[str, Any]]:
        """Predicts examples, given the rows that the codec has made of them."""
        return codec.decode(self._outputs(rows, max_tokens=max_tokens), rows, examples)

    def _outputs(
        self,
        rows: EncodedRows,
        *,
        max_tokens: int | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> FloatArray:
        outputs, _ = compute_all_outputs(
            self.task,
            self.model,
            rows,
            device=self.device,
            max_tokens=max_tokens or self.max_tokens,
            autocast_dtype=self.autocast_dtype,
            progress=progress,
        )
        return outputs

    def _found(
        self,
        codec: Codec,
        examples: Sequence[Any],
        sizes: Sequence[int],
        overflow: OverflowOrError,
        field: str,
        outputs_of: Callable[[EncodedRows], FloatArray],
    ) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Yields a prediction for each example, after `n_tokens` and `truncated` of its answer."""
        for first, some in _chunks(examples, sizes):
            rows, windows = codec.encode(some, self.tokenizer), not isinstance(codec, CutChoices)
            self._refuse_long(overflow, rows, rows.truncated, field, first, has_windows=windows)
            found = codec.decode(outputs_of(rows), rows, some)
            read = zip(found, rows.num_tokens.tolist(), rows.truncated.tolist(), strict=True)
            for prediction, num_tokens, truncated in read:
                yield {"n_tokens": num_tokens, "truncated": truncated}, prediction

    def _extractor(self, choice: FeatureChoice) -> Extractor:
        check_choice(choice, self.model.config)
        return Extractor(self.model.encoder, self.tokenizer, choice=choice, **self._computing)

    @property
    def _computing(self) -> Computing:
        return {
            "device": self.device,
            "max_tokens": self.max_tokens,
            "autocast_dtype": self.autocast_dtype,
        }

    def _check_masked_token_head(self) -> None:
        if "masked_token" not in self.model.heads:
            raise UserError(
                "no masked-token head", self._name, "pass the folder of a pre-trained model"
            )

    @property
    def _name(self) -> str:
        return "the model" if self.folder is None else str(self.folder)

    def _refuse_long(
        self,
        overflow: OverflowOrError,
        rows: EncodedRows,
        too_long: np.ndarray,
        field: str,
        first: int,
        *,
        has_windows: bool = True,
    ) -> None:
        """Raises `UserError` for the first too long input of a chunk that begins at `first`."""
        if overflow == "error" and too_long.any():
            number = int(too_long.argmax())
            window = "'window', " if has_windows else ""
            remedy = f"shorten it, or pass overflow={window}'right' or 'left'"
            raise UserError(rows.excess(number), f"{field}[{first + number}]", remedy)


def load_predictor(
    folder: str | Path,
    *,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype = "float32",
    task_name: str | None = None,
    max_tokens: int = PREDICTION_TOKENS,
) -> Predictor:
    """Opens a model folder, ours, of `transformers` or of sentence-transformers.

    `hf://OWNER/NAME[@REVISION]` is fetched from the Hugging Face Hub, or from its cache. An encoder
    of BERT, RoBERTa, XLM-RoBERTa, CamemBERT or ModernBERT will do: pre-trained (`embed`,
    `fill_mask`), fine-tuned (`predict`, `embed`) or made for embeddings. A folder in int8 is
    computed so.

    - `device`, such as `cpu` or `cuda`
    - `dtype` of matrix products, `float32` or `bfloat16`; results are float32 in either case
    - `task_name`, the task of a fine-tuned folder that records none, as in `catalog.TASKS`
    - `max_tokens` of a micro-batch, which changes speed and memory, not results

    Raises `UserError`, in one line, for a folder that is missing, damaged or of another
    architecture, a device that is not there, and int8 elsewhere than on the CPU.

        predictor = bert_core.load("runs/sentiment/model", device="cpu", dtype="bfloat16")
    """
    if isinstance(folder, str) and folder.startswith(SCHEME):
        folder = fetch_hub_model(folder).folder
    folder = Path(folder).expanduser()
    name = str(dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise UserError(f"dtype {name} is not supported", "dtype", f"pass {' or '.join(_DTYPES)}")
    device = _open_device(device)
    _, model, tokenizer = load_model_folder(folder)
    known = find_task(folder, model, task_name)
    predictor = Predictor(
        model=for_inference(model, read_precision(folder), device),
        tokenizer=tokenizer,
        fine_tuned_for=known[1] if known else None,
        task_name=known[0] if known else "",
        device=device,
        autocast_dtype=_DTYPES[name],
        max_tokens=max_tokens,
        folder=folder,
    )
    with suppress(UserError):  # raised again where it is used; later the folder may be another
        _ = predictor.sentence_pooling
    return predictor


def _open_device(device: str | torch.device) -> torch.device:
    """The device, if it can be used; raises `UserError` if not."""
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        raise UserError("no such device here", str(device), "pass cpu, or one that is") from error


def _listed(given: Sequence[T], field: str) -> Sequence[T]:
    """The inputs, if they are a list; raises `UserError` for a single text or mapping."""
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence):
        what = f"{type(given).__name__} is no list of inputs"
        raise UserError(what, field, "pass a list, of one input or more")
    return given


def _sizes(texts: Sequence[str], field: str = "texts") -> list[int]:
    """The characters of each text; raises `UserError` for anything but a list of texts."""
    for number, text in enumerate(_listed(texts, field)):
        if not isinstance(text, str):
            raise UserError(f"{type(text).__name__} is no text", f"{field}[{number}]", "pass a str")
    return [_num_characters(text, f"{field}[{number}]") for number, text in enumerate(texts)]


def _num_characters(given: Any, where: str) -> int:  # noqa: ANN401 - an input of any task
    """The characters of an input; raises `UserError` for half a one, which no tokenizer takes."""
    if not isinstance(given, str):
        parts = given.values() if isinstance(given, Mapping) else given
        if not isinstance(given, Mapping | list | tuple):
            return 0  # of a record's other fields, which are not read
        return sum(_num_characters(part, where) for part in parts)
    if lone_surrogate(given) is not None:
        raise UserError("half a character (a lone surrogate)", where, "decode the text again")
    return len(given)


def _check_options(options: AnswerOptions) -> None:
    """Raises `UserError` for values that the options do not have."""
    for name, values in (
        ("overflow", get_args(OverflowOrError)),
        ("aggregation", (None, *get_args(Aggregation))),
        ("align_to_words", (None, True, False)),
    ):
        if (value := getattr(options, name)) not in values:
            known = " or ".join(str(known) for known in values if known is not None)
            raise UserError(f"{name} is {value}", name, f"pass {known}")
    for name in ("top_k", "max_answer_length"):
        value = getattr(options, name)
        if value is not None and not (isinstance(value, int | np.integer) and value >= 1):
            raise UserError(f"{name} is {value}", name, "pass a whole number, 1 or more")
    value = options.null_threshold
    if value is not None and not (isinstance(value, Real) and isfinite(value)):
        raise UserError(f"null_threshold is {value}", "null_threshold", "pass a finite number")


def _chunks(items: Sequence[T], sizes: Sequence[int]) -> Iterator[tuple[int, list[T]]]:
    """Some items at a time, each time with the number of the first."""
    first = 0
    for chunk in text_chunks(zip(items, sizes, strict=True), itemgetter(1)):
        yield first, [item for item, _ in chunk]
        first += len(chunk)
