"""Tokenizer settings from the files next to a vocabulary, as `AutoTokenizer` reads them.

Precedence and defaults are those of `transformers` 5 for a BERT model.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError
from tokenizers import AddedToken

from bert_core.errors import UserError
from bert_core.special_tokens import BERT_TOKENS, KINDS
from bert_core.strict_files import first_fault, read_json_object

TOKENIZER_CONFIG = "tokenizer_config.json"
MODULES, TRANSFORMER_SETTINGS = "modules.json", "sentence_bert_config.json"
"""The parts of a model of sentence-transformers, and what it sets of its encoder and tokenizer."""
_OLDER_SETTINGS = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""Older names of the second, in the order in which sentence-transformers looks for them."""

_NAMED = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
"""The special tokens that settings name, in the order in which `transformers` adds them."""

_FIVE = ("unk", "sep", "pad", "cls", "mask")
_DEFAULTS = {f"{name}_token": getattr(BERT_TOKENS, name) for name in _FIVE}

_USUAL_CLASSES = {
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer",
}
"""By the type of a model whose files name no class of its own; else it is BERT's."""

_ANY_CLASSES = ("PreTrainedTokenizer", "TokenizersBackend")
"""Names, without Fast, of what runs a tokenizer.json of any kind."""

_BERT_CLASSES = {
    f"{name}Tokenizer"
    for name in ("Bert", "ConvBert", "DistilBert", "Electra", "Lxmert", "MobileBert", "SqueezeBert")
}
"""Classes of `transformers` that split text as BERT's; each also has a name that ends in Fast."""

_WITHOUT_SEGMENTS = {
    f"{name}Tokenizer"
    for name in ("Bart", "Camembert", "DistilBert", "GPT2", "Gemma", "Roberta", "XLMRoberta")
}
"""Classes whose pairs are of segment 0 alone, in transformers 4 and 5."""

_ADDED_SPACES = {
    **dict.fromkeys(("BartTokenizer", "GPT2Tokenizer", "RobertaTokenizer"), False),
    **dict.fromkeys(("CamembertTokenizer", "XLMRobertaTokenizer"), True),
}
"""Classes that decide over tokenizer.json if a text begins behind a space, and what is usual."""

_ADDITIONAL = "additional_special_tokens"

_FLAGS = ("lstrip", "rstrip", "single_word", "normalized")

_SHORTEST_ROW = 8


class TokenizerSettings(BaseModel):
    """Holds the settings that decide the tokens of a text, besides the vocabulary.

    `numbered` are added tokens in the order of their ids, `special` those that have a name.
    `lowercase_first` is `do_lower_case` of sentence-transformers, a step before the tokenizer's own
    normalisation. `split_special_tokens` cannot be stored in a tokenizer.json and is refused.
    """

    model_config = ConfigDict(strict=True, arbitrary_types_allowed=True)

    tokenizer_class: str = "BertTokenizer"
    do_lower_case: bool = True
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool = True
    split_special_tokens: Literal[False] = False
    lowercase_first: bool = False
    model_input_names: list[str] | None = None
    add_prefix_space: bool | None = None
    model_type: str | None = None
    numbered: list[AddedToken]
    special: dict[str, AddedToken]
    extra: list[AddedToken]

    @property
    def splits_as_bert(self) -> bool:
        """Whether the class splits text as BERT's does."""
        return _splits_as_bert(self.tokenizer_class)

    @property
    def runs_any_file(self) -> bool:
        """Whether the class does what tokenizer.json says, of whatever kind that is."""
        return self.tokenizer_class.removesuffix("Fast") in _ANY_CLASSES

    @property
    def has_segments(self) -> bool:
        """Whether the class puts the second text of a pair into segment 1.

        Without `model_input_names` a tokenizer of any kind has segments, unless the model is a
        RoBERTa: so it was when models were trained with transformers 4, which 5 forgets.
        """
        if self.model_input_names is not None:
            return "token_type_ids" in self.model_input_names
        name = self.tokenizer_class.removesuffix("Fast")
        if self.runs_any_file:
            name = _USUAL_CLASSES.get(str(self.model_type))
        return name not in _WITHOUT_SEGMENTS

    @property
    def adds_space(self) -> bool | None:
        """Whether texts begin behind a space that they lack; None leaves it to tokenizer.json."""
        usual = _ADDED_SPACES.get(self.tokenizer_class.removesuffix("Fast"))
        return usual if usual is None or self.add_prefix_space is None else self.add_prefix_space

    def added_tokens(self, present: Sequence[AddedToken] = ()) -> list[AddedToken]:
        """The tokens that `transformers` adds to a tokenizer with `present`, in its order."""
        same = {repr(token) for token in present}
        added = [token for token in self.numbered if repr(token) not in same]
        known = {token.content for token in (*present, *added)}
        for token in (*self.special.values(), *self.extra):
            if token.content not in known and token not in added:  # the last of a name counts
                added.append(token)
        special = {token.content for token in self.special.values()}
        for token in added:
            token.special = token.special or token.content in special
        return added


