"""Requests that are small and cost a lot, for every route, and a server that they are watched at.

While one is answered another client asks `/health` again and again, and the memory of the server's
process is read.
"""

import http.client
import json
import statistics
import threading
import time
from dataclasses import dataclass, field
from functools import cache

import psutil
import torch
from example_requests import example_requests, request_schemas

from bert_core.config import ModelConfig
from bert_core.model.bert import Bert
from bert_core.model_folder import save_model_folder
from bert_core.special_tokens import SPECIAL_TOKENS
from bert_core.tokenizer import wordpiece_tokenizer

BODY_BYTES = 2 << 20
"""What the default limits let in."""

CLOSED = 0
"""Stands for a status where the server has closed the connection while it was sent to."""

WEBHOOK = "/webhooks/mlflow"
POSTED = example_requests("wide") | {
    WEBHOOK: {"entity": "model_version_alias", "action": "created", "data": {"name": "a"}}
}
"""A request of each route that takes a body by POST, by its address."""

PUT = {"/admin/traffic/wide/canary": {"model": "models:/a@b", "share": 0.5}}
ROUTES_OF_TEXTS = [each for each in POSTED if each not in ("/v1/decode", WEBHOOK)]

GOT = (
    *("/", "/playground/app.js", "/docs", "/swagger/swagger-ui.css", "/openapi.json"),
    *("/health", "/ready", "/info", "/metrics", "/v1/models", "/v1/models/wide", "/admin/traffic"),
)
DELETED = ("/admin/traffic/wide/canary",)


def write_wide_encoder(folder):
    """An encoder whose answers are as long as those of BERT-base, and that computes quickly."""
    words = ["the", "cat", "a", "sat", *(chr(each) for each in range(33, 127))]
    words += [f"##{chr(each)}" for each in range(97, 123)]
    words += map(chr, range(0x4E00, 0x4F00))
    entries = dict.fromkeys([*SPECIAL_TOKENS, *words])
    entries |= dict.fromkeys(f"word{number}" for number in range(30_522 - len(entries)))
    vocabulary = {entry: number for number, entry in enumerate(entries)}
    config = ModelConfig(
        vocab_size=len(vocabulary),
        hidden_size=384,
        num_hidden_layers=4,
        num_attention_heads=24,
        intermediate_size=64,
        max_position_embeddings=512,
    )
    torch.manual_seed(0)
    tokenizer = wordpiece_tokenizer(vocabulary, lowercase=True)
    save_model_folder(folder, Bert.for_pretraining(config), tokenizer, card="")
    return folder


def text_field(body):
    """The field in which a request's texts stand."""
    names = ("inputs", "input", "ids", "texts", "documents", "data", "model")
    return next(name for name in names if name in body)


def filled(count, entry):
    """JSON of a list with so many entries, itself JSON."""
    return "[" + ",".join([entry] * count) + "]"


