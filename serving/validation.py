"""The items of a request, and the checks before any of them is computed.

Work is bounded before it is done: each check takes time in proportion to the limits, not to the
request.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, Self, TypeVar

import numpy as np
from tokenizers import Tokenizer, normalizers, pre_tokenizers

from bert_core.interface import OverflowOrError
from bert_core.tasks.classification import Classification, Text
from bert_core.tasks.encoded_rows import EncodedRows
from bert_core.tasks.sequences import Overflow, TooManyTokensError
from bert_core.tasks.squad import Question
from serving.errors import TOO_LONG, RequestError
from serving.limits import Limits
from serving.models import ServedModel
from serving.request_context import current_request

T = TypeVar("T")


@dataclass(frozen=True)
class Inputs:
    """The items in a request's `field`, one or a list; `name_of` gives the place of an item.

    `if_too_long` is the remedy for an item that is too long.
    """

    items: Sequence[Any]
    field: str
    name_of: Callable[[int], str]
    if_too_long: str = "shorten it, or set overflow to window, right or left"

    @classmethod
    def of(cls, value: Any, field: str = "inputs") -> Self:  # noqa: ANN401 - any route's
        """Reads a field of a request that is one item or a list of items."""
        if isinstance(value, list):
            return cls(value, field, lambda number: f"{field}[{number}]")
        return cls([value], field, lambda _: field)

    def map(self, change: Callable[[Any], Any]) -> Self:
        """The same, each item changed."""
        return replace(self, items=[change(item) for item in self.items])


def strings_of_item(item: Any) -> tuple[str, ...]:  # noqa: ANN401 - any codec's example
    """The strings of one of `Inputs.items`: a text, a `Text` or `Question`; none of token ids."""
    match item:
        case str():
            return (item,)
        case Text():
            return (item.first,) if item.second is None else (item.first, item.second)
        case Question():
            return item.question, item.context
        case list():  # ids of tokens
            return ()
        case _:
            raise TypeError(f"no example of a text: {type(item)}")


_SIGNS = r"!-/:-@\[-`{-~\u3400-\u4dbf\u4e00-\u9fff"
"""Signs and Chinese characters, which are tokens each."""
_SPACES = r"\t\n\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
"""What BERT's normalizer takes for space; it drops other control characters without a trace."""
_AT_LEAST_A_TOKEN = rf"[{_SIGNS}]|\w[^{_SIGNS}{_SPACES}]*"
"""Text between these is one token or more where it has a letter or digit: marks may be dropped."""


def num_bytes(texts: Sequence[str]) -> int:
    """The bytes of texts in UTF-8."""
    return sum(len(text) if text.isascii() else len(text.encode()) for text in texts)