def read_tokenizer_settings(folder: Path) -> TokenizerSettings:
    """Reads tokenizer_config.json, special_tokens_map.json and added_tokens.json of a folder.

    With `added_tokens_decoder` in the first, the two older files count for nothing. Without it the
    second overrides the first, and the third adds tokens. The class may be in config.json.
    Raises `UserError`, naming the file, for what cannot be read or is not supported.
    """
    path = folder / TOKENIZER_CONFIG
    settings = read_json_object(path, is_optional=True)
    try:
        extra = settings.get("extra_special_tokens") or settings.get(_ADDITIONAL) or []
        settings, extra = _with_named(settings, extra)
        numbered = settings.get("added_tokens_decoder")
        if numbered is None:
            path = folder / "special_tokens_map.json"
            older = read_json_object(path, is_optional=True)
            settings |= {
                name: _token(each, special=True) for name, each in _tokens_in(older).items()
            }
            settings, more = _with_named(settings, older.get("extra_special_tokens") or [])
            extra = [*extra, *more]
            path = folder / "added_tokens.json"
            known = [*(settings.get(name) for name in _NAMED), *extra]
            special = {_token(each).content for each in known if each}
            numbered = {
                index: {
                    "content": token,
                    "special": token in special,
                    "normalized": token not in special,
                }
                for token, index in read_json_object(path, is_optional=True).items()
            }
            newer = [settings.get(name, {}) for name in ("extra_special_tokens", _ADDITIONAL)]
            newer.append(older.get("extra_special_tokens", {}))
            if all(isinstance(each, dict) for each in newer):  # a list counts, be it empty
                extra = older.get(_ADDITIONAL) or []
        path = folder / TOKENIZER_CONFIG
        of_model = read_json_object(folder / "config.json", is_optional=True)
        settings["model_type"] = of_model.get("model_type")
        usual = _USUAL_CLASSES.get(str(settings["model_type"]), "BertTokenizer")
        named = settings.get("tokenizer_class") or of_model.get("tokenizer_class")
        settings["tokenizer_class"] = named or usual
        by_id = sorted(numbered.items(), key=lambda each: int(each[0]))
        return TokenizerSettings.model_validate(
            settings
            | {
                "lowercase_first": _lowercases_first(folder),
                "numbered": [_token(token) for _, token in by_id],
                "special": _special_tokens(settings),
                "extra": [_token(each) for each in extra],
            }
        )
    except (ValidationError, AttributeError, KeyError, TypeError, ValueError) as error:
        reason = first_fault(error) if isinstance(error, ValidationError) else str(error)[:200]
        raise UserError("wrong settings of a tokenizer", str(path), reason) from error


def _lowercases_first(folder: Path) -> bool:
    path, settings = read_transformer_settings(folder)
    lowercases = settings.get("do_lower_case") or False
    if not isinstance(lowercases, bool):
        raise UserError("do_lower_case is not true or false", str(path), "write one of them")
    return lowercases


