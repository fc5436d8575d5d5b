"""What a request asks about, and how much text that is."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, Self

from tokenizers import Tokenizer

from bert_core.tasks.classification import Text
from bert_core.tasks.squad import Question
from serving.limits import Limits
from serving.problems import RequestError


@dataclass(frozen=True)
class Inputs:
    """What a request asks about: one, or a list; `name_of` says where in it an item stands.

    `if_too_long` is what its client can do about an item that is too long.
    """

    items: Sequence[Any]
    name_of: Callable[[int], str]
    if_too_long: str = "shorten it, or set overflow to window, right or left"

    @classmethod
    def of(cls, value: Any, field: str = "inputs") -> Self:  # noqa: ANN401 - any route's
        """Of a request's field that is one item or a list of them."""
        if isinstance(value, list):
            return cls(value, lambda number: f"{field}[{number}]")
        return cls([value], lambda _: field)

    def map(self, change: Callable[[Any], Any]) -> Self:
        """The same, each item changed."""
        return replace(self, items=[change(each) for each in self.items])


def texts_in(item: Any) -> tuple[str, ...]:  # noqa: ANN401 - any codec's example
    """The texts of an item."""
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


_AT_LEAST_A_TOKEN = re.compile(r"[!-/:-@\[-`{-~\u3400-\u9fff]|[^\s!-/:-@\[-`{-~\u3400-\u9fff]+")
"""Signs and Chinese characters are tokens of their own, and of anything between spaces is one."""


def num_bytes(texts: Sequence[str]) -> int:
    """Of texts in UTF-8."""
    return sum(len(each) if each.isascii() else len(each.encode()) for each in texts)


def has_more_tokens(texts: Sequence[str], most: int) -> bool:
    """Whether texts have more tokens than that, as far as can be seen without cutting them up.

    It takes the time of `most` tokens, however long the texts are.
    """
    found = chain.from_iterable(map(_AT_LEAST_A_TOKEN.finditer, texts))
    return next(islice(found, most, None), None) is not None


def check_texts(texts: Sequence[str], limits: Limits) -> None:
    """Raises `RequestError` for texts that are sure to have too many tokens, or are too long."""
    most = limits.max_request_tokens
    if sum(map(len, texts)) <= most:
        return
    if (size := num_bytes(texts)) > limits.max_text_bytes:
        raise RequestError(
            413,
            "Too long texts",
            f"{size} bytes of text, and a request has {limits.max_text_bytes} at most",
            field="inputs",
            remedy="divide them among several requests",
        )
    if has_more_tokens(texts, most):
        raise too_many_tokens(f"more than {most} tokens", most)


def too_many_tokens(found: str, most: int) -> RequestError:
    """The refusal of texts that have more tokens than a request may."""
    return RequestError(
        413,
        "Too many tokens",
        f"{found}, and a request has {most} at most",
        field="inputs",
        remedy="divide them among several requests",
    )


_CHARACTERS_AT_ONCE = 1 << 15
_LONGEST_WORD = 100
"""Characters of a word that is cut up; longer ones are unknown."""


def is_cut_into_more(tokenizer: Tokenizer, texts: Sequence[str], most: int) -> bool:
    """Whether texts have more tokens than that, found by cutting them up to there and no further.

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
