import json
import subprocess
from base64 import b64encode

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from tokenizers.models import BPE, WordLevel

from bert_core.special_tokens import (
    SPECIAL_TOKENS,
    TokenizerError,
    num_embeddings,
    special_token_ids,
)
from bert_core.tokenizer import load_tokenizer, save_tokenizer, tokenizer_hash, wordpiece_tokenizer
from bert_core.tokenizer_training import train_wordpiece


@pytest.fixture(scope="module")
def tokenizer():
    return train_wordpiece(["some words of a text, and so on"] * 3, 100, lowercase=True)


def test_special_tokens_come_first(tokenizer):
    assert special_token_ids(tokenizer).all == (0, 1, 2, 3, 4)
    assert tokenizer.get_vocab_size() <= 100
    assert len(set(tokenizer.get_vocab().values())) == tokenizer.get_vocab_size()
    assert max(tokenizer.get_vocab().values()) == tokenizer.get_vocab_size() - 1


def test_embeddings_reach_the_highest_id(tokenizer):
    assert num_embeddings(tokenizer) == tokenizer.get_vocab_size()
    gap = {token: index for index, token in enumerate(SPECIAL_TOKENS)} | {"far": 99}
    assert num_embeddings(wordpiece_tokenizer(gap, lowercase=True)) == 100


def test_save_and_load(tmp_path, tokenizer):
    save_tokenizer(tokenizer, tmp_path / "tokenizer.json")
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        loaded = load_tokenizer(path)
        assert loaded.to_str() == tokenizer.to_str()
        assert tokenizer_hash(loaded) == tokenizer_hash(tokenizer)
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]


def test_padding_and_truncation_of_a_file_are_switched_off(tmp_path, tokenizer):
    other = Tokenizer.from_str(tokenizer.to_str())
    other.enable_padding(length=64)
    other.enable_truncation(8)
    other.save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(tmp_path)
    assert loaded.padding is None and loaded.truncation is None
    assert tokenizer_hash(loaded) == tokenizer_hash(tokenizer)


def write_vocabulary(path, *words):
    path.write_text("\n".join([*SPECIAL_TOKENS, *words]) + "\n", encoding="utf-8")
    return path


def test_vocab_txt(tmp_path):
    lower = load_tokenizer(write_vocabulary(tmp_path / "vocab.txt", "paris", "##s", "é"))
    assert lower.encode("PARIS", add_special_tokens=False).ids == [5]
    assert load_tokenizer(tmp_path).to_str() == lower.to_str()
    write_vocabulary(tmp_path / "vocab.txt", "Paris", "##s")
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    cased = load_tokenizer(tmp_path)
    assert cased.encode("Pariss paris", add_special_tokens=False).ids == [5, 6, 1]


def test_the_hash_tells_tokenizers_apart(tmp_path, tokenizer):
    vocabulary = tokenizer.get_vocab()
    of_short_words = wordpiece_tokenizer(vocabulary, lowercase=True)
    of_short_words.model.max_input_chars_per_word = 3
    hashes = {
        tokenizer_hash(of_short_words),
        tokenizer_hash(tokenizer),
        tokenizer_hash(wordpiece_tokenizer(vocabulary, lowercase=False)),
        tokenizer_hash(wordpiece_tokenizer(vocabulary | {"new": len(vocabulary)}, lowercase=True)),
    }
    assert len(hashes) == 4
    assert tokenizer_hash(wordpiece_tokenizer(vocabulary, lowercase=True)) in hashes


