"""Our own routes about texts: similarity, tokens and back, and explanations.

An explanation is what a model looked at in a text, and what its answer depends on.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from fastapi import APIRouter, Response
from tokenizers import Encoding

from bert_core.features.extractor import FeatureChoice
from bert_core.features.inspection import attention_maps, gradient_times_input
from bert_core.interface import Answer
from bert_core.model.strategies import find_strategy
from bert_core.tasks.classification import Classification, Text
from bert_core.tasks.outputs import compute_all_outputs
from serving.errors import TOO_LONG, RequestError
from serving.limits import BYTES_OF_A_TOKEN
from serving.models import ServedModel
from serving.request_context import span
from serving.routes.json_routes import Routes, answered, answered_apart, own_router
from serving.schemas import (
    DecodeAnswer,
    DecodeRequest,
    ExplainAnswer,
    ExplainRequest,
    Similarity,
    SimilarityAnswer,
    SimilarityRequest,
    TextPair,
    Token,
    TokenizeAnswer,
    TokenizeRequest,
    Tokens,
)
from serving.validation import Inputs, check_ids, check_pairs, has_more_tokens, num_bytes


class TextRoutes(Routes):
    """Similarity, tokens and back, and explanations."""

    @property
    def router(self) -> APIRouter:
        """The routes under their paths."""
        texts = {
            "/v1/similarity": (self.similarity, SimilarityAnswer),
            "/v1/tokenize": (self.tokenize, TokenizeAnswer),
            "/v1/decode": (self.decode, DecodeAnswer),
        }
        return own_router(
            {"texts": texts, "explanation": {"/v1/explain": (self.explain, ExplainAnswer)}}
        )

    async def similarity(self, request: SimilarityRequest) -> Response:
        """Compares texts with one: the cosine of their vectors."""
        model = self._engine.traffic.find_encoder(request.model)
        choice = FeatureChoice(
            strategy=find_strategy(request.strategy), pooling=request.pooling, normalize=True
        )
        inputs = Inputs(
            [request.source, *request.inputs],
            "inputs",
            lambda number: f"inputs[{number - 1}]" if number else "source",
        )
        found = await self._engine.features(model, choice, inputs, request.overflow)
        source, *others = found
        vector = source.vectors[0]
        results = [
            Similarity(
                n_tokens=other.num_tokens,
                truncated=other.truncated,
                score=float(np.clip(np.dot(vector, other.vectors[0]), -1, 1)),
            )
            for other in others
        ]
        read = Answer(n_tokens=source.num_tokens, truncated=source.truncated)
        answer = SimilarityAnswer(
            model=model.name, version=model.version, source=read, results=results
        )
        return await answered(self._engine, lambda: answer)

    async def tokenize(self, request: TokenizeRequest) -> Response:
        """Tokenizes texts as a model does."""
        model = self._engine.traffic.find_encoder(request.model)
        inputs = Inputs.of(request.inputs)
        encodings = await self._engine.tokenize(model, inputs, request.add_special_tokens)

        def build() -> TokenizeAnswer:
            results = [
                Tokens(n_tokens=len(encoding), tokens=tokens_of(encoding, [text]))
                for text, encoding in zip(inputs.items, encodings, strict=True)
            ]
            return TokenizeAnswer(model=model.name, version=model.version, results=results)

        return await answered(self._engine, build)

    async def decode(self, request: DecodeRequest) -> Response:
        """Decodes token ids to texts."""
        model = self._engine.traffic.find_encoder(request.model)
        lists, name = [ids for ids in request.ids if isinstance(ids, list)], "ids[{0}][{1}]"
        if not lists:  # those of one text
            lists, name = (
                [[token_id for token_id in request.ids if isinstance(token_id, int)]],
                "ids[{1}]",
            )
        most = self._engine.limits.max_request_tokens
        check_ids(model.tokenizer, lists, most, "ids", name.format)
        texts = await self._engine.decode(
            model, Inputs.of(lists, "ids"), request.skip_special_tokens
        )
        answer = DecodeAnswer(model=model.name, version=model.version, results=texts)
        return await answered(self._engine, lambda: answer)

    async def explain(self, request: ExplainRequest) -> Response:
        """Shows the attention of each layer and head, and, of a classifier, each token's share."""
        model = self._engine.traffic.find_any(request.model, "explanations")
        given = request.inputs
        first, second = (
            (given.text, given.text_pair) if isinstance(given, TextPair) else (given, None)
        )
        most = min(self._engine.limits.max_explained_tokens, model.config.max_position_embeddings)
        texts = [first] if second is None else [first, second]
        is_longer = num_bytes(texts) > most * BYTES_OF_A_TOKEN
        is_longer = is_longer or has_more_tokens(model.tokenizer, texts, most)
        encoding = None if is_longer else model.tokenizer.encode(first, second)
        if encoding is None or len(encoding) > most:
            detail = f"more than {most} tokens, which is what can be explained"
            raise RequestError(422, TOO_LONG, detail, field="inputs", remedy="shorten it")
        layers = request.layers or list(range(1, model.config.num_hidden_layers + 1))
        if max(layers) > model.config.num_hidden_layers:
            detail = f"{model.name} has {model.config.num_hidden_layers} layers"
            remedy = "ask for lower ones"
            raise RequestError(422, "No such layer", detail, field="layers", remedy=remedy)
        self._check_numbers(len(layers), len(encoding), model.config.num_attention_heads)
        text = Text(first, second, None)
        label = self._label(model, request.label, text)
        explain = partial(_explain, model, text, encoding, layers, label)
        with span("compute"):
            answer = await self._engine.explain(explain, len(encoding))
        return await answered_apart(self._engine, lambda: answer)

    def _check_numbers(self, num_layers: int, num_tokens: int, num_heads: int) -> None:
        most = self._engine.limits.max_answer_numbers
        if num_layers * num_heads * num_tokens**2 > most:
            detail = (
                f"{num_layers} layers times {num_heads} heads times {num_tokens} tokens squared,"
                f" and an answer has {most} numbers at most"
            )
            remedy = "ask for fewer layers, or about a shorter text"
            raise RequestError(413, "Too long an answer", detail, field="layers", remedy=remedy)

    def _label(self, model: ServedModel, label: str | None, text: Text) -> str | None:
        """The label that is asked for, if the model can be asked; raises `RequestError` if not."""
        if not isinstance(model.task, Classification):
            if label is not None:
                detail = f"{model.name} has no labels of texts"
                remedy = "leave it out, or name a model of classification"
                raise RequestError(422, "Wrong model", detail, field="label", remedy=remedy)
            return None
        check_pairs(Inputs.of(text), model.task, model.name)
        if label is not None and label not in model.task.labels:
            raise RequestError(
                422,
                "Unknown label",
                f"{model.name} knows {', '.join(model.task.labels) or 'no labels, but a number'}",
                field="label",
                remedy="take one of them, or leave it out",
            )
        return label


