"""Documents -> rows: which sentences stand together in a training example, and their tokens.

The plan of rows is a pure function of the key and the offsets of the shards.
Legend: S sentences, D documents, R rows, T tokens, C tokens that are copied from shards.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from bert_core.errors import UserError
from bert_core.settings import RowSettings
from bert_core.text.rng import CounterHash, IntArray, UInt32Array, ragged_arange
from bert_core.text.shards import Shard, TokenShards

_KEPT_SHARDS = 32
"""Shards whose running lengths stay in memory: two of the loader's groups."""


@dataclass(frozen=True)
class RowPlan:
    """Rows as token ranges in shards; every array is int64 [R].

    `copy` of the corpus, `shard` and `start`, the sentence a row begins with, name the row.
    Segment B may lie in another shard. Lengths are those after truncation. `next_sentence` is 0
    for IsNext, 1 for NotNext and -1 where the format has no second segment; there, segment A may
    run over several documents with `num_separators` more [SEP] between them.
    """

    copy: IntArray
    shard: IntArray
    start: IntArray
    a_offset: IntArray
    a_length: IntArray
    b_shard: IntArray
    b_offset: IntArray
    b_length: IntArray
    next_sentence: IntArray
    num_separators: IntArray

    def take(self, rows: IntArray) -> "RowPlan":
        """The plan of the rows with these indices, in this order."""
        return RowPlan(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))

    def followed_by(self, other: "RowPlan") -> "RowPlan":
        """These rows, then the other ones."""
        names = self.__dataclass_fields__
        pairs = ((getattr(self, name), getattr(other, name)) for name in names)
        return RowPlan(*(np.concatenate(pair) for pair in pairs))

    def shifted(self, num_shards: int) -> "RowPlan":
        """The same rows where so many shards of another corpus stand before theirs."""
        return replace(self, shard=self.shard + num_shards, b_shard=self.b_shard + num_shards)

    @property
    def lengths(self) -> IntArray:
        """Tokens of each row, [CLS] and [SEP] included."""
        specials = np.where(self.next_sentence >= 0, 3, 2) + self.num_separators
        return self.a_length + self.b_length + specials