def test_bad_files_are_refused_in_one_line(tmp_path):
    with pytest.raises(TokenizerError, match="no tokenizer"):
        load_tokenizer(tmp_path / "absent")
    (tmp_path / "tokenizer.json").write_text('{"model":')
    with pytest.raises(TokenizerError, match="damaged") as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)
    Tokenizer(models.WordPiece({"a": 0}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(TokenizerError, match=r"lacks \[UNK\]"):
        load_tokenizer(tmp_path)
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    with pytest.raises(TokenizerError, match=r"lacks \[UNK\]"):
        load_tokenizer(tmp_path / "vocab.txt")


def test_a_vocabulary_has_a_largest_size(tmp_path):
    with (tmp_path / "vocab.txt").open("wb") as file:
        file.truncate(1 << 32)
    with pytest.raises(TokenizerError, match="larger than"):
        load_tokenizer(tmp_path)


def test_the_remedy_of_a_byte_order_mark_works_in_a_folder_of_any_name(tmp_path):
    path = tmp_path / "it's $(a) folder" / "vocab.txt"
    path.parent.mkdir()
    path.write_text("\n".join([*SPECIAL_TOKENS, "a"]), encoding="utf-8-sig")
    with pytest.raises(TokenizerError, match="byte order mark") as caught:
        load_tokenizer(path)
    command = caught.value.remedy.removeprefix("remove it: ")
    subprocess.run(command, shell=True, check=True)  # noqa: S602 - as a user does
    assert load_tokenizer(path).encode("a", add_special_tokens=False).ids == [5]


WORDS = [*SPECIAL_TOKENS, "a", "b", "##b", "hello", "wo", "##rld", ","]


@pytest.fixture
def path(tmp_path):
    tokenizer = wordpiece_tokenizer({word: i for i, word in enumerate(WORDS)}, lowercase=True)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def change(path, part, value):
    content = json.loads(path.read_text())
    if part == "model":
        value = content["model"] | value
    elif part == "added_tokens":
        value = [*content["added_tokens"], *value]
    path.write_text(json.dumps(content | {part: value}))


def nested(kind, parts, step, depth):
    for _ in range(depth):
        step = {"type": "Sequence", parts: [step]}
    return step


PRE = "pretokenizers"
REPLACE = {"type": "Replace", "pattern": {"String": "aa"}, "content": "b"}
SPACES = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "\u2581"}


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("normalizer", None),
        ("normalizer", {"type": "Lowercase"}),
        ("normalizer", {"type": "Strip", "strip_left": True, "strip_right": True}),
        (
            "normalizer",
            {
                "type": "Sequence",
                "normalizers": [{"type": name} for name in ("NFD", "NFKC", "StripAccents", "Nmt")],
            },
        ),
        ("normalizer", {"type": "Sequence", "normalizers": []}),
        ("normalizer", REPLACE),
        ("normalizer", SPACES | {"content": " "}),
        ("normalizer", nested("Sequence", "normalizers", SPACES, 2)),
        ("pre_tokenizer", {"type": "Whitespace"}),
        ("pre_tokenizer", nested("Sequence", PRE, {"type": "WhitespaceSplit"}, 3)),
        ("pre_tokenizer", {"type": "Digits", "individual_digits": True}),
        ("pre_tokenizer", {"type": "Punctuation", "behavior": "Isolated"}),
        ("decoder", None),
        ("padding", None),
        ("model", {"max_input_chars_per_word": 1000}),
    ],
)
def test_what_bert_like_tokenizers_are_made_of_is_run(path, part, value):
    change(path, part, value)
    expected = Tokenizer.from_file(str(path))
    found = load_tokenizer(path)
    text = "Hello, aab Ab, 12 [MASK]!"
    assert found.encode(text).ids == expected.encode(text).ids
    assert found.to_str() == expected.to_str()


def template(single, pair, ids=(2,)):
    special = {
        name: {"id": name, "ids": list(ids), "tokens": ["x"] * len(ids)}
        for name in ("[CLS]", "[SEP]")
    }
    kinds = {"type": "TemplateProcessing", "special_tokens": special}
    return kinds | {"single": single, "pair": pair}


A, B = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
CLS, SEP = ({"SpecialToken": {"id": name, "type_id": 0}} for name in ("[CLS]", "[SEP]"))
ROW, PAIR = [CLS, A, SEP], [CLS, A, SEP, B, SEP]