def tokens_of(encoding: Encoding, texts: Sequence[str]) -> list[Token]:
    """The tokens of a text, or of a pair, whose characters are each counted in their own text.

    The space that a token of SentencePiece or of bytes begins with is none of its characters.
    """
    # Each of these is a list that is made anew whenever it is asked for.
    spans = list(map(partial(_without_space, texts), encoding.offsets, encoding.sequence_ids))
    columns = encoding.ids, encoding.tokens, encoding.special_tokens_mask, spans
    return [
        Token(
            id=number,
            token=token,
            special=bool(special),
            start=None if special else start,
            end=None if special else end,
        )
        for number, token, special, (start, end) in zip(*columns, strict=True)
    ]


def _without_space(
    texts: Sequence[str], span: tuple[int, int], number: int | None
) -> tuple[int, int]:
    start, end = span
    if number is not None:
        while start < end and texts[number][start].isspace():
            start += 1
    return start, end


def _explain(
    model: ServedModel, text: Text, encoding: Encoding, layers: list[int], label: str | None
) -> ExplainAnswer:
    """Everything about one text; with a task of classification, its attributions too."""
    maps = attention_maps(model.model.encoder, model.tokenizer, text.first, text.second)
    chosen = maps.probabilities[torch.tensor(layers) - 1].double().numpy()
    answer = ExplainAnswer.model_construct(
        model=model.name,
        version=model.version,
        n_tokens=len(encoding),
        truncated=False,
        tokens=tokens_of(encoding, [text.first, text.second or ""]),
        layers=layers,
        attention=np.round(chosen, 6),  # a third of the digits
    )
    task = model.task
    if not isinstance(task, Classification):
        return answer
    rows = task.encode([text], model.tokenizer)
    if rows.truncated.any() or len(rows.lengths) > 1:
        detail = f"{len(encoding)} tokens are more than {model.name} reads at once"
        raise RequestError(422, TOO_LONG, detail, field="inputs", remedy="shorten it")
    device = model.batcher.device
    number = task.labels.index(label) if label is not None else 0
    if label is None and task.labels:
        outputs, _ = compute_all_outputs(task, model.model, rows, device=device)
        (found,) = task.decode(outputs, rows, [text])
        number = int(outputs[0].argmax())
        if "label" in found:  # which a threshold may have decided
            number = task.labels.index(found["label"])
    batch = rows.batch(np.arange(1), "packed").to(device)
    shares = gradient_times_input(model.model, batch, lambda outputs: outputs[0, number])
    answer.label = task.labels[number] if task.labels else None
    answer.attributions = shares.tolist()
    return answer
