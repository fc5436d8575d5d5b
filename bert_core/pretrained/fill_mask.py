"""Which words may stand where a text has [MASK].

Shapes: N texts, P places ([MASK]s), V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from bert_core.errors import UserError
from bert_core.features.units import cut_texts, cut_tokens, unit_rows
from bert_core.tasks.encoded_rows import EncodedRows, keep_places
from bert_core.tasks.task import FloatArray
from bert_core.tasks.windows import Overflow
from bert_core.tokenizer import special_token_ids

MASK = "[MASK]"


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
        whole = cut_texts(tokenizer, examples)
        tokens = whole
        if self.overflow != "window":
            tokens = cut_tokens(whole, self.max_length - 2, self.overflow)
        rows = unit_rows(tokens, tokenizer, unit="token", pooling=None, max_length=self.max_length)
        is_mask = tokens.input_ids[rows.units] == special_token_ids(tokenizer).mask
        assert tokens.offsets is not None
        text = np.repeat(np.arange(len(examples)), tokens.lengths)
        masks = rows.units[is_mask]
        return replace(
            keep_places(rows.rows, is_mask),
            num_tokens=whole.lengths + 2,
            truncated=tokens.lengths < whole.lengths,
            notes={"spans": tokens.offsets[masks], "example": text[masks]},
        )

    def decode(
        self, outputs: FloatArray, rows: EncodedRows, examples: Sequence[str]
    ) -> list[dict[str, Any]]:
        """`masks` of each text, from left to right, given logits [P, V].

        Each has the characters `start` to `end` where it stands, and `candidates`, likeliest first:
        `token`, its `id`, its `score`, and the `sequence` with the token in its place. The score is
        the probability among all words, with targets too.
        """
        shifted = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        probabilities = shifted / shifted.sum(axis=1, keepdims=True)
        # A table of embeddings may be longer than the vocabulary.
        known = min(outputs.shape[1], self.tokenizer.get_vocab_size())
        among = np.arange(known) if self.targets is None else np.array(self.targets)
        order = np.lexsort((rows.notes["spans"][:, 0], rows.notes["example"]))
        found: list[dict[str, Any]] = [{"masks": []} for _ in examples]
        for place in order.tolist():
            example = int(rows.notes["example"][place])
            start, end = rows.notes["spans"][place].tolist()
            scores = probabilities[place, among]
            best = np.argsort(-scores, kind="stable")[: self.top_k]
            text = examples[example]
            found[example]["masks"].append(
                {
                    "start": start,
                    "end": end,
                    "candidates": [
                        self._candidate(int(among[each]), float(scores[each]), text, start, end)
                        for each in best.tolist()
                    ],
                }
            )
        return found

    def _candidate(
        self, number: int, score: float, text: str, start: int, end: int
    ) -> dict[str, Any]:
        token = str(self.tokenizer.id_to_token(number))
        filling = token.removeprefix("##")
        before = text[:start]
        if token != filling:  # a sub-word goes on with the word before it
            before = before.rstrip()
        return {
            "token": token,
            "id": number,
            "score": score,
            "sequence": before + filling + text[end:],
        }


def target_ids(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[int, ...]:
    """The ids of words of the vocabulary, each once.

    Raises `UserError` for one that is no single token.
    """
    found: dict[int, None] = {}
    for word in words:
        number = tokenizer.token_to_id(word)
        pieces = (
            tokenizer.encode(word, add_special_tokens=False).ids if number is None else [number]
        )
        if len(pieces) != 1 or pieces[0] == special_token_ids(tokenizer).unk:
            raise UserError("no single token of the vocabulary", word, "take another word")
        found[pieces[0]] = None
    return tuple(found)