@pytest.mark.parametrize(
    ("step", "num_between"),
    [
        (None, 1),
        ({"type": "BertProcessing", "sep": ["[SEP]", 9], "cls": ["[CLS]", 4_000_000]}, 1),
        (template(ROW, PAIR, [4_000_000]), 1),
        (template(ROW, PAIR, [2] * 100_000), 1),
        (template(ROW, [CLS, A, SEP, SEP, B, SEP]), 2),
        (nested("Sequence", "processors", template(ROW, PAIR), 2), 1),
    ],
)
def test_rows_have_the_separators_of_the_file(path, step, num_between):
    change(path, "post_processor", step)
    tokenizer = load_tokenizer(path)
    found, between = tokenizer.encode("a hello", "hello"), ["[SEP]"] * num_between
    assert found.tokens == ["[CLS]", "a", "hello", *between, "hello", "[SEP]"]
    assert found.type_ids == [0, 0, 0, *[0] * num_between, 1, 1]
    assert special_token_ids(tokenizer).num_of_pair == 2 + num_between


@pytest.mark.parametrize(
    "step",
    [
        template([A] * 1000, PAIR),
        template([CLS, A], PAIR),
        template([A, SEP], PAIR),
        template(ROW, [CLS, A, B, SEP]),
        template(ROW, [CLS, A, *[SEP] * 1000, B, SEP]),
        template(ROW, [CLS, B, SEP, A, SEP]),
        {"type": "BertProcessing", "sep": ["hello", 8], "cls": ["[CLS]", 2]},
        {"type": "Sequence", "processors": [template(ROW, PAIR)] * 2},
    ],
)
def test_other_rows_are_refused(path, step):
    change(path, "post_processor", step)
    with pytest.raises(TokenizerError, match="rows other than") as caught:
        load_tokenizer(path)
    assert "\n" not in str(caught.value)


def test_other_models_of_words_are_run(tmp_path, path):
    vocabulary = {word: i for i, word in enumerate(WORDS)}
    for model in (WordLevel(vocabulary, unk_token="[UNK]"), BPE(vocabulary, [], unk_token="[UNK]")):
        tokenizer = Tokenizer(model)
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.save(str(path))
        found = load_tokenizer(path).encode("a hello", add_special_tokens=False)
        assert found.ids == tokenizer.encode("a hello").ids


UNIGRAM = {"type": "Unigram", "vocab": [["<unk>", 0.0]], "unk_id": 0}


def charsmap(replacements):
    """A map of characters as SentencePiece has it, for a tokenizer.json."""
    return b64encode((4).to_bytes(4, "little") + bytes(4) + replacements).decode()


