"""Reads a tokenizer.json from elsewhere, and checks it before it runs.

Only the kinds of steps that tokenizers of encoders have are allowed. Each takes time and memory in
proportion to the text, which a pattern or replacement from the file need not.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from bert_core.special_tokens import TokenizerError
from bert_core.strict_files import parse_json, read_bounded

MOST_BYTES = 1 << 27
"""Vocabularies of 500,000 words have a tenth of it."""
_MOST_STEPS = 32
_MOST_ADDED_TOKENS, _LONGEST_ADDED_TOKEN = 20_000, 1000
_LONGEST_WORD = 1000
"""Words are cut in quadratic time up to `max_input_chars_per_word`, which is 100 as a rule."""
_LONGEST_REPLACEMENT = 64
"""Bytes; one Arabic ligature is 33."""
_MOST_IDS = 10_000_000
_SPACES = (" {2,}", r"\s+")
"""The expressions that are run, in linear time: of SentencePiece in transformers 4, and ours."""

_STEPS = {
    "normalizer": (
        *("BertNormalizer", "Lowercase", "StripAccents", "Strip", "Nmt"),
        *("NFC", "NFD", "NFKC", "NFKD", "Replace", "Precompiled"),
    ),
    "pre_tokenizer": (
        *("BertPreTokenizer", "Whitespace", "WhitespaceSplit", "Punctuation", "Digits"),
        *("UnicodeScripts", "CharDelimiterSplit", "Split", "ByteLevel", "Metaspace"),
    ),
    "post_processor": (
        *("BertProcessing", "TemplateProcessing", "RobertaProcessing", "ByteLevel"),
    ),
    "decoder": (
        *("WordPiece", "BPEDecoder", "ByteLevel", "Metaspace"),
        *("Replace", "ByteFallback", "Fuse", "Strip"),
    ),
}
_PARTS = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "post_processor": "processors",
    "decoder": "decoders",
}
"""Where a Sequence of steps has them."""
_MODELS = ("WordPiece", "WordLevel", "BPE", "Unigram")


def read_tokenizer_file(path: Path) -> Tokenizer:
    """Reads a tokenizer.json; raises `TokenizerError` if it is damaged or not supported."""
    content = read_bounded(path, "restore the file", error=TokenizerError, max_bytes=MOST_BYTES)
    described = parse_json(content, str(path), "restore the file", error=TokenizerError)
    fault = _fault(described)
    if fault is not None:
        raise TokenizerError(fault[0], str(path), fault[1])
    vocabulary = described["model"]["vocab"]
    if isinstance(vocabulary, dict) and vocabulary.pop("", None) is not None:
        content = json.dumps(described).encode()  # made of a vocab.txt with an empty line
    try:
        tokenizer = Tokenizer.from_str(content.decode())
        tokenizer.no_padding()
        tokenizer.no_truncation()
        fault = _fault_of_added_tokens(described["added_tokens"], tokenizer)
        tokenizer.encode("a word", add_special_tokens=False)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as cause:  # bare Exception, or PanicException where Rust code gave up
        reason = " ".join(str(cause).split())[:200]
        raise TokenizerError(
            "damaged tokenizer", str(path), f"restore the file; {reason}"
        ) from cause
    if fault is not None:
        raise TokenizerError(fault[0], str(path), fault[1])
    return tokenizer


Fault = tuple[str, str]
"""What is wrong, and the remedy."""


def _fault(described: object) -> Fault | None:
    if not isinstance(described, dict) or not isinstance(described.get("model"), dict):
        return "damaged tokenizer", "restore the file; it has no model"
    added = described.setdefault("added_tokens", [])
    if not isinstance(added, list) or not all(isinstance(each, dict) for each in added):
        return "damaged tokenizer", "restore the file; its added_tokens are no list of objects"
    faults = (_fault_of_step(kind, step) for kind in _STEPS for step in steps_of(described, kind))
    return next((fault for fault in faults if fault), None) or _fault_of_model(described["model"])


def steps_of(described: Mapping[str, Any], kind: str) -> Iterator[Any]:
    """The steps of a `kind` of a tokenizer's JSON, in their order, out of their sequences.

    A kind is `normalizer`, `pre_tokenizer`, `post_processor` or `decoder`.
    """
    waiting: list[object] = [described.get(kind)]
    number = 0
    while waiting and number <= _MOST_STEPS:
        step = waiting.pop(0)
        parts = step.get(_PARTS[kind]) if isinstance(step, dict) else None
        if isinstance(step, dict) and step.get("type") == "Sequence" and isinstance(parts, list):
            waiting = [*parts[: _MOST_STEPS + 1], *waiting]
        elif step is not None:
            number += 1
            yield step if number <= _MOST_STEPS else {"type": f"Sequence of over {_MOST_STEPS}"}


def steps_in(tokenizer: Tokenizer, kind: str) -> list[dict[str, Any]]:
    """The same of a tokenizer that is read."""
    step = getattr(tokenizer, kind)
    # Of the tokenizer it would be all its vocabulary.
    described = {kind: None if step is None else json.loads(step.__getstate__())}
    return list(steps_of(described, kind))


def _fault_of_step(kind: str, step: object) -> Fault | None:
    name = step.get("type") if isinstance(step, dict) else None
    if not isinstance(step, dict) or name not in _STEPS[kind]:
        kind_name = str(name)[:60] if name is not None else "without a type"
        known = ", ".join(_STEPS[kind])
        return f"a {kind} that BERT does not have, {kind_name}", f"the ones that are run: {known}"
    if name in ("Replace", "Split"):
        pattern = step.get("pattern")
        literal = pattern.get("String") if isinstance(pattern, dict) else None
        if name == "Replace" and isinstance(pattern, dict) and pattern.get("Regex") in _SPACES:
            literal = " "
        if not isinstance(literal, str) or not literal:
            return f"a {kind} with a pattern of its own, {name}", "a text may be the pattern"
        content = step.get("content", "")
        if name == "Replace" and not (isinstance(content, str) and len(content) <= len(literal)):
            return f"a {kind} that makes texts longer, {name}", "replace by no more characters"
    if name == "Precompiled" and not _is_short(step.get("precompiled_charsmap")):
        return f"a {kind} that makes texts longer, {name}", "a character may become a few others"
    return None


def _is_short(charsmap: object) -> bool:
    """Whether each replacement in SentencePiece's map of characters has few bytes.

    The map is a trie behind its size, then the replacements, each ended by a zero.
    """
    try:
        content = base64.b64decode(charsmap if isinstance(charsmap, str) else "-", validate=True)
    except ValueError:
        return False
    replacements = content[4 + int.from_bytes(content[:4], "little") :]
    return max(map(len, replacements.split(b"\0"))) <= _LONGEST_REPLACEMENT


def _fault_of_model(model: Mapping[str, Any]) -> Fault | None:
    name = model.get("type", "WordPiece")
    if name not in _MODELS:
        known = ", ".join(_MODELS)
        return f"a tokenizer model that BERT does not have, {str(name)[:60]}", f"one of {known} is"
    vocabulary = model.get("vocab")
    if name == "Unigram":
        return _fault_of_unigram(model, vocabulary)
    if not isinstance(vocabulary, dict) or not all(
        type(index) is int and 0 <= index < _MOST_IDS for index in vocabulary.values()
    ):
        return "damaged vocabulary", f"give each word a number from 0 to {_MOST_IDS - 1:,}"
    longest = model.get("max_input_chars_per_word", 100)
    if type(longest) is not int or not 1 <= longest <= _LONGEST_WORD:
        return (
            f"max_input_chars_per_word {str(longest)[:30]}",
            f"from 1 to {_LONGEST_WORD} is run, 100 as a rule",
        )
    unknown = model.get("unk_token")
    if unknown is not None and unknown not in vocabulary:
        return f"the vocabulary lacks its unk_token {str(unknown)[:60]!r}", "restore the file"
    if model.get("dropout"):
        return "a tokenizer that draws at random (dropout)", "set dropout to null"
    return None


def _fault_of_unigram(model: Mapping[str, Any], vocabulary: object) -> Fault | None:
    """A piece is looked for at each character: in time that grows with the longest one."""
    if not isinstance(vocabulary, list) or len(vocabulary) > _MOST_IDS:
        return "damaged vocabulary", f"give a list of at most {_MOST_IDS:,} pieces and their scores"
    for piece in vocabulary:
        is_pair = isinstance(piece, list) and len(piece) == 2
        if not is_pair or not isinstance(piece[0], str) or type(piece[1]) not in (int, float):
            return "damaged vocabulary", "give each piece a score"
        if len(piece[0]) > _LONGEST_WORD:
            return "a vocabulary with a long piece", f"{_LONGEST_WORD} characters are run"
    unknown = model.get("unk_id")
    if type(unknown) is not int or not 0 <= unknown < len(vocabulary):
        return f"the vocabulary lacks its unk_id {str(unknown)[:30]}", "restore the file"
    return None


def _fault_of_added_tokens(added: list[dict[str, Any]], tokenizer: Tokenizer) -> Fault | None:
    if len(added) > _MOST_ADDED_TOKENS:
        return f"{len(added):,} added tokens", f"{_MOST_ADDED_TOKENS:,} are run"
    for each in added:
        content, index = each.get("content"), each.get("id")
        if not isinstance(content, str) or not content or len(content) > _LONGEST_ADDED_TOKEN:
            return f"an added token {str(content)[:60]!r}", "remove it from added_tokens"
        if type(index) is not int or not 0 <= index < _MOST_IDS:
            return f"an added token {content[:60]!r} with the id {str(index)[:30]}", "fix its id"
        normalizer = tokenizer.normalizer
        if each.get("normalized") and normalizer and not normalizer.normalize_str(content):
            # The empty text is found between any two characters.
            return (
                f"an added token of which nothing is left, {content[:60]!r}",
                "remove it from added_tokens, or set its normalized to false",
            )
    return None