def _sure_tokens(tokenizer: Tokenizer) -> re.Pattern[str] | None:
    """What of a text is a token each, or more; None where that is not seen without tokenizing.

    Others than BERT's have tokens of several signs, or of clauses. Added tokens such as [MASK] are
    found first; those that begin within a word, or after the text was changed, cannot be.
    """
    normalizer = tokenizer.normalizer
    if not (
        isinstance(tokenizer.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
        and isinstance(normalizer, normalizers.BertNormalizer)
        and normalizer.handle_chinese_chars
    ):
        return None
    added = [
        token
        for token in tokenizer.get_added_tokens_decoder().values()
        if len(re.findall(_AT_LEAST_A_TOKEN, token.content)) > 1
    ]
    if any(each.normalized or not re.match(f"[{_SIGNS}]", each.content) for each in added):
        return None
    contents = sorted((token.content for token in added), key=len, reverse=True)
    return re.compile("|".join([*map(re.escape, contents), _AT_LEAST_A_TOKEN]))


def has_more_tokens(tokenizer: Tokenizer, texts: Sequence[str], most: int) -> bool:
    """Whether texts certainly have more than `most` tokens, seen without tokenizing.

    It takes the time of `most` tokens, however long the texts are. Only of BERT's tokenizer so much
    is seen; for another one it is False.
    """
    pattern = _sure_tokens(tokenizer)
    if pattern is None:
        return False
    found = chain.from_iterable(map(pattern.finditer, texts))
    return next(islice(found, most, None), None) is not None


def check_texts(tokenizer: Tokenizer, texts: Sequence[str], field: str, limits: Limits) -> None:
    """Raises `RequestError` for texts that certainly have too many tokens, or are too long."""
    most = limits.max_request_tokens
    if sum(map(len, texts)) <= most:
        return
    if (size := num_bytes(texts)) > limits.max_text_bytes:
        detail = f"{size} bytes of text, and a request has {limits.max_text_bytes} at most"
        remedy = "divide them among several requests"
        raise RequestError(413, "Too long texts", detail, field=field, remedy=remedy)
    if has_more_tokens(tokenizer, texts, most):
        raise too_many_tokens(f"more than {most} tokens", field, most)


def too_many_tokens(found: str, field: str, most: int) -> RequestError:
    """The refusal of texts that have more tokens than a request may."""
    detail = f"{found}, and a request has {most} at most"
    remedy = "divide them among several requests"
    return RequestError(413, "Too many tokens", detail, field=field, remedy=remedy)


_SURE_CHARACTERS = 8
"""Texts with more for each token that a request may have are looked at more closely, those of which
nothing is seen without tokenizing with more than one."""
_CHARACTERS_AT_ONCE = 1 << 15
_LONGEST_WORD = 100
"""Characters of a word that is cut up; longer ones are unknown."""


def is_cut_into_more(tokenizer: Tokenizer, texts: Sequence[str], most: int) -> bool:
    """Whether texts have more than `most` tokens, found by tokenizing no further.

    Rare words have a token for each letter, each of which takes as long as ten of other words.
    """
    found = 0
    for text in texts:
        begin = 0
        while begin < len(text):
            end = begin + _CHARACTERS_AT_ONCE
            if end < len(text):
                space = text.rfind(" ", begin, end)
                found -= _LONGEST_WORD if space <= begin else 0  # a word in two has more tokens
                end = end if space <= begin else space
            (part,) = tokenizer.encode_batch_fast([text[begin:end]], add_special_tokens=False)
            found += len(part)
            if found > most:
                return True
            begin = end
    return False


def check_item_count(count: int, field: str, limits: Limits, what: str = "items") -> None:
    """Raises `RequestError` for more items than a request may have."""
    if count > limits.max_items:
        detail = f"{count} {what}, and a request has {limits.max_items} at most"
        remedy = "divide them among several requests"
        raise RequestError(413, "Too many items", detail, field=field, remedy=remedy)


def check_size(tokenizer: Tokenizer, inputs: Inputs, limits: Limits) -> list[str]:
    """Returns the texts of the items, of which nothing is computed yet.

    Raises `RequestError` for too many items, and for texts that certainly have too many tokens.
    """
    check_item_count(len(inputs.items), inputs.field, limits)
    texts = [text for item in inputs.items for text in strings_of_item(item)]
    check_texts(tokenizer, texts, inputs.field, limits)
    return texts


def encode_within(
    limits: Limits, tokenizer: Tokenizer, texts: Sequence[str], field: str, encode: Callable[[], T]
) -> T:
    """Calls `encode` on a field's texts; raises `RequestError` where they have too many tokens.

    Texts with many characters for each token are cut up first, up to that number of tokens.
    """
    most = limits.max_request_tokens
    size = sum(map(len, texts))
    is_likely = size > most and (size > most * _SURE_CHARACTERS or _sure_tokens(tokenizer) is None)
    if is_likely and is_cut_into_more(tokenizer, texts, most):
        raise too_many_tokens(f"more than {most} tokens", field, most)
    try:
        return encode()
    except TooManyTokensError as error:
        detail = f"{error.what}: {error.where}"
        remedy = error.remedy
        raise RequestError(413, "Too many tokens", detail, field=field, remedy=remedy) from error


def check_rows(
    rows: EncodedRows,
    too_long: np.ndarray,
    inputs: Inputs,
    name: str,
    overflow: OverflowOrError,
    limits: Limits,
) -> None:
    """Raises `RequestError` for too many tokens, and for a too long item that may not be cut.

    `too_long` [items] marks the items with more tokens than the model `name` reads at once.
    """
    if overflow == "error" and too_long.any():
        number = int(too_long.argmax())
        found, most = int(rows.num_tokens[number]), limits.max_request_tokens
        # Words of raw text are not read further than a request may have tokens.
        detail = rows.excess(number, name, f"{found}" if found <= most else f"over {most}")
        remedy = inputs.if_too_long
        raise RequestError(422, TOO_LONG, detail, field=inputs.name_of(number), remedy=remedy)
    check_tokens(len(rows.input_ids), inputs.field, limits)


def check_tokens(num_tokens: int, field: str, limits: Limits) -> None:
    """Raises `RequestError` for more tokens than a request may have."""
    most = limits.max_request_tokens
    if num_tokens > most:
        raise too_many_tokens(f"{num_tokens} tokens", field, most)


def check_numbers(num_units: int, size: int, field: str, limits: Limits) -> None:
    """Raises `RequestError` for more numbers than an answer may have; notes them otherwise."""
    if request := current_request.get():
        request.num_numbers += num_units * size
    if num_units * size > limits.max_answer_numbers:
        detail = (
            f"{num_units} times {size} numbers,"
            f" and what a request asks for has {limits.max_answer_numbers} at most"
        )
        remedy = "divide them among several requests; of features, ask for texts, not tokens"
        raise RequestError(413, "Too long an answer", detail, field=field, remedy=remedy)


def check_pairs(inputs: Inputs, task: Classification, name: str) -> None:
    """Raises `RequestError` for a pair where the model reads single texts, and the reverse.

    A model that `transformers` fine-tuned does not say it, and reads both.
    """
    wants_pairs = task.reads_pairs
    if wants_pairs is None:
        return
    for number, item in enumerate(inputs.items):
        if (item.second is not None) != wants_pairs:
            raise RequestError(
                422,
                "Wrong input",
                f"{name} reads {'pairs of texts' if wants_pairs else 'single texts'}",
                field=inputs.name_of(number),
                remedy="give a second text too" if wants_pairs else "give one text, as a string",
            )


def cutting(overflow: OverflowOrError) -> Overflow:
    """How a codec encodes: it cuts where a too long text is an error, which `check_rows` raises."""
    return "right" if overflow == "error" else overflow


def texts_or_ids(model: ServedModel, given: object, field: str, most: int) -> Inputs:
    """Reads a request's field that is a text, the ids of a text's tokens, or a list of either.

    Raises `RequestError` for unknown ids, none at all, and more than `most`.
    """
    is_ids = isinstance(given, list) and given and _is_id(given[0])
    inputs = Inputs([given], field, lambda _: field) if is_ids else Inputs.of(given, field)
    lists = [item for item in inputs.items if isinstance(item, list)]
    check_ids(model.tokenizer, lists, most, field, lambda number, _: inputs.name_of(number))
    if [] in lists:
        raise RequestError(
            422,
            "No tokens",
            "a text that is sent as ids has one at least",
            field=inputs.name_of(lists.index([])),
            remedy="send the ids of [CLS] and [SEP] for an empty text, or leave it out",
        )
    return inputs


def check_ids(
    tokenizer: Tokenizer,
    lists: Sequence[Sequence[int]],
    most: int,
    field: str,
    name_of: Callable[[int, int], str],
) -> None:
    """Raises `RequestError` for ids that are no token's, and for more than `most`.

    `name_of` gives the place of an id, by the numbers of its list and of the id in it.
    """
    if sum(map(len, lists)) > most:
        detail = f"a request has {most} ids at most"
        remedy = "divide them among several requests"
        raise RequestError(413, "Too many tokens", detail, field=field, remedy=remedy)
    ids = {token_id for some in lists for token_id in some}
    unknown = {token_id for token_id in ids if tokenizer.id_to_token(token_id) is None}
    if not unknown:
        return
    number, place = next(
        (number, place)
        for number, some in enumerate(lists)
        for place, token_id in enumerate(some)
        if token_id in unknown
    )
    detail = f"{lists[number][place]} is no id of the {tokenizer.get_vocab_size()} tokens"
    remedy = "take ids that /v1/tokenize gives for this model, or send text"
    raise RequestError(422, "Unknown token", detail, field=name_of(number, place), remedy=remedy)


def _is_id(given: object) -> bool:
    return isinstance(given, int) and not isinstance(given, bool)
