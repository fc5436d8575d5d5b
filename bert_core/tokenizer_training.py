"""Trains tokenizers: WordPiece as BERT has it, byte-level BPE, and Unigram.

The same texts give the same tokenizer to the byte.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal
from unicodedata import normalize

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from bert_core.errors import reason_of
from bert_core.special_tokens import BERT_TOKENS, SPECIAL_TOKENS, TokenizerError
from bert_core.tokenizer import row_template, wordpiece_tokenizer

TokenizerKind = Literal["wordpiece", "bpe", "unigram"]

_COUNT_CHARACTERS = 1 << 20
_LEAST_ALPHABET = 1000


def train_tokenizer(
    kind: TokenizerKind,
    texts: Iterable[str],
    vocabulary_size: int,
    *,
    lowercase: bool,
    alphabet_coverage: float = 0.9995,
) -> Tokenizer:
    """Trains a vocabulary of at most `vocabulary_size` entries, BERT's special tokens included.

    - `wordpiece` is BERT's (`train_wordpiece`)
    - `bpe` joins bytes (Sennrich et al. 2016, arXiv 1508.07909; Radford et al. 2019), as RoBERTa
      and ModernBERT have it: no text is unknown, and it takes no `alphabet_coverage`
    - `unigram` keeps the likeliest pieces (Kudo 2018, arXiv 1804.10959), as XLM-RoBERTa has it

    Raises `TokenizerError` where the characters fill the vocabulary, or, of `wordpiece` and
    `unigram`, where there are none.
    """
    if kind == "wordpiece":
        return train_wordpiece(
            texts, vocabulary_size, lowercase=lowercase, alphabet_coverage=alphabet_coverage
        )
    if kind == "bpe":
        return _train_bpe(texts, vocabulary_size, lowercase=lowercase)
    return _train_unigram(
        texts, vocabulary_size, lowercase=lowercase, alphabet_coverage=alphabet_coverage
    )


def _train_bpe(texts: Iterable[str], vocabulary_size: int, *, lowercase: bool) -> Tokenizer:
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    _check_room(len(alphabet), len(SPECIAL_TOKENS), vocabulary_size)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = _normalizer(normalizers.NFC(), lowercase=lowercase)
    # ByteLevel's own prefix would also stand behind a special token, as in `[MASK].`.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(" ", prepend_scheme="first", split=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        min_frequency=2,
        special_tokens=[*SPECIAL_TOKENS],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = row_template(tokenizer)
    return tokenizer


def _train_unigram(
    texts: Iterable[str], vocabulary_size: int, *, lowercase: bool, alphabet_coverage: float
) -> Tokenizer:
    """Characters beyond the coverage are unknown. Walks through the texts twice.

    The trainer of `tokenizers` adds its probabilities up in the order of a randomly seeded hash
    map: scores differ in the last bits from run to run, so they are rounded.
    """
    if isinstance(texts, Iterator):
        texts = list(texts)
    learner = Tokenizer(models.Unigram())
    learner.normalizer = _normalizer(normalizers.NFKC(), lowercase=lowercase)
    learner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    # NFKC joins a letter with its marks, which are separate in text written on macOS.
    composed = (normalize("NFC", text) for text in texts)
    counts = _count_normalized_characters(composed, learner.normalizer)
    alphabet = _alphabet(counts, alphabet_coverage)
    _check_room(len(alphabet), len(SPECIAL_TOKENS) + 1, vocabulary_size)
    rare = dict.fromkeys(map(ord, counts.keys() - set(alphabet)), " ")
    trainer = trainers.UnigramTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[*SPECIAL_TOKENS],
        unk_token=BERT_TOKENS.unk,
        show_progress=False,
    )
    normalizer = learner.normalizer
    try:
        learner.train_from_iterator(
            (normalizer.normalize_str(text).translate(rare) for text in texts), trainer
        )
    except Exception as error:  # tokenizers raises no other kind
        remedy = "ask for a larger vocabulary, or give more text"
        raise TokenizerError("no vocabulary can be trained", reason_of(error), remedy) from error
    (vocabulary, unknown), special = _learned(learner), set(SPECIAL_TOKENS)
    pieces = [(piece, round(score, 4)) for piece, score in vocabulary if piece not in special]
    pieces.sort(key=lambda each: (-each[1], each[0]))
    tokenizer = Tokenizer(
        models.Unigram([*((token, 0.0) for token in SPECIAL_TOKENS), *pieces], unknown)
    )
    tokenizer.normalizer, tokenizer.pre_tokenizer = learner.normalizer, learner.pre_tokenizer
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens([*SPECIAL_TOKENS])
    tokenizer.post_processor = row_template(tokenizer)
    return tokenizer


def _learned(tokenizer: Tokenizer) -> tuple[list[tuple[str, float]], int]:
    """Pieces and their scores, and the id of the unknown one."""
    model: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    return [(piece, score) for piece, score in model["vocab"]], model["unk_id"]


def _normalizer(form: normalizers.Normalizer, *, lowercase: bool) -> normalizers.Normalizer:
    """A form of Unicode, with one space for any white space; lower-cased as BERT has it if asked.

    Pre-training reads sentences, each behind a space and none with a line break, so no other text
    may have tokens that they lack. A mask stands for a word with the space before it: in a text no
    space is left before `[MASK]`, where normalisation begins anew.
    """
    spaces = [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip(left=False, right=True)]
    if not lowercase:
        return normalizers.Sequence([form, *spaces])
    # `StripAccents` would take the vowel signs of Indic scripts as well, which are spacing marks.
    lowercased = normalizers.BertNormalizer(
        clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=True
    )
    return normalizers.Sequence([form, lowercased, form, *spaces])


def _alphabet(counts: Mapping[str, int], coverage: float, least: int = 0) -> list[str]:
    """The most frequent characters: `least` of them, or as many as make up the coverage."""
    by_frequency = sorted(counts, key=lambda char: (-counts[char], char))
    covered = np.cumsum([counts[char] for char in by_frequency])
    wanted = np.searchsorted(covered, coverage * covered[-1]) + 1 if counts else 0
    return sorted(by_frequency[: max(least, int(wanted))])


def _check_room(num_characters: int, num_fixed: int, vocabulary_size: int) -> None:
    if num_characters and num_fixed + num_characters <= vocabulary_size:
        return
    raise TokenizerError(
        "no vocabulary can be trained",
        f"{num_characters} different characters for {vocabulary_size} entries",
        "ask for a larger vocabulary, or a lower alphabet coverage"
        if num_characters
        else "give more text",
    )


def train_wordpiece(
    texts: Iterable[str],
    vocabulary_size: int,
    *,
    lowercase: bool,
    alphabet_coverage: float = 0.9995,
) -> Tokenizer:
    """Trains a vocabulary of at most `vocabulary_size` entries, special tokens included.

    Its characters are the most frequent ones: 1,000 of them, or as many more as make up
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
    alphabet = _alphabet(counts, alphabet_coverage, _LEAST_ALPHABET)
    continuing = [
        f"##{char}"
        for char in alphabet
        if len(pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(f"a{char}"))) == 1
    ]
    fixed = [*SPECIAL_TOKENS, *continuing]
    _check_room(len(alphabet), len(fixed), vocabulary_size)
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary_size,
        min_frequency=2,
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
    normalising each of them once is exact, and hundreds of times cheaper. Others may join a letter
    and its mark besides: give them composed text.
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