class RowPlanner:
    """Plans the rows of any shard, for any copy of the corpus, at one sequence length.

    Each copy (an epoch, unless masks are static) has rows of its own. Raises `UserError` where
    pairs are asked of a corpus of a single document.
    """

    def __init__(
        self,
        shards: TokenShards,
        settings: RowSettings,
        sequence_length: int,
        key: tuple[int | str, ...],
    ) -> None:
        self._shards = shards
        self._settings = settings
        self._pairs = settings.input_format == "segment_pair"
        self._max_tokens = sequence_length - (3 if self._pairs else 2)
        self._random = CounterHash(*key, "rows")
        self._running_lengths: dict[int, IntArray] = {}
        documents = [shard.num_documents for shard in shards.shards]
        self._first_document = np.cumsum([0, *documents])
        if self._pairs and self._first_document[-1] < 2:
            raise UserError(
                "a second segment from another document needs two documents or more",
                "the training split holds one",
                "give more documents, or set --rows.input_format full_sentences and"
                " --rows.objective mlm",
            )

    def row_starts(self, copy: int, shard: int) -> IntArray:
        """The sentences at which the rows of a shard begin, ascending; int64 [R].

        Every sentence is asked where a row that began there would leave off; the rows are the
        path from the first sentence along the answers. All but that walk is array arithmetic.
        """
        every = np.arange(self._shards.shards[shard].num_sentences)
        following = self._split(shard, every, self._name(copy, shard, every))[1].tolist()
        starts, sentence = [], 0
        while sentence < len(following):
            starts.append(sentence)
            sentence = following[sentence]
        return np.array(starts, dtype=np.int64)

    def rows(self, copy: IntArray, shard: IntArray, start: IntArray) -> RowPlan:
        """The rows that begin at the given sentences of the given shards; arrays [R]."""
        name = self._name(copy, shard, start)
        a_offset, a_length, b_shard, b_offset, b_length, label, separators = np.zeros(
            (7, len(start)), dtype=np.int64
        )
        for index in np.unique(shard).tolist():
            here = np.flatnonzero(shard == index)
            offsets = self._shards.shards[index].sentences
            middle, end, label[here] = self._split(index, start[here], name[here])
            a_offset[here] = offsets[start[here]]
            a_length[here] = offsets[middle] - a_offset[here]
            b_shard[here] = index
            b_offset[here] = offsets[middle]
            b_length[here] = offsets[end] - b_offset[here]
            if not self._pairs:
                last = self._document_of(index, middle - 1)
                separators[here] = last - self._document_of(index, start[here])
        not_next = np.flatnonzero(label == 1)
        b_shard[not_next], b_offset[not_next], b_length[not_next] = self._other_segments(
            shard[not_next], start[not_next], a_length[not_next], name[not_next]
        )
        plan = RowPlan(
            copy, shard, start, a_offset, a_length, b_shard, b_offset, b_length, label, separators
        )
        return self._truncated(plan, name)

    def _name(self, copy: int | IntArray, shard: int | IntArray, start: IntArray) -> UInt32Array:
        """One number for each row, from which all its random decisions follow."""
        return self._random.bits(copy, shard, start)

    def _document_of(self, shard: int, sentence: IntArray) -> IntArray:
        """The document, counted within its shard, that each sentence stands in."""
        return np.searchsorted(self._shards.shards[shard].documents, sentence, side="right") - 1

    def _targets(self, name: UInt32Array) -> IntArray:
        """The number of tokens each row is planned for: now and then a short one."""
        short = self._random.uniform(0, name) < self._settings.short_row_share
        drawn = 2 + self._random.below(self._max_tokens - 1, 1, name)
        return np.where(short, drawn, self._max_tokens)

    def _split(
        self, shard: int, start: IntArray, name: UInt32Array
    ) -> tuple[IntArray, IntArray, IntArray]:
        """Divides the sentences from `start` on; each answer [R].

        Where segment A ends, where the row's own sentences end (what a NotNext row did not use
        begins the next one), and the label.
        """
        if not self._pairs:
            end = self._full_sentences_end(shard, start)
            return end, end, np.full(len(start), -1)
        data = self._shards.shards[shard]
        document_end = data.documents[self._document_of(shard, start) + 1].astype(np.int64)
        wanted = data.sentences[start].astype(np.int64) + self._targets(name)
        end = np.minimum(np.searchsorted(data.sentences, wanted, side="left"), document_end)
        # One long sentence fills a row alone; with the next one beside it, both labels can be.
        end = np.minimum(np.maximum(end, start + 2), document_end)
        middle = start + 1 + self._random.below(np.maximum(end - start - 1, 1), 2, name)
        is_next = (self._random.bits(3, name) & np.uint32(1)).astype(bool)
        is_next &= end - start >= 2  # the last sentence of a document has nothing after it
        return middle, np.where(is_next, end, middle), np.where(is_next, 0, 1)

    def _full_sentences_end(self, shard: int, start: IntArray) -> IntArray:
        """The end of the run of whole sentences that fits, one [SEP] between documents."""
        used_up_to = self._used_up_to(shard)
        offsets = self._shards.shards[shard].sentences
        room = offsets[start].astype(np.int64) + self._document_of(shard, start)
        end = np.searchsorted(used_up_to, room + self._max_tokens, side="right") - 1
        return np.maximum(end, start + 1)

    def _used_up_to(self, shard: int) -> IntArray:
        """Tokens of a shard before each sentence end, separators between documents included."""
        if shard not in self._running_lengths:
            offsets = self._shards.shards[shard].sentences.astype(np.int64)
            offsets[1:] += self._document_of(shard, np.arange(len(offsets) - 1))
            while len(self._running_lengths) >= _KEPT_SHARDS:
                self._running_lengths.pop(next(iter(self._running_lengths)))
            self._running_lengths[shard] = offsets
        return self._running_lengths[shard]

    def _other_segments(
        self, shard: IntArray, start: IntArray, a_length: IntArray, name: UInt32Array
    ) -> tuple[IntArray, IntArray, IntArray]:
        """Shard, token offset and length of a segment from any other document, for each row."""
        own = np.empty(len(start), dtype=np.int64)
        for index in np.unique(shard).tolist():
            here = np.flatnonzero(shard == index)
            own[here] = self._first_document[index] + self._document_of(index, start[here])
        other = self._random.below(self._first_document[-1] - 1, 4, name)
        other += other >= own  # skips the row's own document, leaving the others equally likely
        wanted = np.maximum(self._targets(name) - a_length, 1)
        b_shard = np.searchsorted(self._first_document, other, side="right") - 1
        b_offset, b_length = np.empty((2, len(start)), dtype=np.int64)
        for index in np.unique(b_shard).tolist():
            here = np.flatnonzero(b_shard == index)
            data = self._shards.shards[index]
            within = other[here] - self._first_document[index]
            first = data.documents[within].astype(np.int64)
            last = data.documents[within + 1].astype(np.int64)
            begin = data.sentences[first + self._random.below(last - first, 5, name[here])]
            b_offset[here] = begin
            end = np.searchsorted(data.sentences, b_offset[here] + wanted[here], side="left")
            b_length[here] = data.sentences[np.minimum(end, last)] - b_offset[here]
        return b_shard, b_offset, b_length

    def _truncated(self, plan: RowPlan, name: UInt32Array) -> RowPlan:
        """Cuts the longer segment, token by token, at a random end, until the row fits.

        Closed form of the loop in the paper's code: the longer one loses first, then both in
        turn, B first; of k tokens cut, a binomial(k, 1/2) number goes from the front.
        """
        a, b = plan.a_length, plan.b_length
        excess = np.maximum(a + b - self._max_tokens, 0)
        levelling = np.minimum(excess, np.abs(a - b))
        rest = excess - levelling
        a_cut = np.where(a > b, levelling, 0) + rest // 2
        b_cut = np.where(a > b, 0, levelling) + (rest + 1) // 2
        if not self._pairs:  # a lone sentence longer than the row keeps its beginning
            return replace(plan, a_length=np.minimum(a, self._max_tokens))
        a_front = self._front_cuts(a_cut, name, 6)
        b_front = self._front_cuts(b_cut, name, 7)
        return replace(
            plan,
            a_offset=plan.a_offset + a_front,
            a_length=a - a_cut,
            b_offset=plan.b_offset + b_front,
            b_length=b - b_cut,
        )

    def _front_cuts(self, cuts: IntArray, name: UInt32Array, purpose: int) -> IntArray:
        """For each row, how many of its `cuts` coin flips show the front."""
        front = np.zeros(len(cuts), dtype=np.int64)
        rows = np.flatnonzero(cuts)
        if not len(rows):
            return front
        words = (cuts[rows] + 31) // 32
        word = ragged_arange(np.zeros(len(rows), dtype=np.int64), words)
        row = np.repeat(rows, words)
        flips = self._random.bits(purpose, name[row], word)
        valid = np.minimum(cuts[row] - 32 * word, 32).astype(np.uint64)
        kept = flips & ((np.uint64(1) << valid) - np.uint64(1)).astype(np.uint32)
        np.add.at(front, row, np.bitwise_count(kept).astype(np.int64))
        return front


