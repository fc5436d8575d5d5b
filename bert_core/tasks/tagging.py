"""Tagging: which words of a sentence are entities of which types, or any other tag of each word.

The paper's figure 4 (d): the state of each word's first sub-word, dropout, a linear map (section
5.3). Shapes: P places (first sub-words), L labels, W words.
"""

from collections.abc import Sequence
from itertools import chain, islice, pairwise
from operator import eq
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field
from tokenizers import Tokenizer

from bert_core.config import IGNORE_INDEX
from bert_core.tasks.encoded_rows import EncodedRows, TaskBatch, concatenated
from bert_core.tasks.label_values import likeness_warnings
from bert_core.tasks.metrics import entity_metrics
from bert_core.tasks.sequences import Overflow
from bert_core.tasks.tables import TaskDataError, is_on_hub, read_split, split_file
from bert_core.tasks.tag_schemes import (
    OUTSIDE,
    Scheme,
    Tags,
    is_plain,
    look_like_a_scheme,
    split_tag,
)
from bert_core.tasks.tagged_sentences import (
    CONLL_SUFFIXES,
    LIST_SUFFIXES,
    OTHER_LIST_SUFFIXES,
    TaggedSentence,
    WordColumns,
    in_iob2,
    read_conll,
    read_word_lists,
)
from bert_core.tasks.task import FloatArray, HeadShape, Predictions, Task
from bert_core.tasks.word_rows import encode_words
from bert_core.text.rng import IntArray

if TYPE_CHECKING:
    from torch import Tensor

    from bert_core.tasks.label_loss import LabelLoss

# --help reads the tasks: torch is loaded within functions.


