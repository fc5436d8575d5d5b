"""Questions to a pre-trained encoder without fine-tuning: fill-mask and pseudo-perplexity.

Pseudo-perplexity masks each token in turn (Salazar et al. 2020, Masked Language Model Scoring).
With `masking="rest_of_word"` the later tokens of its word are masked too (Kauf and Ivanova 2023),
so that a rare word of many sub-words does not give itself away.
Shapes: N texts, P places, W tokens of all texts, R rows, H hidden size, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Unpack

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from bert_core.errors import UserError
from bert_core.features.states import Computing, states_at_places
from bert_core.features.units import cut_texts, cut_tokens, unit_rows
from bert_core.interface import Masking
from bert_core.model.bert import Bert, MaskedTokenHead
from bert_core.special_tokens import BERT_TOKENS, special_token_ids, special_tokens
from bert_core.tasks.encoded_rows import EncodedRows, keep_places
from bert_core.tasks.sequences import Overflow, TooManyTokensError
from bert_core.tasks.task import FloatArray
from bert_core.text.rng import IntArray, ragged_arange
from bert_core.training.loop import autocast
from bert_core.word_marks import (
    BEGINS,
    CONTINUING,
    behind_spaces,
    space_mark,
    word_ending,
    word_marks,
)


def masked_token_answers(model: Bert, states: Sequence[Tensor], place_counts: Tensor) -> Tensor:
    """Logits [P, V] over the vocabulary, of the last layer's states [P, H]."""
    del place_counts
    (last,) = states
    return model.heads["masked_token"](last, model.encoder.word_embeddings)


def word_weight_answers(model: Bert, states: Sequence[Tensor], place_counts: Tensor) -> Tensor:
    """The weight of each word for each row, [R, V], of the last layer's states [P, H]."""
    (last,) = states
    head = model.heads["masked_token"]
    assert isinstance(head, MaskedTokenHead)
    return head.word_weights(last, model.encoder.word_embeddings, place_counts)


def masked_token_outputs(
    model: Bert, rows: EncodedRows, **computing: Unpack[Computing]
) -> FloatArray:
    """Logits over the vocabulary at all places, float32 [P, V]."""
    outputs = np.empty((len(rows.places), model.config.vocab_size), dtype=np.float32)
    for items, logits in _answers(masked_token_answers, model, rows, **computing):
        outputs[rows.places_of(items)] = logits
    return outputs


def word_weight_outputs(
    model: Bert, rows: EncodedRows, **computing: Unpack[Computing]
) -> FloatArray:
    """The weight of each word for each text, float32 [N, V], the largest of its windows."""
    outputs = np.zeros((len(rows.num_tokens), model.config.vocab_size), dtype=np.float32)
    for items, weights in _answers(word_weight_answers, model, rows, **computing):
        np.maximum.at(outputs, rows.example[rows.rows_of(items)], weights)
    return outputs


def _answers(
    head: Callable[[Bert, Sequence[Tensor], Tensor], Tensor],
    model: Bert,
    rows: EncodedRows,
    **computing: Unpack[Computing],
) -> Iterator[tuple[IntArray, FloatArray]]:
    """The items of each micro-batch and what the head makes of them; see `states_at_places`."""
    last = (model.config.num_hidden_layers,)
    for items, batch, states in states_at_places(model.encoder, rows, last, **computing):
        with (
            torch.inference_mode(),
            autocast(computing["device"], computing["autocast_dtype"]),
        ):
            found = head(model, states, batch.place_counts)
        yield items, found.float().cpu().numpy()


def named_weights(weights: FloatArray, tokenizer: Tokenizer) -> list[dict[str, float]]:
    """The words of each text that have a weight, [N, V], heaviest first.

    Rows of a table of embeddings that no word has are left out.
    """
    found = []
    for each in weights:
        (words,) = np.nonzero(each)
        order = words[np.argsort(-each[words], kind="stable")]
        named = ((tokenizer.id_to_token(word), float(each[word])) for word in order.tolist())
        found.append({token: weight for token, weight in named if token is not None})
    return found


def next_sentence_answers(model: Bert, states: Sequence[Tensor], place_counts: Tensor) -> Tensor:
    """Logits [P, 2], IsNext and NotNext, of the last layer's states [P, H] at [CLS]."""
    del place_counts
    (last,) = states
    return model.heads["next_sentence"](model.heads["pooler"](last))


MASK = BERT_TOKENS.mask
"""What stands for a missing word in texts, whatever a vocabulary calls it."""


