"""A whole model as one forward pass over padded rows, for the graphs of other programs.

It is the encoder in the padded layout and the head behind it, with plain operations, so that ONNX
Runtime and OpenVINO can take it over.
Shapes: N rows of n tokens, H hidden size, L outputs of the head, V vocabulary, D numbers of a
vector.
"""

from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bert_core.errors import UserError
from bert_core.features.sentence_pooling import (
    SentencePooling,
    read_sentence_pooling,
    read_sparse_pooling,
)
from bert_core.model.bert import Bert
from bert_core.model.layout import Layout, Padded, within_reach
from bert_core.model.operations import TorchOperations, use_operations
from bert_core.model.tagger import FEATURE_TAGGER
from bert_core.model_folder import load_model_folder
from bert_core.quantization import read_precision
from bert_core.tasks.foreign_models import find_task
from bert_core.tasks.task import Task
from bert_core.tasks.text_embedding import TextEmbedding
from bert_core.tokenizer_settings import MODULES

INPUTS = ("input_ids", "attention_mask", "token_type_ids")

Answer = Literal["row", "token", "span", "word", "vector", "sparse_vector"]
"""What a model answers: logits of a row or of each token, the two of a span, those of the masked
word, or a vector of the text."""

OUTPUTS: dict[Answer, tuple[str, ...]] = {
    "row": ("logits",),
    "token": ("logits",),
    "span": ("start_logits", "end_logits"),
    "word": ("logits",),
    "vector": ("last_hidden_state", "sentence_embedding"),
    "sparse_vector": ("sparse_embedding",),
}
"""The names of the outputs, those of `transformers` and sentence-transformers."""


class GraphOperations(TorchOperations):
    """Attention of padded rows whose mask is added to the scores: what other programs fuse."""

    @staticmethod
    def attention(
        query_key_value: Tensor,
        num_heads: int,
        layout: Layout,
        dropout: float = 0.0,
        *,
        causal: bool = False,
        reach: int | None = None,
    ) -> Tensor:
        """As `bert_core.model.operations.attention`, of rows that see both ways."""
        assert isinstance(layout, Padded)
        assert not causal
        assert not dropout
        split = query_key_value.view(*layout.mask.shape, 3, num_heads, -1)
        query, key, value = split.permute(2, 0, 3, 1, 4)  # [N, heads, n, H / heads] each
        seen = layout.mask[:, None, None, :]
        if reach is not None:
            slots = torch.arange(layout.mask.shape[1], device=seen.device)
            seen = seen & within_reach(slots, slots, reach)
        # Finite, so that what sees no token is no NaN.
        hidden = (~seen).to(query.dtype) * torch.finfo(query.dtype).min  # [N, 1, 1 or n, n]
        mixed = F.scaled_dot_product_attention(query, key, value, hidden)
        return mixed.transpose(1, 2).reshape(query_key_value.shape[0], -1)