class Tagging(Task):
    """Finds entities: a tag for each word, read from the state of its first sub-word.

    Inside, tags are IOB2, and the labels have B- and I- for each type; predictions are written in
    the scheme of the data. A word of which the tokenizer makes nothing is outside of all entities.

    Where no tag of the training data has a prefix, tags are plain: the labels are the tags, and
    accuracy is the metric. Where O is among them the others are types, and neighbouring words of
    one type are one entity; where it is not, as among parts of speech, each word is one of its own.
    `scheme` io or none says it whatever the labels are.

    With `document_context` a row is not a sentence but as much of its document as fits, and the
    head is asked at the words of all sentences in it. A document that fits is one row, so each of
    its sentences sees all of it: what a row for each sentence, filled up with its neighbours, would
    show, for as many times fewer tokens as the document has sentences (15 in CoNLL-2003). Longer
    documents have windows that overlap by half; a sentence is asked for, whole, in the one that
    shows most around it, which is about a quarter of `max_length` on either side where it is least.
    So an epoch has fewer, longer rows, and a step of the same batch size learns from more
    sentences: at 512 tokens two or three rows of CoNLL-2003 have the paper's 32.
    """

    architecture: ClassVar[str] = "BertForTokenClassification"
    reads_spaces: ClassVar[bool] = False
    """Whether words of raw texts have the spaces that they have there, not always one before."""

    word_column: str = Field(
        default="0", description="column of the words, by name or number; -1 is the last"
    )
    tag_column: str = Field(default="-1", description="column of the tags, by name or number")
    columns: tuple[str, ...] = Field(
        default=(), description="names of a CoNLL file's columns, from left to right"
    )
    document_column: str | None = Field(
        default=None,
        description="column of a JSONL or Parquet table with the document of a sentence;"
        " CoNLL files have -DOCSTART- lines",
    )
    comment: str = Field(
        default="",
        description="start of a comment before a sentence of a CoNLL file; none by default,"
        " since # may be a word",
    )
    tag_names: tuple[str, ...] = Field(
        default=(),
        description="names of tags that are numbers in a table, from 0 on; by default the"
        " names in the table, or the numbers",
    )
    scheme: Literal["auto", "iob1", "iob2", "bioes", "io", "none"] = Field(
        default="auto",
        description="tagging scheme of the data; io where words have types without a prefix,"
        " none where tags are of single words, such as parts of speech; auto"
        " detects it, and reads tags without a prefix as io where O is among them",
    )
    invalid_tags: Literal["count", "refuse"] = Field(
        default="count",
        description="how to handle a tag that its scheme forbids in its place; counted ones"
        " are read as conlleval reads them",
    )
    overflow: Overflow = Field(
        default="window",
        description="how to read a sentence, or document, longer than a row: in windows that"
        " overlap by half, or truncated on the left or right; truncated words are"
        " outside of all entities",
    )
    document_context: bool = Field(
        default=False, description="show the model as much of the document as max_length takes"
    )

    def ignored_options(self) -> dict[str, str]:
        """Also `invalid_tags` where tags are plain, because none can be invalid."""
        found = super().ignored_options()
        if self.scheme == "none" and self.invalid_tags == "refuse":
            found["invalid_tags"] = "has no effect where scheme is none"
        return found

    @property
    def is_plain(self) -> bool:
        """Whether the labels have no prefixes."""
        return self.scheme in ("io", "none") or any(map(is_plain, self.labels))

    @property
    def joins_words(self) -> bool:
        """Whether neighbouring words with the same plain label are one entity."""
        return self.scheme == "io" or (self.scheme != "none" and OUTSIDE in self.labels)

    @property
    def criterion(self) -> str:
        """F1 of entities; accuracy by word where tags are plain."""
        return "accuracy" if self.is_plain else "f1"

    @property
    def head(self) -> HeadShape:
        """A classifier of single tokens, with an output for each label."""
        return HeadShape("classifier", max(len(self.labels), 1), pooled=False)

    def examples(self, data: str | Path, split: str) -> list[TaggedSentence]:
        """Reads a CoNLL file, or a JSONL, Parquet, CSV or Hub table; tags become IOB2."""
        columns = WordColumns(
            words=self.word_column,
            tags=self.tag_column,
            names=self.columns,
            document=self.document_column,
            comment=self.comment,
            tag_names=self.tag_names,
        )
        if not is_on_hub(data):
            known = (*CONLL_SUFFIXES, *LIST_SUFFIXES)
            data = split_file(data, split, known, OTHER_LIST_SUFFIXES)
        tables = LIST_SUFFIXES + OTHER_LIST_SUFFIXES
        is_conll = isinstance(data, Path) and data.suffix not in tables
        self._refuse_options_of_others(is_conll, str(data))
        if isinstance(data, Path) and is_conll:
            sentences = read_conll(data, columns)
        else:
            sentences = read_word_lists(read_split(data, split), columns)
        words = chain.from_iterable(sentence.words for sentence in sentences)
        if len(sentences) > 1 and all(word.isdecimal() for word in words):
            raise TaskDataError(
                f"every word of column {self.word_column} is a number",
                str(data),
                "name that of the words, --options.word_column 1 (evaluate.py: --options"
                " word_column=1)",
            )
        if self.document_context and all(sentence.document is None for sentence in sentences):
            raise TaskDataError(
                "no document boundaries in the data",
                str(data),
                "write -DOCSTART- lines or name --options.document_column, or leave"
                " --options.document_context out (evaluate.py: --options document_context=false)",
            )
        return in_iob2(sentences, self.scheme, refuse=self.invalid_tags == "refuse")

    def _refuse_options_of_others(self, is_conll: bool, where: str) -> None:
        """Raises `TaskDataError` for an option that does not apply to this form of data."""
        others = ("document_column", "tag_names") if is_conll else ("comment",)
        for name in others:
            if getattr(self, name):
                form = "tables and the Hub" if is_conll else "CoNLL files"
                remedy = f"leave it out (evaluate.py: --options {name}=)"
                raise TaskDataError(f"--options.{name} is for {form}", where, remedy)

    def label_names(self, examples: Sequence[TaggedSentence]) -> set[str]:
        """O, and B- and I- for each type that occurs; the tags as they are where they are plain."""
        tags = set(chain.from_iterable(example.tags or () for example in examples))
        if any(example.scheme is None for example in examples):
            return tags
        types = {split_tag(tag)[1] for tag in tags} - {""}
        return {OUTSIDE, *(f"{prefix}-{name}" for name in types for prefix in "BI")}

    def label_warnings(self) -> list[str]:
        """Types, or tags, that are hard to tell apart, and tags that may be those of a scheme."""
        kinds = dict.fromkeys(split_tag(label)[1] for label in self.labels)
        found = likeness_warnings(filter(None, kinds))
        odd = look_like_a_scheme(self.labels) if self.is_plain and self.scheme != "none" else []
        if self.labels and all(map(str.isdecimal, self.labels)):
            found.append(
                "tags are numbers and are learned as they are; if they have names, list them from"
                " 0 on: --options.tag_names O B-TYPE I-TYPE"
            )
        if odd:
            found.append(
                "tags are taken as plain, one for each word, but some look like those of a scheme:"
                f" {', '.join(map(repr, odd[:5]))}; write B-TYPE, I-TYPE and O, or give"
                " --options.scheme none"
            )
        return found

    def texts(self, example: TaggedSentence) -> list[str]:
        """The words of the sentence."""
        return [" ".join(example.words)]

    def encode(self, examples: Sequence[TaggedSentence], tokenizer: Tokenizer) -> EncodedRows:
        """A row for each sentence or window of a document, or several where one is too long.

        `notes` has the word of each place among the words of all examples.
        """
        sentences = [example.words for example in examples]
        texts = self._texts(examples)
        rows = encode_words(tokenizer, sentences, texts, self.max_length, overflow=self.overflow)
        ones = np.ones_like(rows.lengths)
        respelled = sum(example.num_respelled for example in examples)
        return EncodedRows(
            input_ids=rows.input_ids,
            lengths=rows.lengths,
            first_lengths=rows.lengths,
            places=rows.places,
            place_counts=rows.place_counts,
            labels=self._encode_tags(examples)[rows.words],
            labels_per_item=rows.place_counts,
            rows_per_item=ones,
            example=rows.sentence,
            num_tokens=rows.num_tokens,
            truncated=rows.truncated,
            notes={"words": rows.words},
            counts={
                "words without tokens": rows.num_without_tokens,
                "invalid tags": sum(example.num_invalid for example in examples),
                **({"tags read as B-, I- or O": respelled} if respelled else {}),
            },
        )

    def loss(self, outputs: "Tensor", batch: TaskBatch) -> "tuple[Tensor, Tensor]":
        """Cross entropy of the words' tags."""
        from bert_core.tasks.label_loss import PLAIN

        return self.label_loss(outputs, batch, PLAIN)

    @property
    def has_label_loss(self) -> bool:
        """Of tags."""
        return True

    @property
    def tunable(self) -> tuple[str, ...]:
        """The temperature of the tags."""
        return ("temperature",)

    def label_loss(
        self, outputs: "Tensor", batch: TaskBatch, shape: "LabelLoss"
    ) -> "tuple[Tensor, Tensor]":
        """See `Task.label_loss`."""
        right = (outputs.detach().argmax(-1) == batch.labels).sum()
        return shape.of_classes(outputs, batch.labels), right

    def decode(
        self, outputs: FloatArray, rows: EncodedRows, examples: Sequence[TaggedSentence]
    ) -> list[dict[str, Any]]:
        """`tags`, valid in the scheme of the data, and `entities` for each example.

        An entity has a `type`, words from `start` up to before `end`, and a `score`: the mean
        probability of its words' tags. A tag that does not continue the one before it, I-PER after
        O, begins an entity.
        """
        lengths = concatenated([[len(each.words) for each in examples]])
        words, num_words = rows.notes["words"], int(lengths.sum())
        codes = np.full(num_words, len(self.labels))  # those of words that have no place
        codes[words] = outputs.argmax(axis=1)
        probabilities = np.ones(num_words)
        shifted = outputs.astype(np.float64) - outputs.max(axis=1, keepdims=True)
        probabilities[words] = 1 / np.exp(shifted).sum(axis=1)
        tags = Tags.from_codes(codes, (*self.labels, OUTSIDE), lengths, joined=self.joins_words)
        begins, ends, types = tags.entities
        sums = np.concatenate([[0], np.cumsum(probabilities)])
        scores = (sums[ends] - sums[begins]) / (ends - begins)
        sentence_ends = np.cumsum(lengths)
        sentence_begins = sentence_ends - lengths
        bounds = np.searchsorted(begins, np.append(sentence_begins, num_words)).tolist()
        plain = np.array([*self.labels, OUTSIDE], dtype=object)[codes].tolist()
        schemes: set[Scheme | None] = {None if self.is_plain else each.scheme for each in examples}
        strings = {scheme: tags.strings(scheme) if scheme else plain for scheme in schemes}
        return [
            {
                "tags": strings[None if self.is_plain else example.scheme][begin:end],
                "entities": [
                    {
                        "type": tags.type_names[types[entity]],
                        "start": int(begins[entity]) - begin,
                        "end": int(ends[entity]) - begin,
                        "score": float(scores[entity]),
                    }
                    for entity in range(bounds[number], bounds[number + 1])
                ],
            }
            for number, (example, begin, end) in enumerate(
                zip(examples, sentence_begins.tolist(), sentence_ends.tolist(), strict=True)
            )
        ]

    def metrics(
        self, predictions: Predictions, examples: Sequence[TaggedSentence]
    ) -> dict[str, float]:
        """Precision, recall and F1 of entities, F1 of each type, accuracy by word.

        All are conlleval's over `gold_tags` and the predicted tags. Where tags are plain, accuracy
        alone.
        """
        gold, found = self.gold_tags(examples), [prediction["tags"] for prediction in predictions]
        if self.is_plain:
            right = map(eq, chain.from_iterable(gold), chain.from_iterable(found))
            return {"accuracy": float(np.mean(list(right)))}
        return entity_metrics(gold, found, self.type_names)

    @property
    def type_names(self) -> list[str]:
        """The types of entities that the labels name, sorted."""
        return sorted({split_tag(label)[1] for label in self.labels} - {""})

    def gold_tags(self, examples: Sequence[TaggedSentence]) -> list[Sequence[str]]:
        """The right tags of each example, written as predictions are: in the scheme of the data.

        What the scheme forbids is written as the entities that conlleval reads in it.
        """
        gold = [example.tags or () for example in examples]
        schemes: set[Scheme | None] = {example.scheme for example in examples}
        for scheme in schemes:
            if self.is_plain or scheme is None or scheme == "iob2":
                continue
            some = [index for index, example in enumerate(examples) if example.scheme == scheme]
            strings = iter(Tags.of([gold[index] for index in some]).strings(scheme))
            for index in some:
                gold[index] = list(islice(strings, len(gold[index])))
        return gold

    def _texts(self, examples: Sequence[TaggedSentence]) -> IntArray:
        """The number of the text, a sentence or a document, that an example is of, [N]."""
        documents = [example.document if self.document_context else None for example in examples]
        fresh = [name is None or name != before for before, name in pairwise([None, *documents])]
        return np.cumsum(fresh, dtype=np.int64)

    def _encode_tags(self, examples: Sequence[TaggedSentence]) -> IntArray:
        number = {label: index for index, label in enumerate(self.labels)}
        # A model of others may know IOB1's tags alone: what begins an entity is then I- as well.
        for name in [label for label in self.labels if label.startswith("I-")]:
            number.setdefault(f"B{name[1:]}", number[name])
        codes: list[int] = []
        for example in examples:
            if example.tags is None:
                codes += [IGNORE_INDEX] * len(example.words)
                continue
            try:
                codes += [number[tag] for tag in example.tags]
            except KeyError as error:
                (tag,) = error.args
                raise TaskDataError(
                    f"unknown label {tag!r}",
                    example.where_is(list(example.tags).index(tag)),
                    f"the model knows {', '.join(self.labels)}; training data without it need"
                    " --options.labels with all of them",
                ) from error
        return np.array(codes, dtype=np.int64)