def longest_row(folder: Path, positions: int) -> int:
    """The most tokens of a row that a folder's files say, at most the encoder's `positions`.

    That is `max_seq_length` of sentence-transformers, else `model_max_length` of the tokenizer.
    Raises `UserError` for a length without room for a text.
    """
    path, settings = read_transformer_settings(folder)
    name = "max_seq_length"
    length = settings.get(name)
    if length is None:
        path, name = folder / TOKENIZER_CONFIG, "model_max_length"
        settings = read_json_object(path, is_optional=True)
        length = settings.get(name, settings.get("max_len"))
    if length is None:
        return positions
    if type(length) not in (int, float) or not length >= _SHORTEST_ROW:
        remedy = f"write a number of at least {_SHORTEST_ROW}, or leave it out"
        raise UserError(f"{name} {length!r}", str(path), remedy)
    return int(min(length, positions))  # `transformers` writes 10^30 by default


def read_transformer_settings(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The file with the encoder settings of sentence-transformers, and what it says.

    That is nothing for another folder. Of several files the first that says something counts.
    """
    if os.path.lexists(folder / MODULES):
        for name in (TRANSFORMER_SETTINGS, *_OLDER_SETTINGS):
            if settings := read_json_object(folder / name, is_optional=True):
                return folder / name, settings
    return folder / TRANSFORMER_SETTINGS, {}


def class_of_model(config: Mapping[str, Any], prefix: str = "") -> str:
    """The class of `transformers` that config.json names, if it begins so; else AutoModel.

    Nobody types what a file says, unless it is the name of a class.
    """
    named = config.get("architectures")
    first = named[0] if isinstance(named, list) and named else ""
    is_class = isinstance(first, str) and re.fullmatch(f"{prefix}[A-Za-z]{{2,60}}", first)
    return first if is_class else "AutoModel"


def rewrite_command(model: Path | str, name: Path | str) -> str:
    """The remedy for older models of sentence-transformers, whose encoder has a folder of its own.

    `model` is a folder or the name of a repository; the copy is called after `name`.
    """
    code = "from sentence_transformers import SentenceTransformer as S; "
    code += f"S({str(model)!r}).save({f'{name}-rewritten'!r})"
    return f"rewrite it with a newer sentence-transformers: python -c {quote(code)}"


def _splits_as_bert(tokenizer_class: str) -> bool:
    return tokenizer_class.removesuffix("Fast") in _BERT_CLASSES


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, AddedToken]:
    """The tokens with a name. Raises `ValueError` where one of the five has none of the `KINDS`."""
    tokens = _tokens_in(
        {**_DEFAULTS, **settings} if _splits_as_bert(settings["tokenizer_class"]) else settings
    )
    for name in _FIVE:
        known = dict.fromkeys(getattr(names, name) for names in KINDS)
        named = tokens.get(f"{name}_token")
        if named is not None and _token(named).content not in known:
            supported = " or ".join(map(repr, known))
            what = f"{name}_token {_token(named).content!r}"
            raise ValueError(f"{what}: only {supported} is supported")
    order = [name for name in _NAMED if name in tokens]
    return {name: _token(tokens[name]) for name in dict.fromkeys([*order, *tokens])}


def _with_named(
    settings: dict[str, Any], extra: list[Any] | dict[str, Any]
) -> tuple[dict[str, Any], list[Any]]:
    """Extra tokens that come with names are special tokens like any other."""
    if isinstance(extra, dict):
        return settings | {f"{name}_token": each for name, each in extra.items()}, []
    return settings, extra


def _tokens_in(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: each
        for name, each in settings.items()
        if name.endswith("_token") and isinstance(each, str | dict | AddedToken) and each
    }


def _token(described: str | Mapping[str, Any] | AddedToken, *, special: bool = False) -> AddedToken:
    """A token from JSON: its text, or its text and how it is matched."""
    if isinstance(described, AddedToken):
        return described
    if isinstance(described, str):
        return AddedToken(described, special=True)
    flags = {name: described[name] for name in _FLAGS if name in described}
    return AddedToken(
        described["content"], **flags, special=special or described.get("special", False)
    )
