"""Every label of a classification with its score: a probability, or what the head says itself.

Shapes: N examples, L labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from bert_core.tasks.classification import (
    Classification,
    ScoreFunction,
    Text,
    outputs_of_examples,
)
from bert_core.tasks.encoded_rows import EncodedRows
from bert_core.tasks.task import FloatArray


@dataclass(frozen=True)
class LabelScores:
    """Asks a model of classification for the scores of all its labels.

    Without a `function` they are what its task has them: shares of one for single labels,
    probabilities of their own for several, the number itself for a regression.
    """

    task: Classification
    function: ScoreFunction | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels, in the order of the outputs; that of a number has the usual name."""
        return self.task.labels or ("LABEL_0",)

    def encode(self, examples: Sequence[Text], tokenizer: Tokenizer) -> EncodedRows:
        """The rows of the task."""
        return self.task.encode(examples, tokenizer)

    def decode(
        self, outputs: FloatArray, rows: EncodedRows, examples: Sequence[Text]
    ) -> list[dict[str, Any]]:
        """`scores` of each example: of each label its own, in the order of the labels."""
        logits = outputs_of_examples(outputs, rows, len(examples)).astype(np.float64)
        match self.function or self.task.score_function:
            case "softmax":
                shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
                scores = shifted / shifted.sum(axis=1, keepdims=True)
            case "sigmoid":
                scores = 1 / (1 + np.exp(-logits))
            case _:
                scores = logits
        return [{"scores": dict(zip(self.labels, row, strict=True))} for row in scores.tolist()]
