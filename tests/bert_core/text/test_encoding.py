"""Sentences of documents, and their token ids."""

import random

import numpy as np
import pytest
import sentencex
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from bert_core.special_tokens import (
    BERT_TOKENS,
    ROBERTA_TOKENS,
    SPECIAL_TOKENS,
    special_token_ids,
)
from bert_core.text.encoding import (
    MOST_TOKENS,
    SentenceEncoder,
    _piece_lengths,
    split_sentences,
)
from bert_core.tokenizer import wordpiece_tokenizer
from bert_core.tokenizer_training import train_wordpiece


def test_abbreviations_and_quotations_do_not_end_a_sentence():
    text = 'Dr. J. R. R. Tolkien wrote it (see p. 5). "Really?" she asked. He said e.g. this.'
    assert split_sentences(text) == [
        "Dr. J. R. R. Tolkien wrote it (see p. 5).",
        '"Really?" she asked.',
        "He said e.g. this.",
    ]


def test_the_end_of_a_line_ends_a_sentence():
    assert split_sentences("a heading\n\n  A line without stop \nand another") == [
        "a heading",
        "A line without stop",
        "and another",
    ]
    assert split_sentences(" \n") == []


@pytest.mark.parametrize("language", ["en", "ja", "de", "no such language"])
def test_nothing_is_lost_in_any_language(language):
    text = "これは文です。次の文です。Das ist z.B. eins. Das ist zwei! वह है। هل هذا؟ نعم."
    found = split_sentences(text, language)
    assert "".join(found).replace(" ", "") == text.replace(" ", "")
    assert found[0] == "これは文です。" and len(found) >= 6


@pytest.mark.parametrize(
    "unit", ["中。", "《》。", "“", "« ", "» a.", "' ", "(", "a. ", "a", "“a. ", "«a» b. "]
)
def test_a_long_line_takes_linear_time(unit, monkeypatch):
    given, segment = [], sentencex.segment

    def counting(language, text):
        given.append(len(text))
        return segment(language, text)

    monkeypatch.setattr(sentencex, "segment", counting)
    line = (unit * 48_000)[:48_000]
    assert "".join(split_sentences(line)).replace(" ", "") == line.replace(" ", "")
    # sentencex may take quadratic time, so what bounds it is how much it is given at once.
    assert max(given) <= 1 << 14 and sum(given) < 2 * len(line)


def test_a_long_line_is_split_as_its_parts_are():
    sentence = 'Dr. J. R. R. Tolkien wrote it (see p. 5). "Really?" she asked. He said e.g. this. '
    assert split_sentences(sentence * 1000) == split_sentences(sentence) * 1000
    assert split_sentences("a" * 50_000) == ["a" * (1 << 14)] * 3 + ["a" * (50_000 - 3 * (1 << 14))]


def test_a_long_line_without_sentences_is_cut_between_words():
    words = [f"word{number}" for number in range(10_000)]
    for stop in ("", ". "):  # the first word a sentence, or none
        line = words[0] + stop + " ".join(words)
        found = split_sentences(line)
        assert max(map(len, found)) <= 1 << 14 and len(found) < 10
        assert " ".join(found).split() == line.split()


@pytest.mark.parametrize("space", "\u00a0\u0085\u2009\u2028\u3000")
def test_a_wide_space_before_a_period_ends_nothing_but_the_sentence(space):
    text = f"By J{space}. R. Smith. A b{space}{space}. C{space}d."
    found = split_sentences(text)
    assert "".join("".join(found).split()) == "".join(text.split())


TEXTS = [
    "The café's naïve co-operation (1840–1920), it's said, cost £5.00!",
    "漢字かな交じり文, mixed with English.",
    "tabs\there\x0band\x85joined\x1cby cleaning\u2028and\xa0spaces",
    "zero\u200bwidth, soft\xadhyphen, combining e\u0301 and ,\u0301a; İstanbul ΟΔΟΣ",
    "[MASK] and [SEP] are words here; so is [PAD].",
    "x" * 150 + " " + "y" * 99,
    "",
    "\x0b",
    "emoji 👩‍👩‍👧 flag 🇩🇪 𝔘𝔫𝔦𝔠𝔬𝔡𝔢",
]


def plain_encode(tokenizer, sentences):
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    tokenizer.encode_special_tokens = True
    return [each.ids for each in tokenizer.encode_batch(sentences, add_special_tokens=False)]


def split(tokens, lengths):
    assert lengths.sum() == len(tokens)
    ends = np.cumsum(lengths)
    return [tokens[end - n : end].tolist() for end, n in zip(ends, lengths, strict=True)]


def random_sentences(num, seed=3):
    draw = random.Random(seed)
    ranges = [
        (32, 127),
        (32, 127),
        (0xA0, 0x180),
        (0x300, 0x3FF),
        (0x2000, 0x206F),
        (0x4E00, 0x4F00),
    ]
    return [
        "".join(
            chr(draw.randint(*draw.choice(ranges))) if draw.random() < 0.7 else " "
            for _ in range(draw.randint(0, 60))
        ).replace("\n", " ")
        for _ in range(num)
    ]


@pytest.fixture(scope="module", params=[True, False], ids=["lowercase", "cased"])
def tokenizer(request):
    return train_wordpiece(TEXTS * 3 + random_sentences(200), 3000, lowercase=request.param)