def count_masks(text: str, tokenizer: Tokenizer) -> int:
    """How many words are missing in a text; a vocabulary's own name for them counts as well."""
    return sum(map(text.count, {MASK, special_tokens(tokenizer).mask}))


@dataclass(frozen=True)
class FillMask:
    """Asks for the words of each [MASK] of a text, each alone, the others staying masked.

    `targets` are the ids of those among which is chosen, by default all of the vocabulary.
    """

    tokenizer: Tokenizer
    max_length: int
    top_k: int = 5
    targets: tuple[int, ...] | None = None
    overflow: Overflow = "window"

    def encode(self, examples: Sequence[str], tokenizer: Tokenizer) -> EncodedRows:
        """A row for each text, or several windows; places are its [MASK]s.

        Notes: `spans` [P, 2], the characters of each [MASK]; `example` [P], its text.
        """
        own = special_tokens(tokenizer).mask  # as long as MASK, so characters stay where they are
        texts = [text.replace(MASK, own) for text in examples]
        whole = cut_texts(tokenizer, texts)
        tokens = cut_tokens(whole, self.max_length - 2, self.overflow)
        rows = unit_rows(tokens, tokenizer, unit="token", pooling=None, max_length=self.max_length)
        is_mask = tokens.input_ids[rows.units] == special_token_ids(tokenizer).mask
        assert tokens.offsets is not None
        masks = rows.units[is_mask]
        example = np.repeat(np.arange(len(examples)), tokens.lengths)[masks]
        spans = tokens.offsets[masks]  # a mask may take in the space beside it
        for span, number in zip(spans, example.tolist(), strict=True):
            begin = texts[number].find(own, *span.tolist())
            if begin >= 0:
                span[:] = begin, begin + len(own)
        return replace(
            keep_places(rows.rows, is_mask),
            num_tokens=whole.lengths + 2,
            truncated=tokens.lengths < whole.lengths,
            notes={"spans": spans, "example": example},
        )

    def decode(
        self, outputs: FloatArray, rows: EncodedRows, examples: Sequence[str]
    ) -> list[dict[str, Any]]:
        """`masks` of each text, from left to right, given logits [P, V].

        Each has its characters `start` to `end`, and `candidates`, likeliest first:
        `token`, its `id`, its `score`, and the `sequence` with the token in its place. The score is
        the probability among all words, with targets too.
        """
        shifted = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        probabilities = shifted / shifted.sum(axis=1, keepdims=True)
        among = np.arange(outputs.shape[1]) if self.targets is None else np.array(self.targets)
        order = np.lexsort((rows.notes["spans"][:, 0], rows.notes["example"]))
        found: list[dict[str, Any]] = [{"masks": []} for _ in examples]
        for place in order.tolist():
            example = int(rows.notes["example"][place])
            start, end = rows.notes["spans"][place].tolist()
            scores = probabilities[place, among]
            ranked = map(int, among[np.argsort(-scores, kind="stable")])
            # A row of the table of embeddings may have no token.
            best = (each for each in ranked if self.tokenizer.id_to_token(each) is not None)
            text = examples[example]
            found[example]["masks"].append(
                {
                    "start": start,
                    "end": end,
                    "candidates": [
                        self._candidate(each, float(probabilities[place, each]), text, start, end)
                        for each in islice(best, self.top_k)
                    ],
                }
            )
        return found

    def _candidate(
        self, number: int, score: float, text: str, start: int, end: int
    ) -> dict[str, Any]:
        token = str(self.tokenizer.id_to_token(number))
        filling, before, behind = token.removeprefix(CONTINUING), text[:start], text[end:]
        if ending := word_ending(self.tokenizer):
            if not token.endswith(ending):  # the word goes on behind it
                behind = behind.lstrip()
            token = filling = token.removesuffix(ending)
        elif space_mark(self.tokenizer) is not None:  # its own text has no marks
            token = filling = self.tokenizer.decode([number], skip_special_tokens=False).strip()
        if not ending and not word_marks(self.tokenizer)[number] & BEGINS:
            before = before.rstrip()  # it continues the word before it
        return {"token": token, "id": number, "score": score, "sequence": before + filling + behind}