def assemble(
    shards: TokenShards, plan: RowPlan, *, cls_id: int, sep_id: int
) -> tuple[IntArray, IntArray]:
    """[CLS] A [SEP] (B [SEP]) of every row, and the segment of each token; both int64 [T]."""
    lengths = plan.lengths
    first = np.cumsum(lengths) - lengths
    input_ids = np.full(int(lengths.sum()), sep_id, dtype=np.int64)
    input_ids[first] = cls_id
    paired = np.flatnonzero(plan.next_sentence >= 0)
    shard = np.concatenate([plan.shard, plan.b_shard[paired]])
    by_shard = np.argsort(shard, kind="stable")
    offset = np.concatenate([plan.a_offset, plan.b_offset[paired]])[by_shard]
    length = np.concatenate([plan.a_length, plan.b_length[paired]])[by_shard]
    place = np.concatenate([first + 1, (first + plan.a_length + 2)[paired]])[by_shard]
    source, target = ragged_arange(offset, length), ragged_arange(place, length)  # [C]
    for index, begin, end in _runs(shard[by_shard]):
        data = shards.shards[index]
        copied = slice(int(length[:begin].sum()), int(length[:end].sum()))
        if len(paired) < len(first):
            target[copied] += _separators_before(
                data, source[copied], offset[begin:end], length[begin:end]
            )
        input_ids[target[copied]] = np.asarray(data.tokens)[source[copied]]
    return input_ids, _segments(plan)


def _runs(values: IntArray) -> Iterator[tuple[int, int, int]]:
    """Each value of an ascending array with where it begins and ends."""
    begins = np.flatnonzero(np.diff(values, prepend=-1))
    ends = np.append(begins, len(values))[1:]
    return zip(values[begins].tolist(), begins.tolist(), ends.tolist(), strict=True)


def _separators_before(
    shard: Shard, source: IntArray, offset: IntArray, length: IntArray
) -> IntArray:
    """How many documents of its row ended before each token: one [SEP] stands for each; [C]."""
    begins = shard.sentences[shard.documents[:-1]]
    document = np.searchsorted(begins, source, side="right")
    return document - np.repeat(np.searchsorted(begins, offset, side="right"), length)


def _segments(plan: RowPlan) -> IntArray:
    """0 up to the [SEP] after segment A, 1 from there on; int64 [T]."""
    of_b = np.where(plan.next_sentence >= 0, plan.b_length + 1, 0)
    sizes = np.stack([plan.lengths - of_b, of_b], axis=1).ravel()
    return np.repeat(np.tile(np.array([0, 1]), len(of_b)), sizes)