class PaddedModel(nn.Module):
    """An encoder and its head as a function of padded rows.

    `task` is None for a model that was not fine-tuned. `pooling` says how a text becomes a vector,
    and `max_length` how long a row may be.
    """

    def __init__(
        self, model: Bert, answer: Answer, task: Task | None, pooling: SentencePooling
    ) -> None:
        super().__init__()
        self.model, self.task, self.pooling = model, task, pooling
        self.answer: Answer = answer
        longest = pooling.max_length if task is None else task.max_length
        positions = model.config.max_position_embeddings
        self.max_length = min(longest or positions, positions)

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of what `forward` returns."""
        return OUTPUTS[self.answer]

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor
    ) -> tuple[Tensor, ...]:
        """The outputs of rows whose three inputs are int64 [N, n], the mask 1 at real tokens.

        - row: [N, L]; token: [N, n, L]; span: two of [N, n]; word: [N, n, V]
        - vector: [N, n, H] and [N, D]; sparse_vector: [N, V]
        """
        states = self.states(input_ids, attention_mask, token_type_ids)
        match self.answer:
            case "row":
                return (self._head("classifier", self._of_row(states, attention_mask)),)
            case "token":
                return (self._head("classifier", states),)
            case "span":
                start, end = self._head("span", states).unbind(-1)
                return start, end
            case "word":
                return (self._word_logits(states),)
            case "vector":
                return states, self._vector(states, attention_mask)
            case "sparse_vector":
                logits = self._word_logits(states).masked_fill(_padding(attention_mask), -torch.inf)
                return (logits.amax(1).relu().log1p(),)

    def states(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """The last layer's states, [N, n, H]; those at padding mean nothing."""
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        inputs = (
            each.flatten() for each in (input_ids, token_type_ids, positions.expand_as(input_ids))
        )
        states = self.model.encoder(*inputs, Padded(attention_mask > 0))
        return states.unflatten(0, input_ids.shape)

    def _head(self, name: str, states: Tensor) -> Tensor:
        heads = self.model.heads
        return heads[name](heads["pooler"](states) if "pooler" in heads else states)

    def _word_logits(self, states: Tensor) -> Tensor:
        return self.model.heads["masked_token"](states, self.model.encoder.word_embeddings)

    def _of_row(self, states: Tensor, attention_mask: Tensor) -> Tensor:
        assert self.task is not None
        return _mean(states, attention_mask) if self.task.head.reads_mean else states[:, 0]

    def _vector(self, states: Tensor, attention_mask: Tensor) -> Tensor:
        if self.pooling.pooling == "cls":
            vectors = states[:, 0]
        elif self.pooling.pooling == "max":
            vectors = states.masked_fill(_padding(attention_mask), -torch.inf).amax(1)
        else:
            vectors = _mean(states, attention_mask)
        for dense in self.pooling.dense:
            vectors = dense.map(vectors)
        return F.normalize(vectors, dim=1)


def _mean(states: Tensor, attention_mask: Tensor) -> Tensor:
    """The means [N, H] of the states [N, n, H] of real tokens."""
    real = attention_mask.unsqueeze(-1).to(states.dtype)
    return (states * real).sum(1) / real.sum(1).clamp(min=1)


def _padding(attention_mask: Tensor) -> Tensor:
    return (attention_mask == 0).unsqueeze(-1)


def load_padded_model(folder: Path) -> PaddedModel:
    """Opens a model folder as one forward pass in float32, without dropout.

    Raises `UserError` for a folder that is damaged, or of a kind that is not computed so.
    """
    if read_precision(folder) != "float32":
        what, remedy = "a model folder in int8", "pass the float32 folder that it was made from"
        raise UserError(what, str(folder), remedy)
    config, model, _ = load_model_folder(folder)
    if config.is_decoder:
        what = "an encoder that attends to the left only cannot be exported"
        raise UserError(what, str(folder), "serve it with python -m serving")
    if FEATURE_TAGGER in model.heads:
        what = "a BiLSTM tagger over an encoder's features cannot be exported"
        raise UserError(
            what, str(folder), "fine-tune one with --approach finetune, or serve this one"
        )
    known = find_task(folder, model)
    task = known[1] if known else None
    answer = _answer(folder, model, task)
    pooling = SentencePooling()
    if answer in ("vector", "sparse_vector"):
        read = read_sentence_pooling if answer == "vector" else read_sparse_pooling
        pooling = read(folder, config.max_position_embeddings)
    use_operations(model, GraphOperations())
    return PaddedModel(model, answer, task, pooling).eval().requires_grad_(False)


def _answer(folder: Path, model: Bert, task: Task | None) -> Answer:
    if isinstance(task, TextEmbedding):
        return "sparse_vector" if task.is_sparse else "vector"
    if task is not None:
        if task.head.name == "span":
            return "span"
        return "row" if task.head.pooled else "token"
    has_words = "masked_token" in model.heads and not (folder / MODULES).is_file()
    return "word" if has_words else "vector"
