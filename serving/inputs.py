"""What a request asks about, and how much text that is."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, Self

from tokenizers import Tokenizer

from bert_core.tasks.classification import Text
from bert_core.tasks.squad import Question


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
        case _:
            raise TypeError(f"no example of a text: {type(item)}")


_AT_LEAST_A_TOKEN = re.compile(r"[!-/:-@\[-`{-~\u3400-\u9fff]|[^\s!-/:-@\[-`{-~\u3400-\u9fff]+")
"""Signs and Chinese characters are tokens of their own, and of anything between spaces is one."""


_STRETCH = 1 << 16


def has_more_tokens(texts: Sequence[str], most: int) -> bool:
    """Whether texts have more tokens than that, as far as can be seen without cutting them up.

    It takes the time of `most` tokens, however long the texts are.
    """
    found = chain.from_iterable(map(_AT_LEAST_A_TOKEN.finditer, texts))
    return next(islice(found, most, None), None) is not None


def is_cut_into_more(tokenizer: Tokenizer, texts: Sequence[str], most: int) -> bool:
    """Whether texts have more tokens than that, in the time and memory of about as many.

    Long texts are cut into tokens in stretches, so a word at the end of one counts twice.
    """
    count = 0
    for text in texts:
        for begin in range(0, len(text), _STRETCH):
            stretch = text[begin : begin + _STRETCH]
            count += len(tokenizer.encode_batch_fast([stretch], add_special_tokens=False)[0])
            if count > most:
                return True
    return False