def shapes(body):
    """What makes bodies that have little sense and much of something, by what they are."""
    name = text_field(body)
    others = {key: value for key, value in body.items() if key != name}

    def having(value, **more):
        """The body with JSON as its texts."""
        rest = json.dumps(others | more)[1:-1]
        return f'{{"{name}": {value}{", " if rest else ""}{rest}}}'

    size = BODY_BYTES - 1000
    nested = "[" * 300 + "]" * 300
    return {
        "numbers": lambda: having(filled(size // 2, "0")),
        "numbers, fewer": lambda: having(filled(30_000, "0")),
        "fractions": lambda: having(filled(size // 4, "0.5")),
        "nulls": lambda: having(filled(size // 5, "null")),
        "lists": lambda: having(filled(size // 3, "[]")),
        "lists of lists of numbers": lambda: having(filled(size // 8, "[[0.5]]")),
        "lists of mixed kinds": lambda: having(filled(size // 14, '[1,"a",{"b":2}]')),
        "objects": lambda: having(filled(size // 3, "{}")),
        "objects, fewer": lambda: having(filled(10_000, "{}")),
        "objects with a field": lambda: having(filled(size // 8, '{"a":1}')),
        "texts": lambda: having(filled(size // 4, '"a"')),
        "texts, fewer": lambda: having(filled(30_000, '"a"')),
        "pairs as lists": lambda: having(filled(size // 12, '["a","b"]')),
        "empty texts": lambda: having(filled(size // 3, '""')),
        "texts with a wrong one last": lambda: having(filled(30_000, '"a"')[:-1] + ",1]"),
        "unknown fields": lambda: having('"a"', **{f"f{number}": 1 for number in range(150_000)}),
        "unknown fields, fewer": lambda: having(
            '"a"', **{f"f{number}": 1 for number in range(10_000)}
        ),
        "one field again and again": lambda: (
            "{" + f'"{name}":1,' * (size // 12) + f'"{name}":"a"}}'
        ),
        "fields within": lambda: having("{" + ",".join(f'"f{n}":1' for n in range(100_000)) + "}"),
        "a field with a long name": lambda: having('"a"', **{"f" * 1_000_000: 1}),
        "a model with a long name": lambda: having('"a"', model="m" * 1_000_000),
        "deep": lambda: having("[" * 300_000 + "]" * 300_000),
        "deep, and many": lambda: having(filled(2000, nested)),
        "deep objects": lambda: having('{"a":' * 150_000 + "1" + "}" * 150_000),
        "a long number": lambda: having("9" * size),
        "long numbers": lambda: having(filled(size // 4301, "9" * 4300)),
        "a long fraction": lambda: having("0." + "9" * size),
        "a huge exponent": lambda: having("1e" + "9" * 1000),
        "escapes": lambda: having('"' + "\\u00e9" * (size // 6) + '"'),
        "quotes": lambda: having('"' + '\\"' * (size // 2) + '"'),
        "halves of characters": lambda: having('"' + "\\ud83d" * (size // 6) + '"'),
        "spaces": lambda: " " * size,
        "nothing": lambda: "",
        "a list": lambda: filled(size // 2, "0"),
        "another encoding": lambda: having(filled(30_000, "0")).encode("utf-16"),
        "a broken end": lambda: having(filled(size // 2, "0"))[:-2],
    }


@cache
def texts():
    """Texts that cost much for their size."""
    size = BODY_BYTES - 1000
    return {
        "one word": "a" * size,
        "words of 100 letters": ("a" * 99 + " ") * (size // 100),
        "short words": "a " * 32_000,
        "signs": "." * 32_000,
        "spaces": " " * size,
        "Chinese": "中" * 30_000,
        "Hangul": "각" * (size // 3),
        "combining marks": "a" + "\u0301" * (size // 2),
        "emoji": "👩‍🚀" * (size // 11),
        "zero-width joiners": "\u200d" * (size // 3),
        "NUL": "\0" * (size // 6),
        "Greek with marks": "\u1f82" * (size // 3),
        "[MASK] and words": "[MASK] a " * 10_000,
    }


def having_text(path, text):
    """The request of a route with another text wherever it has one."""
    body = POSTED[path]
    name = text_field(body)
    given = body[name]
    if isinstance(given, dict):
        given = {key: [text] if isinstance(each, list) else text for key, each in given.items()}
    else:
        given = [text] if isinstance(given, list) else text
    has_windows = path in WINDOWED
    return body | {name: given} | ({"overflow": "window"} if has_windows else {})


WINDOWED = [path for path, each in request_schemas().items() if "overflow" in each["properties"]]


def random_body(body, choose):
    """A request in which something at random stands, up to 50,000 values, or in its place."""

    def value(left, room):
        kinds = [0, -1, 2**63, 1e300, 0.5, True, None, "", "a", "[MASK]", "\u0301", "\0", "中" * 9]
        if not left or choose.random() < 0.3:
            return choose.choice(kinds)
        if choose.random() < 0.2:
            return choose.choice("a.中 \u200d") * min(10 ** choose.randrange(7), room)
        count = min(4 ** choose.randrange(9 if left > 2 else 4), room)
        some = [value(left - 1, room // count) for _ in range(min(count, 5))]
        if choose.random() < 0.5:
            return choose.choices(some, k=count)
        return {f"{choose.choice(sorted(body))}{number or ''}": some[0] for number in range(count)}

    return body | {choose.choice([*body, "overflow", "parameters", "top_k", "x"]): value(4, 50_000)}


def to(path, **body):
    """The address of a request, and its body."""
    return path, body


@cache
def costly():
    """Requests whose work is far more than their size says: address, body."""
    hf_qa = "/hf/question-answering?model=answers"
    hf_ner = "/hf/token-classification?model=entities"
    hf_mask, hf_similarity = "/hf/fill-mask?model=wide", "/hf/sentence-similarity?model=wide"
    embed, perplexity = "/embed?model=wide", "/v1/pseudo-perplexity"
    classify, ner, qa, mask = "/v1/classify", "/v1/ner", "/v1/qa", "/v1/fill-mask"
    long, many_masks = "the cat sat " * 2500, "[MASK] " * 100
    question, long_question = ({"question": text, "context": long} for text in ("cat", long))
    wide, windows = {"model": "wide"}, {"overflow": "window"}
    entities, answers = {"model": "entities"}, {"model": "answers"}

    def features(text, **more):
        return to("/v1/features", inputs=text, **wide, **more)

    def questions(inputs, **parameters):
        return to(hf_qa, inputs=inputs, parameters=parameters)

    return {
        "qa, windows one token apart": questions(question, doc_stride=10_000),
        "qa, short rows": questions(question, max_seq_len=8, doc_stride=7, top_k=1000),
        "qa, long questions": questions(
            [long_question] * 5, max_question_len=10**9, max_seq_len=10**9
        ),
        "qa, many answers": to(
            *(qa,),
            inputs={"question": "cat", "context": "the cat sat " * 1500},
            **{"top_k": 100, "max_answer_length": 512} | answers | windows,
        ),
        "qa, one word to stretch over": to(
            *(qa,),
            inputs={"question": "cat", "context": "中" * 8000},
            **{"top_k": 100, "align_to_words": True} | answers | windows,
        ),
        "ner, sub-words": to(ner, inputs=long, aggregation="none", **entities, **windows),
        "ner, a stride": to(
            hf_ner, inputs=long, parameters={"stride": 1, "aggregation_strategy": "none"}
        ),
        "ner, points": to(ner, inputs="a" * 800 + "." * 800 + ")", **entities),
        "ner, points and letters": to(ner, inputs="a." * 8000 + ")", **entities),
        "ner, quotes": to(ner, inputs="«»" * 490_000, **entities, **windows),
        "labels to ignore": to(hf_ner, inputs="cat", parameters={"ignore_labels": ["O"] * 60_000}),
        "classify, windows": to(classify, model="sentiment", inputs=[long] * 2, **windows),
        "classify, many": to(classify, model="sentiment", inputs=["cat"] * 256),
        "features of tokens": features("cat " * 5_000, unit="token", **windows),
        "features in base64": features("cat " * 5_000, unit="token", encoding="base64", **windows),
        "features of layers": features(
            "cat " * 2500, unit="word", strategy="concat_last_four", **windows
        ),
        "all layers": features("cat " * 10_000, strategy="weighted_sum_all", **windows),
        "a strategy of many digits": features("cat", strategy="layer_" + "9" * 5000),
        "a strategy of a megabyte": features("cat", strategy="s" * 1_000_000),
        "features, marks": features("a\u0301" * 300_000, unit="token", **windows),
        "all tokens' states": to("/embed_all?model=wide", inputs=["cat " * 500] * 20),
        "all texts' vectors": to(embed, inputs=["cat"] * 256),
        "ids": to(embed, inputs=[[7] * 500] * 15),
        "empty ids": to(embed, inputs=[[]] * 200),
        "too many ids": to("/v1/embeddings", input=[[7] * 500] * 66, **wide),
        "one list of ids": to("/v1/embeddings", input=[7] * 32_000, **wide),
        "many masks": to(mask, inputs=many_masks, top_k=1000, **wide),
        "many masks of Hugging Face": to(hf_mask, inputs=many_masks, parameters={"top_k": 1000}),
        "masks of a long text": to(
            mask, inputs="[MASK] " * 30 + "cat " * 4000, top_k=30, **wide, **windows
        ),
        "targets": to(mask, inputs="a [MASK]", targets=["cat"] * 300_000, **wide),
        "targets, fewer": to(mask, inputs="a [MASK]", targets=["cat"] * 30_000, **wide),
        "a target of a megabyte": to(mask, inputs="a [MASK]", targets=["cat " * 250_000], **wide),
        "unknown targets": to(
            *(hf_mask,),
            inputs="a [MASK]",
            parameters={"targets": [f"unknown{number}" for number in range(60_000)]},
        ),
        "options": to(
            hf_mask, inputs="a [MASK]", options={str(number): [1] for number in range(50_000)}
        ),
        "pseudo-perplexity": to(perplexity, inputs="cat " * 90, **wide),
        "pseudo-perplexity, long": to(
            perplexity,
            inputs="cat " * 30_000,
            masking="rest_of_word",
            **wide,
            **windows,
        ),
        "tokens": to("/v1/tokenize", inputs="a " * 32_000, **wide),
        "tokens of long words": to("/v1/tokenize", inputs=("a" * 99 + " ") * 300, **wide),
        "ids to decode": to("/v1/decode", ids=[7] * 32_768, **wide),
        "lists to decode": to("/v1/decode", ids=[[7]] * 30_000, **wide),
        "explain": to("/v1/explain", inputs="cat " * 126, **wide),
        "explain, a layer again and again": to(
            "/v1/explain", inputs="cat " * 126, layers=[1] * 1000, **wide
        ),
        "explain, no such layer": to("/v1/explain", inputs="cat", layers=[10**18], **wide),
        "a label of a megabyte": to(
            "/v1/explain", model="sentiment", inputs="cat", label="l" * 1_000_000
        ),
        "parameters of similarity": to(
            *(hf_similarity,),
            **POSTED[hf_similarity],
            parameters=dict.fromkeys(map(str, range(50_000))),
        ),
        "similar sentences": to("/v1/similarity", source="cat", inputs=["cat " * 20] * 255, **wide),
    }


def of_reranking(path):
    """Ten requests of a route of rerankers: most are far more work than their size says."""
    is_tei = path == "/rerank"
    key = "texts" if is_tei else "documents"
    more = {} if is_tei else {"model": "relevance"}

    def ask(query, texts, **options):
        return more | {"query": query, key: texts} | options

    return {
        "a long query again and again": ask("the cat sat " * 8_000, ["cat"] * 256),
        "a word for a query again and again": ask("a" * 1_900_000, ["cat"] * 256),
        "many rows at their longest": ask("cat", ["the cat sat " * 200] * 256, truncate=True)
        if is_tei
        else ask("cat", ["the cat sat " * 200] * 256),
        "many documents": ask("cat", ["a"] * 30_000),
        "many objects": ask("cat", [{"text": "a"}] * 30_000),
        "empty texts": ask("", [""] * 256),
        "joiners": ask("\u200d" * 300_000, ["\u200d" * 1000] * 256),
        "no end of the best": ask("cat", ["a"], top_n=10**400),
        "a wrong one last": ask("cat", [*["a"] * 255, "\ud83d"]),
        "a model of a megabyte": ask("cat", ["a"]) | {"model": "m" * 1_000_000},
    }


def of_zero_shot(path):
    """Ten requests of a route of labels that a request names."""
    hugging_face = path.startswith("/hf")

    def ask(inputs, labels, template=None, **options):
        told = {} if template is None else {"hypothesis_template": template}
        if hugging_face:
            return {
                "inputs": inputs,
                "parameters": {"candidate_labels": labels} | told | options,
            }
        return {"model": "entailment", "inputs": inputs, "labels": labels} | told | options

    return {
        "texts by labels": ask(["cat"] * 256, [f"a{number}" for number in range(256)]),
        "many texts by labels": ask(["cat"] * 30_000, [f"a{number}" for number in range(1000)]),
        "a word by labels": ask("a" * 1_900_000, [f"a{number}" for number in range(256)]),
        "many labels": ask("cat", [f"a{number}" for number in range(100_000)]),
        "one label again and again": ask("cat", ["a"] * 100_000),
        "a label of a megabyte": ask("cat", ["a" * 1_000_000, "b"]),
        "a template of a megabyte": ask(["cat"] * 20, ["a", "b"], "x" * 1_000_000 + "{}"),
        "a template of places": ask(
            "cat", [f"{number}{'a' * 7000}" for number in range(250)], "{}" * 500
        ),
        "a template that asks": ask("cat", ["a", "b"], "{0.__class__.__init__.__globals__}"),
        "a template that widens": ask("cat", ["a", "b"], "{:>1000000000}"),
    }


def of_sparse_vectors(path):
    """Ten requests of a route whose answer may have a number for each word of the vocabulary."""
    del path
    return {
        "texts": {"inputs": ["the cat sat"] * 256},
        "most texts": {"inputs": ["cat"] * 131},
        "too many texts": {"inputs": ["cat"] * 30_000},
        "long texts": {"inputs": ["the cat sat " * 200] * 100, "truncate": True},
        "a word of megabytes": {"inputs": "a" * 1_900_000, "truncate": True},
        "empty texts": {"inputs": [""] * 256},
        "ids": {"inputs": [[7] * 500] * 60},
        "ids that are none": {"inputs": [[2**40]]},
        "empty ids": {"inputs": [[]] * 200},
        "a prompt of a megabyte": {"inputs": "cat", "prompt_name": "p" * 1_000_000},
    }


@dataclass
class Watched:
    """What was seen while a request was answered: seconds of `/health`, bytes of memory."""

    status: int
    seconds: float
    answer_bytes: int
    health: list[float] = field(default_factory=list)
    most_bytes: int = 0

    @property
    def median(self):
        """Of the latencies of `/health`, seconds."""
        return statistics.median(self.health)

    def __str__(self):
        """A line for people."""
        return (
            f"{self.status} in {self.seconds:6.2f} s, {self.answer_bytes:9d} bytes,"
            f" health {1e3 * self.median:5.1f} ms, worst {1e3 * max(self.health):6.1f} ms"
        )


class Watch:
    """Asks a server's `/health` all the time, on a connection of its own."""

    def __init__(self, port, pid):
        self.port = port
        self.at_rest = 0
        self._process = psutil.Process(pid)
        self._ended = threading.Event()
        self._seen = Watched(0, 0.0, 0)
        self._thread = threading.Thread(target=self._go_on)
        self._thread.start()

    def close(self):
        """Ends it."""
        self._ended.set()
        self._thread.join()

    @property
    def resident(self):
        """Bytes of the server's process."""
        return self._process.memory_info().rss

    def rest(self):
        """From here on memory is compared with what it is now."""
        self.idle(0.3)
        self.at_rest = self.resident

    def idle(self, seconds):
        """The longest that `/health` takes while nobody else asks anything."""
        self._seen = seen = Watched(200, seconds, 0)
        time.sleep(seconds)
        return max(seen.health, default=seconds)

    def ask(self, path, body=None, method=None, headers=None):
        """Has a request answered, and what was seen meanwhile."""
        if body is not None and not isinstance(body, bytes):
            body = (body if isinstance(body, str) else json.dumps(body)).encode()
        kind = {"Content-Type": "application/json"} if body is not None else {}
        self._seen = seen = Watched(0, 0.0, 0, most_bytes=self.resident)
        begin = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=100)
        try:
            connection.request(
                method or ("GET" if body is None else "POST"), path, body, kind | (headers or {})
            )
            response = connection.getresponse()
            seen.status = response.status
            seen.answer_bytes = len(response.read())
        except ConnectionError:
            seen.status = CLOSED
        finally:
            connection.close()
        seen.seconds = time.perf_counter() - begin
        while not seen.health:
            time.sleep(0.001)
        return seen

    def _go_on(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=100)
        while not self._ended.is_set():
            seen = self._seen
            begin = time.perf_counter()
            try:
                connection.request("GET", "/health")
                connection.getresponse().read()
            except (OSError, http.client.HTTPException):
                connection.close()  # the server has closed it between two questions
                continue
            seen.health.append(time.perf_counter() - begin)
            seen.most_bytes = max(seen.most_bytes, self.resident)
            time.sleep(0.008)
        connection.close()
