"""The language of a document, by a model that comes within the package py3langid.

py3langid knows 140 languages by byte n-grams (Lui and Baldwin 2012) and needs no network.
"""

from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

from bert_core.errors import UserError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from py3langid.langid import LanguageIdentifier

_MOST_CHARACTERS = 1000
"""Enough to tell languages apart, at 0.4 ms a document."""


def require_languages(languages: "Iterable[str]", option: str = "--keep_languages") -> None:
    """Raises `UserError` where the library is not installed, or does not know a language."""
    if find_spec("py3langid") is None:
        raise UserError(
            "telling languages apart needs the package `py3langid`",
            option,
            "in the checkout: pip install -e '.[corpus]'",
        )
    known = sorted(_identifier().labels)
    for language in languages:
        if language not in known:
            what = f"no such language{nearest(language, known)}"
            raise UserError(what, f"{option} {language}", f"give some of {', '.join(known)}")


def language_of(document: str) -> str:
    """The code of the language that the first 1,000 characters are most likely in."""
    return _identifier().classify(document[:_MOST_CHARACTERS])[0]


@cache
def _identifier() -> "LanguageIdentifier":
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE)
