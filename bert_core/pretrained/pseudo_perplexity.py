"""How likely a text is to a masked language model: each token masked in turn.

Salazar et al. 2020, Masked Language Model Scoring; with `masking="rest_of_word"` as Kauf and
Ivanova 2023 mend it: a token's followers in its word are masked too, so that a rare word of many
sub-words does not give itself away.
Shapes: N texts, W tokens of all texts, R rows (one for each token), P places, as many.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from tokenizers import Tokenizer

from bert_core.features.units import cut_texts, cut_tokens, unit_rows
from bert_core.tasks.encoded_rows import EncodedRows
from bert_core.tasks.task import FloatArray
from bert_core.tasks.windows import Overflow, TooManyTokensError
from bert_core.text.rng import ragged_arange
from bert_core.tokenizer import special_token_ids

Masking = Literal["token", "rest_of_word"]


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
        tokens = whole
        if self.overflow != "window":
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
        # Where a word goes on within its window.
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
