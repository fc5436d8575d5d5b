"""WordPiece tokenizers: train, load and save them, and know one again by its hash.

Texts go in, a `tokenizers.Tokenizer` with BERT's normalisation and special tokens comes out.
"""

import hashlib
import json
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

import numpy as np
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from bert_core.disk import written_whole
from bert_core.errors import UserError, reason_of
from bert_core.tokenizer_file import MOST_BYTES, read_tokenizer_file
from bert_core.tokenizer_settings import (
    TOKENIZER_CONFIG,
    TokenizerSettings,
    read_tokenizer_settings,
)

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""In the order of their ids in a vocabulary trained here."""

_COUNT_CHARACTERS = 1 << 20


class TokenizerError(UserError):
    """A tokenizer file that is missing, damaged or not BERT's."""


@dataclass(frozen=True)
class SpecialTokenIds:
    """The ids of BERT's five special tokens in one vocabulary."""

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int

    @property
    def all(self) -> tuple[int, int, int, int, int]:
        """The five ids, in the order of `SPECIAL_TOKENS`."""
        return (self.pad, self.unk, self.cls, self.sep, self.mask)


def special_token_ids(tokenizer: Tokenizer) -> SpecialTokenIds:
    """Looks the special tokens up by name; raises `TokenizerError` if one is missing."""
    ids = {token: tokenizer.token_to_id(token) for token in SPECIAL_TOKENS}
    missing = [token for token, index in ids.items() if index is None]
    if missing:
        raise TokenizerError(
            "the vocabulary lacks special tokens",
            ", ".join(missing),
            f"use a BERT vocabulary, which has {' '.join(SPECIAL_TOKENS)}",
        )
    return SpecialTokenIds(*(index for index in ids.values() if index is not None))


def num_embeddings(tokenizer: Tokenizer) -> int:
    """Rows an embedding needs: one more than the highest id, which a vocabulary may not reach.

    The empty word, an empty line at the end of a vocab.txt, is in no text.
    """
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    return max(index for word, index in vocabulary.items() if word) + 1


