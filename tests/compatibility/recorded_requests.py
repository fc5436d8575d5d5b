"""Requests over all routes that answer, drawn from a seed: what the old server was asked."""

import random
from collections.abc import Callable, Iterator
from typing import Any

from small_tasks import WORDS

ODD_TEXTS = ("", " ", "Zoë Müller sat.", "CAT  mat", "a\tcat\nsat", "猫 sat", "un-happy dogs!")
LONG = " ".join(WORDS * 12)
STRATEGIES = ("last", "second_to_last", "sum_last_four", "weighted_sum_all", "layer_1", "no_such")
Drawn = tuple[str, dict[str, Any]]


class Drawing:
    """Draws bodies of requests."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def text(self) -> str:
        chance = self.random.random()
        if chance < 0.12:
            return self.random.choice(ODD_TEXTS)
        if chance < 0.18:
            return LONG
        return " ".join(self.random.choices(WORDS, k=self.random.randint(1, 12)))

    def masked(self) -> str:
        words = self.random.choices(WORDS, k=self.random.randint(1, 8))
        for _ in range(self.random.choice((0, 1, 1, 1, 2))):
            words.insert(self.random.randint(0, len(words)), "[MASK]")
        return " ".join(words)

    def one_or_more(self, draw: Callable[[], Any]) -> Any:
        if self.random.random() < 0.5:
            return draw()
        return [draw() for _ in range(self.random.randint(1, 4))]

    def some(self, **choices: tuple[Any, ...]) -> dict[str, Any]:
        kept = {name: each for name, each in choices.items() if self.random.random() < 0.4}
        return {name: self.random.choice(each) for name, each in kept.items()}

    def pair(self) -> dict[str, str]:
        return {"text": self.text(), "text_pair": self.text()}

    def question(self) -> dict[str, str]:
        return {"question": self.text(), "context": self.text() or "the cat sat"}

    def ids(self) -> list[int]:
        return [self.random.randint(0, 45) for _ in range(self.random.randint(1, 6))]

    def compared(self) -> dict[str, Any]:
        return {
            "source_sentence": self.text(),
            "sentences": [self.text() for _ in range(self.random.randint(1, 3))],
        }

    # Our own routes

    def _overflow(self) -> dict[str, Any]:
        return self.some(overflow=("error", "left", "right", "window"))

    def classify(self) -> Drawn:
        model = self.random.choice(("sentiment", "topics", "grade", "paraphrase"))
        draw = self.pair if model == "paraphrase" else self.text
        fields = self.some(top_k=(1, 2, 0)) | self._overflow()
        return "/v1/classify", {"model": model, "inputs": self.one_or_more(draw), **fields}

    def ner(self) -> Drawn:
        fields = self.some(aggregation=("none", "simple", "first", "average", "max", "other"))
        body = {"model": "entities", "inputs": self.one_or_more(self.text)}
        return "/v1/ner", body | fields | self._overflow()

    def qa(self) -> Drawn:
        fields = self.some(
            top_k=(1, 2, 3),
            max_answer_length=(1, 3),
            align_to_words=(True, False),
            null_threshold=(0.0, -5.0),
        )
        body = {"model": "answers", "inputs": self.one_or_more(self.question)}
        return "/v1/qa", body | fields | self._overflow()

    def features(self) -> Drawn:
        fields = self.some(
            strategy=STRATEGIES,
            unit=("text", "word", "token"),
            pooling=("mean", "cls", "max", "first"),
            normalize=(True, False),
            encoding=("float", "float", "base64"),
        )
        body = {"model": "vectors", "inputs": self.one_or_more(self.text)}
        return "/v1/features", body | fields | self._overflow()

    def fill_mask(self) -> Drawn:
        fields = self.some(top_k=(1, 3), targets=(["cat", "mat"], ["no such word"]))
        body = {"model": "encoder", "inputs": self.one_or_more(self.masked)}
        return "/v1/fill-mask", body | fields | self._overflow()

    def next_sentence(self) -> Drawn:
        body = {"model": "encoder", "inputs": self.one_or_more(self.pair)}
        return "/v1/next-sentence", body | self._overflow()

    def pseudo_perplexity(self) -> Drawn:
        fields = self.some(masking=("token", "rest_of_word", "letter"))
        body = {"model": "encoder", "inputs": self.one_or_more(self.text)}
        return "/v1/pseudo-perplexity", body | fields | self._overflow()

    def similarity(self) -> Drawn:
        fields = self.some(strategy=STRATEGIES, pooling=("mean", "cls", "max"))
        body = {"model": "vectors", "source": self.text(), "inputs": [self.text(), self.text()]}
        return "/v1/similarity", body | fields | self._overflow()

    def tokenize(self) -> Drawn:
        fields = self.some(add_special_tokens=(True, False))
        return "/v1/tokenize", {
            "model": "encoder",
            "inputs": self.one_or_more(self.text),
            **fields,
        }

    def decode(self) -> Drawn:
        fields = self.some(skip_special_tokens=(True, False))
        return "/v1/decode", {"model": "encoder", "ids": self.one_or_more(self.ids), **fields}

    def explain(self) -> Drawn:
        model, text = self.random.choice((("sentiment", "cat sat"), ("topics", "far mat")))
        fields = self.some(label=("good", "cats", "none"), layers=([1], [2]))
        return "/v1/explain", {"model": model, "inputs": text, **fields}

    # Hugging Face

    def hf_text_classification(self) -> Drawn:
        functions = ("sigmoid", "softmax", "none", "tanh")
        parameters = self.some(function_to_apply=functions, top_k=(1, 2))
        model = self.random.choice(("sentiment", "topics"))
        body = {"inputs": self.one_or_more(self.text), "parameters": parameters}
        return f"/hf/text-classification?model={model}", body

    def hf_token_classification(self) -> Drawn:
        parameters = self.some(
            aggregation_strategy=("none", "simple", "first", "average", "max"),
            ignore_labels=(["O"], ["O", "PER"], []),
            stride=(0, 4),
        )
        body = {"inputs": self.one_or_more(self.text), "parameters": parameters}
        return "/hf/token-classification?model=entities", body

    def hf_question_answering(self) -> Drawn:
        parameters = self.some(
            top_k=(1, 2),
            doc_stride=(2, 8),
            max_answer_len=(1, 4),
            max_seq_len=(24, 48),
            max_question_len=(8,),
            handle_impossible_answer=(True, False),
            align_to_words=(True, False),
        )
        body = {"inputs": self.one_or_more(self.question), "parameters": parameters}
        return "/hf/question-answering?model=answers", body

    def hf_feature_extraction(self) -> Drawn:
        fields = self.some(
            normalize=(True, False),
            truncate=(True, False),
            truncation_direction=("Left", "right"),
            dimensions=(8, 64),
            encoding_format=("float", "base64"),
        )
        body = {"inputs": self.one_or_more(self.text), **fields}
        return "/hf/feature-extraction?model=vectors", body

    def hf_fill_mask(self) -> Drawn:
        parameters = self.some(top_k=(1, 3), targets=(["cat"],))
        body = {"inputs": self.one_or_more(self.masked), "parameters": parameters}
        return "/hf/fill-mask?model=encoder", body

    def hf_sentence_similarity(self) -> Drawn:
        return "/hf/sentence-similarity?model=vectors", {"inputs": self.compared()}

    # Text Embeddings Inference

    def _truncate(self) -> dict[str, Any]:
        return self.some(truncate=(True, False), truncation_direction=("Left", "Right"))

    def embed(self) -> Drawn:
        draw = self.random.choice((self.text, self.text, self.ids))
        fields = self.some(normalize=(True, False), dimensions=(8,), prompt_name=("query",))
        body = {"inputs": self.one_or_more(draw)}
        return "/embed?model=vectors", body | fields | self._truncate()

    def embed_all(self) -> Drawn:
        return "/embed_all?model=vectors", {"inputs": self.text(), **self._truncate()}

    def predict(self) -> Drawn:
        fields = self.some(raw_scores=(True, False)) | self._truncate()
        if self.random.random() < 0.5:
            body = {"inputs": [[self.text(), self.text()], [self.text(), self.text()]]}
            return "/predict?model=paraphrase", body | fields
        return "/predict?model=sentiment", {"inputs": [[self.text()]], **fields}

    def tei_similarity(self) -> Drawn:
        body = {"inputs": self.compared(), "parameters": self._truncate()}
        return "/similarity?model=vectors", body

    def openai(self) -> Drawn:
        draw = self.random.choice((self.text, self.text, self.ids))
        fields = self.some(encoding_format=("float", "base64"), dimensions=(8, 64), user=("ann",))
        return "/v1/embeddings", {"model": "vectors", "input": self.one_or_more(draw), **fields}

    def refused(self) -> Drawn:
        path, body = self.random.choice((self.classify, self.ner, self.qa, self.embed))()
        change = self.random.choice(
            ({"model": "nobody"}, {"no_such_field": 1}, {"inputs": 5}, {"inputs": []}, {})
        )
        return path, body | change if change else {}


POSTED = (
    *(Drawing.classify, Drawing.ner, Drawing.qa, Drawing.features, Drawing.fill_mask),
    *(Drawing.next_sentence, Drawing.pseudo_perplexity, Drawing.similarity, Drawing.tokenize),
    *(Drawing.decode, Drawing.explain, Drawing.hf_text_classification, Drawing.openai),
    *(Drawing.hf_token_classification, Drawing.hf_question_answering, Drawing.hf_fill_mask),
    *(Drawing.hf_feature_extraction, Drawing.hf_sentence_similarity, Drawing.embed),
    *(Drawing.embed_all, Drawing.predict, Drawing.tei_similarity, Drawing.refused),
)
ASKED = (
    *("/health", "/ready", "/info", "/v1/models", "/v1/models/sentiment", "/v1/models/nobody"),
    *("/metrics", "/docs", "/", "/openapi.json", "/playground/app.js", "/no/such/route"),
)
"""Routes without a body. Those of /admin and the webhook change what answers: not asked here."""


def drawn_requests(number: int) -> Iterator[dict[str, Any]]:
    """So many requests: method, path, body."""
    drawing = Drawing(2018)
    for path in ASKED:
        yield {"method": "GET", "path": path}
    yield {"method": "DELETE", "path": "/v1/classify"}
    for count in range(number - len(ASKED) - 1):
        path, body = POSTED[count % len(POSTED)](drawing)
        yield {"method": "POST", "path": path, "body": body}
