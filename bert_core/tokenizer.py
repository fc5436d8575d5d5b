"""Loads, checks, saves and hashes tokenizers.

A tokenizer.json from elsewhere is checked before it runs: only the kinds of steps that tokenizers
of encoders have are allowed. Each takes time and memory in proportion to the text, which a pattern
or replacement from the file need not.
"""

import base64
import hashlib
import json
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from bert_core.config import ModelConfig
from bert_core.disk import write_atomically, write_sorted_json
from bert_core.errors import UserError, reason_of
from bert_core.special_tokens import (
    ROBERTA_TOKENS,
    SPECIAL_TOKENS,
    TokenizerError,
    num_embeddings,
    special_token_ids,
    special_tokens,
)
from bert_core.strict_files import parse_json, read_bounded
from bert_core.tokenizer_settings import (
    TOKENIZER_CONFIG,
    TokenizerSettings,
    read_tokenizer_settings,
)
from bert_core.word_marks import BYTE_SPACE, CONTINUING, begins_behind_space, space_mark

MOST_BYTES = 1 << 27
"""Vocabularies of 500,000 words have a tenth of it."""
_MOST_STEPS = 32
_MOST_ADDED_TOKENS, _LONGEST_ADDED_TOKEN = 20_000, 1000
_LONGEST_WORD = 1000
"""Words are cut in quadratic time up to `max_input_chars_per_word`, which is 100 as a rule."""
_OTHER_FILES = ("vocab.json", "sentencepiece.bpe.model", "sentencepiece.model", "spiece.model")
"""Tokenizers of older folders, which transformers turns into a tokenizer.json."""
_LONGEST_REPLACEMENT = 64
"""Bytes; one Arabic ligature is 33."""
_MOST_IDS = 10_000_000
_SPACES = " {2,}"
"""The one expression that is run, in linear time: transformers 4 writes it for SentencePiece."""

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
        *("WordPiece", "BPEDecoder", "ByteLevel", "Metaspace", "Replace", "ByteFallback", "Fuse"),
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


def read_tokenizer_file(path: Path, error: type[UserError]) -> Tokenizer:
    """Reads a tokenizer.json; raises `error` if it is damaged or not supported."""
    content = read_bounded(path, "restore the file", error=error, max_bytes=MOST_BYTES)
    described = parse_json(content, str(path), "restore the file", error=error)
    fault = _fault(described)
    if fault is not None:
        raise error(fault[0], str(path), fault[1])
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
        raise error("damaged tokenizer", str(path), f"restore the file; {reason}") from cause
    if fault is not None:
        raise error(fault[0], str(path), fault[1])
    return tokenizer


Fault = tuple[str, str]
"""What is wrong, and the remedy."""


def _fault(described: object) -> Fault | None:
    if not isinstance(described, dict) or not isinstance(described.get("model"), dict):
        return "damaged tokenizer", "restore the file; it has no model"
    added = described.setdefault("added_tokens", [])
    if not isinstance(added, list) or not all(isinstance(each, dict) for each in added):
        return "damaged tokenizer", "restore the file; its added_tokens are no list of objects"
    faults = (_fault_of_step(kind, step) for kind in _STEPS for step in _steps(described, kind))
    return next((fault for fault in faults if fault), None) or _fault_of_model(described["model"])


def _steps(described: Mapping[str, Any], kind: str) -> Iterator[Any]:
    """The steps of a kind in their order, out of the sequences they may be in."""
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


def _fault_of_step(kind: str, step: object) -> Fault | None:
    name = step.get("type") if isinstance(step, dict) else None
    if not isinstance(step, dict) or name not in _STEPS[kind]:
        kind_name = str(name)[:60] if name is not None else "without a type"
        known = ", ".join(_STEPS[kind])
        return f"a {kind} that BERT does not have, {kind_name}", f"the ones that are run: {known}"
    if name in ("Replace", "Split"):
        pattern = step.get("pattern")
        literal = pattern.get("String") if isinstance(pattern, dict) else None
        if name == "Replace" and pattern == {"Regex": _SPACES}:
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


