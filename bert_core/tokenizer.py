"""Loads, saves and hashes tokenizers."""

import hashlib
import json
from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
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
    BERT_TOKENS,
    ROBERTA_TOKENS,
    SPECIAL_TOKENS,
    TokenizerError,
    num_embeddings,
    special_token_ids,
    special_tokens,
)
from bert_core.tokenizer_file import MOST_BYTES, read_tokenizer_file, steps_in
from bert_core.tokenizer_settings import (
    TOKENIZER_CONFIG,
    TokenizerSettings,
    read_tokenizer_settings,
)
from bert_core.word_marks import BYTE_SPACE, CONTINUING, begins_behind_space, space_mark

_OTHER_FILES = ("vocab.json", "sentencepiece.bpe.model", "sentencepiece.model", "spiece.model")
"""Tokenizers of older folders, which transformers turns into a tokenizer.json."""


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
    return [each for each in steps_in(tokenizer, "post_processor") if each["type"] != "ByteLevel"]


def has_segments(folder: Path) -> bool:
    """Whether the second text of a pair is segment 1; else all tokens are of segment 0.

    A class that runs any tokenizer.json has the segments of the file's rows.
    """
    settings, path = read_tokenizer_settings(folder), folder / "tokenizer.json"
    if not (settings.has_segments and settings.runs_any_file and path.is_file()):
        return settings.has_segments
    second = {"Sequence": {"id": "B", "type_id": 0}}
    for step in _row_steps(read_tokenizer_file(path)):
        if step["type"] == "RobertaProcessing" or second in step.get("pair", ()):
            return False
    return True


def _from_tokenizer_file(path: Path, settings: TokenizerSettings) -> Tokenizer:
    tokenizer = read_tokenizer_file(path)
    added = settings.added_tokens(list(tokenizer.get_added_tokens_decoder().values()))
    if special_tokens(tokenizer) is not BERT_TOKENS:  # a file alone names no class, nor its tokens
        added = [token for token in added if token.content not in SPECIAL_TOKENS]
    tokenizer.add_tokens(added)
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