def test_ids_are_those_of_tokenizers(tokenizer):
    sentences = TEXTS + random_sentences(3000)
    encoder = SentenceEncoder(tokenizer, "uint16")
    assert encoder._by_word
    for _ in range(2):  # the second time from memory
        assert split(*encoder.encode(sentences)) == plain_encode(tokenizer, sentences)


def test_a_full_cache_changes_nothing(tokenizer):
    encoder = SentenceEncoder(tokenizer, "uint32", max_cached_words=50)
    for begin in range(0, 300, 20):
        sentences = random_sentences(20, seed=begin)
        assert split(*encoder.encode(sentences)) == plain_encode(tokenizer, sentences)
        assert len(encoder._cache) < 50 + 20 * 60


def test_batches_are_put_together(tokenizer, monkeypatch):
    monkeypatch.setattr("bert_core.text.encoding._BATCH_CHARACTERS", 100)
    sentences = TEXTS + random_sentences(100)
    found = split(*SentenceEncoder(tokenizer, "uint16").encode(sentences))
    assert found == plain_encode(tokenizer, sentences)


def test_tokenizers_of_another_kind_are_asked_for_whole_sentences():
    vocabulary = {word: index for index, word in enumerate([*SPECIAL_TOKENS, "a b", "a", "b"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Split("|", "removed")
    encoder = SentenceEncoder(tokenizer, "uint16")
    assert split(*encoder.encode(["A b|a", "b", ""])) == [[5, 6], [7], []]


def word_tokenizer(tokens):
    """Words between spaces, as they are in the vocabulary."""
    words = [*tokens.all, "a", "b", "##b"]
    model = models.WordPiece({word: index for index, word in enumerate(words)})
    model.unk_token = tokens.unk
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def piece_tokenizer(tokens):
    """Its special tokens are the likeliest pieces, as SentencePiece's converters write them."""
    pieces = [*((token, 0.0) for token in tokens.all), *((each, -5.0) for each in "\u2581abMASK")]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=1))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.add_special_tokens(list(tokens.all))
    tokenizer.add_tokens(["a new token"])
    return tokenizer


@pytest.mark.parametrize("tokens", [BERT_TOKENS, ROBERTA_TOKENS], ids=["bert", "roberta"])
@pytest.mark.parametrize("make", [word_tokenizer, piece_tokenizer])
def test_special_tokens_that_are_pieces_are_plain_text(make, tokens):
    tokenizer = make(tokens)
    encoder, special = SentenceEncoder(tokenizer, "uint16"), special_token_ids(tokenizer)
    usual = ["a b ab", "a new token b", "", "x"]
    assert split(*encoder.encode(usual)) == plain_encode(tokenizer, usual)
    named = [f"a {name} b{name}" for name in tokens.all]
    for ids in split(*encoder.encode(named)):
        assert not set(ids) & (set(special.all) - {special.unk})
        assert ids[-1] == special.unk and len(ids) > 2


def test_an_added_word_is_respected():
    vocabulary = {word: index for index, word in enumerate([*SPECIAL_TOKENS, "new", "york"])}
    tokenizer = wordpiece_tokenizer(vocabulary, lowercase=True)
    tokenizer.add_tokens(["new york"])
    assert split(*SentenceEncoder(tokenizer, "uint16").encode(["new york", "new"])) == [[7], [5]]


def test_characters_of_words_that_are_too_long_are_counted():
    clause, rest = "กรุงเทพมหานครเป็นเมืองหลวง" * 5, "เป็น เมือง"
    tokenizer = train_wordpiece([rest, "漢字" * 30] * 5, 60, lowercase=True)
    for most in (400_000, 1):
        encoder = SentenceEncoder(tokenizer, np.uint16, max_cached_words=most)
        tokens, lengths = encoder.encode([clause, f"{rest} {clause}", "漢字" * 80])
        assert encoder.unknown_characters == 2 * len(clause)
        ids = plain_encode(tokenizer, [clause, f"{rest} {clause}", "漢字" * 80])
        assert split(tokens, lengths) == ids
        encoder.encode([rest, "漢字" * 80, "☃" * 20])
        assert encoder.unknown_characters == 2 * len(clause)


def test_sentences_that_no_row_would_hold_are_cut_where_words_begin(tokenizer):
    usual, long = " ".join(random_sentences(3)), " ".join(random_sentences(900))
    encoder = SentenceEncoder(tokenizer, "uint16")
    tokens, lengths = encoder.encode([usual, long, "", usual])
    assert lengths[0] <= MOST_TOKENS < lengths[1]
    cut, num_pieces = encoder.cut(tokens, lengths)
    assert num_pieces[[0, 2, 3]].tolist() == [1, 1, 1] and len(cut) == num_pieces.sum()
    assert cut[0] == cut[-1] == lengths[0] and cut[-2] == 0
    pieces = cut[1:-2]
    assert pieces.sum() == lengths[1] and pieces.min() > 15 and pieces.max() < 45
    begins = np.cumsum(cut) - cut
    first = [tokenizer.id_to_token(token) for token in tokens[begins[1:-2]]]
    assert not any(token.startswith("##") for token in first)
    same, ones = encoder.cut(tokens[: lengths[0]], lengths[:1])
    assert same.tolist() == lengths[:1].tolist() and ones.tolist() == [1]


def test_a_word_without_an_end_is_cut_evenly():
    pieces = _piece_lengths(np.arange(1000) == 0)
    assert pieces.sum() == 1000 and set(pieces.tolist()) <= {29, 30}