def wordpiece_tokenizer(
    vocabulary: dict[str, int],
    *,
    lowercase: bool,
    strip_accents: bool | None = None,
    handle_chinese_chars: bool = True,
    added_tokens: Sequence[AddedToken] | None = None,
) -> Tokenizer:
    """Builds BERT's tokenizer over a given vocabulary.

    Text is cleaned, CJK characters are separated, accents are stripped when lower-cased unless
    `strip_accents` says otherwise (Devlin et al. 2018, and the published code). `added_tokens`, by
    default the special ones, are found in raw text; the vocabulary gives them their ids, or they
    follow its last. Encoding with special tokens gives `[CLS] A [SEP] B [SEP]`.
    """
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=strip_accents, handle_chinese_chars=handle_chinese_chars
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    if added_tokens is None:
        tokenizer.add_special_tokens([token for token in SPECIAL_TOKENS if token in vocabulary])
    else:
        tokenizer.add_tokens(list(added_tokens))
    tokenizer.post_processor = row_template(tokenizer)
    return tokenizer


def row_template(tokenizer: Tokenizer, num_between: int = 1) -> processors.TemplateProcessing:
    """`[CLS] A [SEP] B [SEP]`, as the rows of every task are made, or with more between texts."""
    names, special = special_tokens(tokenizer), special_token_ids(tokenizer)
    cls, sep = names.cls, names.sep
    between = " ".join([f"{sep}:0"] * num_between)
    return processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {between} $B:1 {sep}:1",
        special_tokens=[(cls, special.cls), (sep, special.sep)],
    )


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Loads a `tokenizer.json`, a `vocab.txt`, or a folder that holds one of them.

    Settings next to the file apply as in `AutoTokenizer` of `transformers` 5: a `vocab.txt` is
    lower-cased unless tokenizer_config.json says `"do_lower_case": false`. A `tokenizer.json`
    without a tokenizer_config.json keeps its own normalisation. Padding and truncation that a file
    brings along are switched off, and special tokens come where BERT's do. Raises `UserError` for a
    missing or damaged file, a vocabulary without BERT's tokens, and settings that are not
    supported.
    """
    path = Path(path)
    if path.is_dir():
        found = [path / name for name in ("tokenizer.json", "vocab.txt")]
        path = next((each for each in found if each.is_file()), found[0])
    if not path.is_file():
        remedy = "give a vocab.txt or a tokenizer.json"
        if any((path.parent / name).is_file() for name in _OTHER_FILES):
            folder = repr(str(path.parent))
            load = f"AutoTokenizer.from_pretrained({folder})"
            remedy = f"write it with transformers: {load}.save_pretrained({folder})"
        raise TokenizerError("no tokenizer", str(path), remedy)
    settings = read_tokenizer_settings(path.parent)
    try:
        build = _from_tokenizer_file if path.suffix == ".json" else _from_vocabulary_file
        tokenizer = build(path, settings)
    except UserError:
        raise
    except Exception as error:  # tokenizers raises bare Exception for a file it cannot parse
        raise TokenizerError(
            "damaged tokenizer", str(path), f"restore the file; {reason_of(error)}"
        ) from error
    if settings.lowercase_first:  # the tokenizer's own normalisation may then keep accents
        own = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *own])
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.post_processor = row_template(tokenizer, _num_between(tokenizer, path))
    unknown = special_tokens(tokenizer).unk
    knows_bytes = space_mark(tokenizer) == BYTE_SPACE
    # Added ones are not found for unknown words.
    if tokenizer.model.token_to_id(unknown) is None and not knows_bytes:
        raise TokenizerError(f"the vocabulary lacks {unknown}", str(path), "use a BERT vocabulary")
    return tokenizer


def _num_between(tokenizer: Tokenizer, path: Path) -> int:
    """How many separators a file's own rows have between the texts of a pair.

    Without special tokens in its rows it is as usual: RoBERTa has two (Liu et al. 2019, arXiv
    1907.11692). Raises `TokenizerError` for rows that are not `[CLS] A [SEP]`. The file's template
    is read and not run, for it may repeat a text as often as it likes.
    """
    special_token_ids(tokenizer)  # raises where one is missing
    names, single, pair = special_tokens(tokenizer), list[str](), list[str]()
    match _row_steps(tokenizer):
        case []:
            return 2 if names is ROBERTA_TOKENS else 1
        case [{"cls": [cls, _], "sep": [sep, _], "type": kind}]:
            between = [sep] * (2 if kind == "RobertaProcessing" else 1)
            single, pair = [cls, "A", sep], [cls, "A", *between, "B", sep]
        case [{"single": first, "pair": second}]:
            single = [part["id"] for each in first for part in each.values()]
            pair = [part["id"] for each in second for part in each.values()]
    row, num_between = [names.cls, "A", names.sep], len(pair) - 4
    of_pair = [*row[:2], *[names.sep] * num_between, "B", names.sep]
    if single != row or pair != of_pair or num_between not in (1, 2):
        raise TokenizerError(
            f"rows other than {' '.join(row)} and, of pairs, {' '.join(row)} B {names.sep}",
            str(path),
            "fix its post_processor, or give the tokenizer of a BERT model",
        )
    return num_between


def _row_steps(tokenizer: Tokenizer) -> list[Any]:
    """The steps that make rows of texts, as JSON."""
    step = tokenizer.post_processor
    described = {"post_processor": step and json.loads(step.__getstate__())}
    return [each for each in _steps(described, "post_processor") if each["type"] != "ByteLevel"]


def has_segments(folder: Path) -> bool:
    """Whether the second text of a pair is segment 1; else all tokens are of segment 0.

    A class that runs any tokenizer.json has the segments of the file's rows.
    """
    settings, path = read_tokenizer_settings(folder), folder / "tokenizer.json"
    if not (settings.has_segments and settings.runs_any_file and path.is_file()):
        return settings.has_segments
    second = {"Sequence": {"id": "B", "type_id": 0}}
    for step in _row_steps(read_tokenizer_file(path, TokenizerError)):
        if step["type"] == "RobertaProcessing" or second in step.get("pair", ()):
            return False
    return True


def _from_tokenizer_file(path: Path, settings: TokenizerSettings) -> Tokenizer:
    tokenizer = read_tokenizer_file(path, TokenizerError)
    tokenizer.add_tokens(settings.added_tokens(list(tokenizer.get_added_tokens_decoder().values())))
    normalizer = tokenizer.normalizer
    if (
        isinstance(normalizer, normalizers.BertNormalizer)
        and settings.splits_as_bert
        and (path.parent / TOKENIZER_CONFIG).is_file()
    ):
        tokenizer.normalizer = normalizers.BertNormalizer(
            clean_text=normalizer.clean_text,
            handle_chinese_chars=settings.tokenize_chinese_chars,
            strip_accents=settings.strip_accents,
            lowercase=settings.do_lower_case,
        )
    mark, adds_space = space_mark(tokenizer), settings.adds_space
    if mark and adds_space is not None and adds_space != begins_behind_space(tokenizer):
        scheme = "always" if adds_space else "never"
        pieces = [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Metaspace(replacement=mark, prepend_scheme=scheme),
        ]
        tokenizer.pre_tokenizer = (
            pre_tokenizers.ByteLevel(add_prefix_space=adds_space)
            if mark == BYTE_SPACE
            else pre_tokenizers.Sequence(pieces)
        )
    return tokenizer


def _from_vocabulary_file(path: Path, settings: TokenizerSettings) -> Tokenizer:
    if not settings.splits_as_bert:
        what = f"a {settings.tokenizer_class}, which is not supported"
        remedy = "give a tokenizer.json, or a model with a BertTokenizer"
        raise TokenizerError(what, str(path), remedy)
    if path.stat().st_size > MOST_BYTES:
        what = f"a vocabulary larger than {MOST_BYTES:,} bytes"
        raise TokenizerError(what, str(path), "give that of a BERT model")
    with path.open("rb") as file:
        if file.read(len(BOM_UTF8)) == BOM_UTF8:
            remedy = f"remove it: sed -i '1s/^\\xEF\\xBB\\xBF//' {quote(str(path))}"
            raise TokenizerError("the vocabulary begins with a byte order mark", str(path), remedy)
    vocabulary = models.WordPiece.read_file(str(path))
    vocabulary.pop("", None)  # an empty line: no text has it, and a model no row for the last one
    return wordpiece_tokenizer(
        vocabulary,
        lowercase=settings.do_lower_case,
        strip_accents=settings.strip_accents,
        handle_chinese_chars=settings.tokenize_chinese_chars,
        added_tokens=settings.added_tokens(),
    )


def save_tokenizer(tokenizer: Tokenizer, path: str | Path) -> None:
    """Writes a `tokenizer.json` atomically."""
    write_atomically(Path(path), tokenizer.to_str(pretty=True))


def write_tokenizer(folder: Path, tokenizer: Tokenizer, config: ModelConfig) -> None:
    """Writes a tokenizer in the forms that transformers 4 and 5 and vocab.txt readers take.

    A vocab.txt is written where the tokens are all that a model has: others have merges or scores.
    """
    save_tokenizer(tokenizer, folder / "tokenizer.json")
    state = json.loads(tokenizer.to_str())
    if state["model"]["type"] in ("WordPiece", "WordLevel"):
        # An id without a word is an empty line, so that those behind it keep theirs.
        words = (tokenizer.id_to_token(each) or "" for each in range(num_embeddings(tokenizer)))
        (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    names = special_tokens(tokenizer)
    special = {
        f"{name}_token": getattr(names, name) for name in ("cls", "mask", "pad", "sep", "unk")
    }
    write_sorted_json(folder / "special_tokens_map.json", special)
    normalizer = state["normalizer"]
    # Which inputs a class has by default depends on the version of `transformers`.
    segments = [] if config.type_vocab_size == 1 else ["token_type_ids"]
    settings: dict[str, Any] = {
        "model_max_length": config.max_position_embeddings,
        "model_input_names": ["input_ids", *segments, "attention_mask"],
        **special,
    }
    if special_token_ids(tokenizer).num_between == 1 and _is_built_by_class(state):
        settings |= {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": normalizer["lowercase"],
            "strip_accents": normalizer["strip_accents"],
            "tokenize_chinese_chars": normalizer["handle_chinese_chars"],
        }
    else:
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    write_sorted_json(folder / "tokenizer_config.json", settings)


def _is_built_by_class(state: Mapping[str, Any]) -> bool:
    """Whether BertTokenizer of `transformers` 5 gives these tokens; it reads the words alone."""
    normalizer, pre_tokenizer = state["normalizer"] or {}, state["pre_tokenizer"] or {}
    return (
        state["model"]["type"] == "WordPiece"
        and state["model"]["continuing_subword_prefix"] == CONTINUING
        and state["model"]["max_input_chars_per_word"] == 100
        and pre_tokenizer.get("type") == "BertPreTokenizer"
        and normalizer.get("type") == "BertNormalizer"
        and normalizer["clean_text"]
    )


def tokenizer_hash(tokenizer: Tokenizer) -> str:
    """Returns the sha256, in hex, of everything that decides the ids of a text.

    That is the vocabulary, the normalisation and the splitting into words; templates, padding and
    truncation are left out, so the same tokenizer saved by another program keeps its hash.
    """
    state = json.loads(tokenizer.to_str())
    model = state["model"]
    decisive = {
        "vocabulary": tokenizer.get_vocab(with_added_tokens=True),
        "model": model["type"],
        "normalizer": state["normalizer"],
        "pre_tokenizer": state["pre_tokenizer"],
    }
    if model["type"] == "BPE":
        decisive["merges"] = model["merges"]
    if model["type"] == "Unigram":
        decisive["scores"] = model["vocab"]
    usual = {"max_input_chars_per_word": 100, "ignore_merges": False, "byte_fallback": False}
    decisive |= {name: said for name, said in model.items() if usual.get(name, said) != said}
    text = json.dumps(decisive, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