@pytest.mark.parametrize(
    ("part", "value", "said"),
    [
        ("normalizer", REPLACE | {"content": "b" * 1000}, "longer, Replace"),
        ("normalizer", REPLACE | {"pattern": {"Regex": "(a+)+$"}}, "pattern of its own, Replace"),
        ("normalizer", REPLACE | {"pattern": {"String": ""}}, "pattern of its own, Replace"),
        ("normalizer", SPACES | {"content": "ab"}, "longer, Replace"),
        ("normalizer", SPACES | {"pattern": {"Regex": " {1,}"}}, "pattern of its own, Replace"),
        ("normalizer", {"type": "Prepend", "prepend": "x" * 1000}, "Prepend"),
        ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "AAAA"}, "Precompiled"),
        (
            "normalizer",
            # A trie of four bytes, then what characters become.
            {"type": "Precompiled", "precompiled_charsmap": charsmap(b"a\0" + b"b" * 65 + b"\0")},
            "longer, Precompiled",
        ),
        ("normalizer", {"type": "Precompiled", "precompiled_charsmap": 5}, "longer, Precompiled"),
        ("normalizer", {"type": "ByteLevel"}, "ByteLevel"),
        ("normalizer", {"type": 5}, "does not have, 5"),
        ("normalizer", {}, "without a type"),
        ("normalizer", "Lowercase", "without a type"),
        ("normalizer", nested("Sequence", "normalizers", {"type": "Prepend"}, 9), "Prepend"),
        (
            "normalizer",
            {"type": "Sequence", "normalizers": [{"type": "NFKD"}] * 100},
            "Sequence of over",
        ),
        ("pre_tokenizer", {"type": "FixedLength", "length": 5}, "FixedLength"),
        ("pre_tokenizer", {"type": "Metaspace"}, "damaged tokenizer"),
        (
            "pre_tokenizer",
            {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated"},
            "pattern of its own, Split",
        ),
        ("pre_tokenizer", SPACES | {"type": "Split", "behavior": "Isolated"}, "its own, Split"),
        ("pre_tokenizer", nested("Sequence", PRE, {"type": "Split"}, 2), "Split"),
        ("post_processor", {"type": "Odd"}, "post_processor"),
        ("decoder", {"type": "CTC"}, "a decoder that"),
        ("decoder", {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""}, "pattern"),
        ("model", {"type": "Other"}, "Other"),
        ("model", {"type": "Unigram"}, "damaged vocabulary"),
        ("model", UNIGRAM | {"vocab": [["<unk>", "0"]]}, "give each piece a score"),
        ("model", UNIGRAM | {"vocab": [["x" * 1001, 0.0]]}, "long piece"),
        ("model", UNIGRAM | {"unk_id": None}, "lacks its unk_id"),
        ("model", UNIGRAM | {"unk_id": 1}, "lacks its unk_id"),
        ("model", {"max_input_chars_per_word": 10**9}, "max_input_chars_per_word"),
        ("model", {"max_input_chars_per_word": 0}, "max_input_chars_per_word"),
        ("model", {"max_input_chars_per_word": True}, "max_input_chars_per_word"),
        ("model", {"vocab": {"[UNK]": -1}}, "damaged vocabulary"),
        ("model", {"vocab": {"[UNK]": 4294967295}}, "damaged vocabulary"),
        ("model", {"vocab": ["[UNK]"]}, "damaged vocabulary"),
        ("model", {"unk_token": "[unknown]"}, "lacks its unk_token"),
        ("truncation", {"max_length": -1}, "damaged tokenizer"),
        ("version", "7.0", "damaged tokenizer"),
    ],
)
def test_anything_else_is_refused_by_name(path, part, value, said):
    change(path, part, value)
    with pytest.raises(TokenizerError, match=said):
        load_tokenizer(path)


def added(content, **changes):
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"id": len(WORDS), "content": content, **flags, **changes}


@pytest.mark.parametrize(
    "tokens",
    [
        [added("")],
        [added("x" * 2000)],
        [added("\0", normalized=True)],  # BERT's normaliser removes it, and nothing is everywhere
        [added("xyz", id=2**32 - 1)],
        [added(f"t{i}", id=len(WORDS) + i) for i in range(30_000)],
    ],
)
def test_added_tokens_have_bounds(path, tokens):
    change(path, "added_tokens", tokens)
    with pytest.raises(TokenizerError, match="added token"):
        load_tokenizer(path)


def test_added_tokens_are_found(path):
    change(path, "added_tokens", [added("[new]"), added("a b", id=len(WORDS) + 1, normalized=True)])
    tokens = load_tokenizer(path).encode("hello [new] A b", add_special_tokens=False).tokens
    assert tokens == ["hello", "[new]", "a b"]


def test_sizes_of_the_file_that_texts_are_cut_or_filled_up_to_do_not_count(path):
    huge = 2**63
    change(
        path,
        "truncation",
        {"direction": "Right", "max_length": huge, "strategy": "LongestFirst", "stride": 0},
    )
    change(
        path,
        "padding",
        {
            "strategy": {"Fixed": huge},
            "direction": "Right",
            "pad_to_multiple_of": 0,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "[PAD]",
        },
    )
    assert len(load_tokenizer(path).encode("a b", add_special_tokens=False)) == 2