def wordpiece_tokenizer(
    vocabulary: dict[str, int],
    *,
    lowercase: bool,
    strip_accents: bool | None = None,
    handle_chinese_chars: bool = True,
    added_tokens: Sequence[AddedToken] | None = None,
) -> Tokenizer:
    """Builds BERT's tokenizer over a given vocabulary.

    Text is cleaned, CJK characters stand alone, accents fall away when lower-cased unless
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
    tokenizer.post_processor = _template(tokenizer)
    return tokenizer


def _template(tokenizer: Tokenizer) -> processors.TemplateProcessing:
    """`[CLS] A [SEP] B [SEP]`, as the rows of every task are made."""
    special = special_token_ids(tokenizer)
    return processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", special.cls), ("[SEP]", special.sep)],
    )


def train_wordpiece(
    texts: Iterable[str],
    vocabulary_size: int,
    *,
    lowercase: bool,
    alphabet_coverage: float = 0.9995,
    least_alphabet: int = 1000,
    min_frequency: int = 2,
) -> Tokenizer:
    """Trains a vocabulary of at most `vocabulary_size` entries, special tokens included.

    Its characters are the most frequent ones: `least_alphabet` of them, or as many more as make up
    `alphabet_coverage` of the text (0.9995 is SentencePiece's default). Chinese needs thousands.
    `texts` is walked through twice, so a one-shot iterator is held in memory. The same texts give
    the same tokenizer to the byte: the trainer of `tokenizers` numbers the `##` characters in the
    order of a randomly seeded hash map (its issue 1794) and cuts the alphabet at random among
    equally frequent characters, so both are fixed here before it starts.
    Raises `TokenizerError` when the texts hold no character or the alphabet fills the vocabulary.
    """
    if isinstance(texts, Iterator):
        texts = list(texts)
    normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    counts = _count_normalized_characters(texts, normalizer)
    by_frequency = sorted(counts, key=lambda char: (-counts[char], char))
    covered = np.cumsum([counts[char] for char in by_frequency])
    wanted = np.searchsorted(covered, alphabet_coverage * covered[-1]) + 1 if counts else 0
    alphabet = sorted(by_frequency[: max(least_alphabet, int(wanted))])
    continuing = [
        f"##{char}"
        for char in alphabet
        if len(pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(f"a{char}"))) == 1
    ]
    fixed = [*SPECIAL_TOKENS, *continuing]
    if not alphabet or len(fixed) + len(alphabet) > vocabulary_size:
        raise TokenizerError(
            "no vocabulary can be trained",
            f"{len(alphabet)} different characters for {vocabulary_size} entries",
            "ask for a larger vocabulary, or a lower alphabet coverage"
            if alphabet
            else "give more text",
        )
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary_size,
        min_frequency=min_frequency,
        special_tokens=fixed,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    learner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    learner.normalizer = normalizer
    learner.pre_tokenizer = pre_tokenizer
    learner.train_from_iterator(texts, trainer)
    return wordpiece_tokenizer(learner.get_vocab(), lowercase=lowercase)


def _count_normalized_characters(
    texts: Iterable[str], normalizer: normalizers.Normalizer
) -> Counter[str]:
    """Counts characters as the trainer sees them.

    BERT's normalisation looks at one character at a time, so counting the raw characters and
    normalising each of them once is exact, and hundreds of times cheaper.
    """
    raw = np.zeros(0x110000, dtype=np.int64)
    held: list[str] = []
    num_held = 0
    for text in texts:
        held.append(text)
        num_held += len(text)
        if num_held >= _COUNT_CHARACTERS:
            _add_character_counts(raw, held)
            held, num_held = [], 0
    _add_character_counts(raw, held)
    counts: Counter[str] = Counter()
    for code in np.flatnonzero(raw):
        for char in normalizer.normalize_str(chr(code)):
            if not char.isspace():
                counts[char] += int(raw[code])
    return counts


def _add_character_counts(raw: np.ndarray, texts: list[str]) -> None:
    codes = np.frombuffer("".join(texts).encode("utf-32-le"), dtype="<u4")
    found = np.bincount(codes)
    raw[: len(found)] += found


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Loads a `tokenizer.json`, a `vocab.txt`, or a folder that holds one of them.

    Settings beside the file count as in `AutoTokenizer` of `transformers` 5: a `vocab.txt` is
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
        raise TokenizerError("no tokenizer", str(path), "give a vocab.txt or a tokenizer.json")
    settings = read_tokenizer_settings(path.parent)
    try:
        if path.suffix == ".json":
            tokenizer = _from_tokenizer_file(path, settings)
        else:
            tokenizer = _from_vocabulary_file(path, settings)
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
    tokenizer.post_processor = _template(tokenizer)
    if tokenizer.model.token_to_id("[UNK]") is None:  # added ones are not found for unknown words
        raise TokenizerError("the vocabulary lacks [UNK]", str(path), "use a BERT vocabulary")
    return tokenizer


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
    return tokenizer


def _from_vocabulary_file(path: Path, settings: TokenizerSettings) -> Tokenizer:
    if not settings.splits_as_bert:
        raise TokenizerError(
            f"a {settings.tokenizer_class}, which is not supported",
            str(path),
            "give a tokenizer.json, or a model with a BertTokenizer",
        )
    if path.stat().st_size > MOST_BYTES:
        what = f"a vocabulary larger than {MOST_BYTES:,} bytes"
        raise TokenizerError(what, str(path), "give that of a BERT model")
    with path.open("rb") as file:
        if file.read(len(BOM_UTF8)) == BOM_UTF8:
            raise TokenizerError(
                "a vocabulary that begins with a byte order mark",
                str(path),
                f"remove it: sed -i '1s/^\\xEF\\xBB\\xBF//' {quote(str(path))}",
            )
    return wordpiece_tokenizer(
        models.WordPiece.read_file(str(path)),
        lowercase=settings.do_lower_case,
        strip_accents=settings.strip_accents,
        handle_chinese_chars=settings.tokenize_chinese_chars,
        added_tokens=settings.added_tokens(),
    )


def save_tokenizer(tokenizer: Tokenizer, path: str | Path) -> None:
    """Writes a `tokenizer.json`, atomically: beside its name first, then renamed."""
    with written_whole(Path(path)) as written:
        written.write_text(tokenizer.to_str(pretty=True), encoding="utf-8")


def tokenizer_hash(tokenizer: Tokenizer) -> str:
    """The sha256, in hex, of what decides the ids of a text.

    That is the vocabulary, the normalisation and the splitting into words; templates, padding and
    truncation are left out, so the same tokenizer saved by another program keeps its hash.
    """
    state = json.loads(tokenizer.to_str())
    decisive = {
        "vocabulary": tokenizer.get_vocab(with_added_tokens=True),
        "model": state["model"]["type"],
        "normalizer": state["normalizer"],
        "pre_tokenizer": state["pre_tokenizer"],
    }
    text = json.dumps(decisive, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