def target_ids(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[int, ...]:
    """The ids of words of the vocabulary, each once.

    Raises `UserError` for one that is no single token.
    """
    found: dict[int, None] = {}
    for word in words:
        (text,) = behind_spaces(tokenizer, [word])
        # Where tokens have a mark for a space beside them, one of this name is part of a word.
        is_marked = space_mark(tokenizer) is not None or word_ending(tokenizer)
        number = None if is_marked else tokenizer.token_to_id(word)
        pieces = (
            tokenizer.encode(text, add_special_tokens=False).ids if number is None else [number]
        )
        if len(pieces) != 1 or pieces[0] == special_token_ids(tokenizer).unk:
            raise UserError("not one token of the vocabulary", word, "take another word")
        found[pieces[0]] = None
    return tuple(found)


@dataclass(frozen=True)
class PseudoPerplexity:
    """Asks for the log probability of each token of a text, given all others.

    The rows of a text have as many tokens as it has, squared; of more than `max_tokens` in all,
    none are made: `encode` raises `TooManyTokensError`.
    """

    max_length: int
    masking: Masking = "token"
    overflow: Overflow = "window"
    max_tokens: int | None = None

    def encode(self, examples: Sequence[str], tokenizer: Tokenizer) -> EncodedRows:
        """A row for each token of each text, in the window that shows most around it.

        Notes: `targets` [P], the token that is masked; `token` [P], its number among all tokens;
        `spans` [W, 2], the characters of each token; `counts` [N], the tokens of each text.
        """
        whole = cut_texts(tokenizer, examples)
        tokens = cut_tokens(whole, self.max_length - 2, self.overflow)
        units = unit_rows(tokens, tokenizer, unit="token", pooling=None, max_length=self.max_length)
        windows = units.rows
        row = np.repeat(np.arange(len(windows.lengths)), windows.place_counts)  # of each place
        lengths = windows.lengths[row]
        num_tokens = int(lengths.sum())
        if self.max_tokens is not None and num_tokens > self.max_tokens:
            raise TooManyTokensError(
                f"{num_tokens} tokens to be read, each text once for each of its tokens",
                f"at most {self.max_tokens}",
                "ask for fewer or shorter texts at once",
            )
        input_ids = windows.input_ids[ragged_arange(windows.first_tokens[row], lengths)]
        first = np.cumsum(lengths) - lengths
        # The tokens of each word from the place on, within its window.
        counts = np.ones_like(row)
        if self.masking == "rest_of_word":
            counts = self._rest_of_words(tokens.words, units.units, lengths - 1 - windows.places)
        input_ids[ragged_arange(first + windows.places, counts)] = special_token_ids(tokenizer).mask
        ones = np.ones_like(lengths)
        assert tokens.offsets is not None
        return EncodedRows(
            input_ids=input_ids,
            lengths=lengths,
            first_lengths=lengths,
            places=windows.places,
            place_counts=ones,
            labels=np.empty(0, dtype=np.int64),
            labels_per_item=np.zeros_like(lengths),
            rows_per_item=ones,
            example=windows.example[row],
            num_tokens=whole.lengths + 2,
            truncated=tokens.lengths < whole.lengths,
            notes={
                "targets": tokens.input_ids[units.units],
                "token": units.units,
                "spans": tokens.offsets,
                "counts": tokens.lengths,
            },
        )

    def _rest_of_words(
        self, words: np.ndarray, token: np.ndarray, tokens_left: np.ndarray
    ) -> np.ndarray:
        """The tokens from each place on that are of its word, [P], those in its window alone."""
        ends = np.searchsorted(words, words, side="right")  # words ascend
        return np.minimum(ends[token] - token, tokens_left)

    def decode(
        self, outputs: FloatArray, rows: EncodedRows, examples: Sequence[str]
    ) -> list[dict[str, Any]]:
        """Of each text, given the log probability [P, 1] of each place's target.

        - `pseudo_log_likelihood`, the sum over its tokens
        - `pseudo_perplexity`, e to the mean of its negative; None of a text without tokens
        - `tokens`, each with its `text`, characters `start` and `end`, and `log_probability`
        """
        log_probabilities = np.zeros(len(outputs))
        log_probabilities[rows.notes["token"]] = outputs[:, 0]
        counts = rows.notes["counts"]
        ends = np.cumsum(counts)
        spans = rows.notes["spans"].tolist()
        found = []
        for text, begin, end in zip(examples, (ends - counts).tolist(), ends.tolist(), strict=True):
            of_text = log_probabilities[begin:end]
            found.append(
                {
                    "pseudo_log_likelihood": float(of_text.sum()),
                    "pseudo_perplexity": float(np.exp(-of_text.mean())) if end > begin else None,
                    "tokens": [
                        {"text": text[a:b], "start": a, "end": b, "log_probability": each}
                        for (a, b), each in zip(spans[begin:end], of_text.tolist(), strict=True)
                    ],
                }
            )
        return found
