"""Settings beside a vocabulary: tokens are those of `AutoTokenizer` on hostile text."""

import json
import random
import unicodedata

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer

from bert_core.config import ModelConfig
from bert_core.errors import UserError
from bert_core.special_tokens import SPECIAL_TOKENS
from bert_core.tokenizer import (
    load_tokenizer,
    row_template,
    wordpiece_tokenizer,
    write_tokenizer,
)
from bert_core.tokenizer_settings import longest_row

LETTERS = "abcdeéèüßŞşİıIÅåñÑΣσςАБабЁё漢字かなカ한글ไทยनम"
PIECES = sorted(
    {
        each
        for letter in LETTERS
        for form in ("NFC", "NFD")
        for each in unicodedata.normalize(form, letter)
    }
    | set("aeiousABCDEIOUS019.,!?-'\"()[]#@_")
)
WORDS = ["the", "The", "THE", "straße", "strasse", "istanbul", "naïve", "naive", "[unused1]", "ent"]
VOCABULARY = [
    *SPECIAL_TOKENS,
    *dict.fromkeys(
        [*PIECES, *(f"##{piece}" for piece in PIECES), *WORDS, "##aße", "##stan", "<ent>"]
    ),
]

PARTS = [
    *LETTERS, *WORDS, *SPECIAL_TOKENS, "[mask]", "[ MASK ]", "[MASK", "[Unused1]", "<ent>",
    "<ENT>", "<new>", "<New>", "\0", "\ufffd", "\x01", "\x7f", "\x85", "\ufeff", "\u200b",
    "\u200d", "\u200e", "\u2060", "\ufe0f", " ", "  ", "\t", "\n", "\r\n", "\v", "\f", "\u00a0",
    "\u1680", "\u2003", "\u2028", "\u2029", "\u202f", "\u3000", "e\u0301", "\u0301",
    "a\u0328\u0301", "I\u0307", "ﬁ", "Ǆ", "ǅ", "ᾳ", "ẞ", "K", "Ⅷ", "①", "½", "﷽", "\u3400",
    "\u4dbf", "\u4e00", "\u9fff", "\uf900", "\ufaff", "\U00020000", "\U0002a6df", "\U0002a700",
    "\U0002b81f", "\U0002b820", "\U0002ceaf", "\U0002f800", "\U0002fa1f", "\U00030000", "々",
    "〇", "。", "、", "👩\u200d👩\u200d👧", "🇩🇪", "👍🏽", "❤\ufe0f", "#️⃣", "\U000e0041", "\ue000",
    "\U0010ffff", "$", "+", "<", "=", ">", "^", "`", "|", "~", "€", "«", "…", "—", "‐", "'",
    "’", "##", "##a", "a" * 99, "b" * 101,
]  # fmt: skip

SETTINGS = {
    "nothing": {},
    "cased": {"tokenizer_config": {"do_lower_case": False}},
    "cased, stripped": {"tokenizer_config": {"do_lower_case": False, "strip_accents": True}},
    "lower, accents kept": {"tokenizer_config": {"do_lower_case": True, "strip_accents": False}},
    "lower, null": {"tokenizer_config": {"strip_accents": None}},
    "chinese in one": {"tokenizer_config": {"tokenize_chinese_chars": False}},
    "ignored": {"tokenizer_config": {"never_split": ["the"], "do_basic_tokenize": False}},
    "tokens as objects": {
        "tokenizer_config": {
            "mask_token": {"__type": "AddedToken", "content": "[MASK]", "lstrip": True}
            | {"rstrip": True, "normalized": False, "single_word": False},
            "pad_token": None,
            "additional_special_tokens": ["<ent>", "<new>"],
        }
    },
    "older files": {
        "tokenizer_config": {"do_lower_case": False, "mask_token": "[PAD]"},
        "special_tokens_map": {
            "mask_token": {"content": "[MASK]", "lstrip": True, "rstrip": False, "normalized": True}
            | {"single_word": True},
            "additional_special_tokens": ["<new>"],
            "entity_token": "<ent>",
        },
        "added_tokens": {"<new>": len(VOCABULARY), "ent": 400, "Naïve": len(VOCABULARY) + 1},
    },
    "numbered tokens": {
        "tokenizer_config": {
            "added_tokens_decoder": {
                str(len(VOCABULARY)): {"content": "<New>", "lstrip": True, "single_word": True},
                "4": {"content": "[MASK]", "lstrip": True, "normalized": False, "special": True},
                "7": {"content": "THE", "normalized": True, "special": False},
            },
        },
        "special_tokens_map": {"mask_token": "[CLS]"},
        "added_tokens": {"e": 9},
    },
    "a usual token in an older file": {"added_tokens": {"[MASK]": 5, "<new>": len(VOCABULARY)}},
    "told twice": {
        "special_tokens_map": {
            "cls_token": {"content": "[CLS]", "lstrip": True, "single_word": True},
            "additional_special_tokens": ["[CLS]", "[MASK]"],
        }
    },
    "none in the newer file": {
        "tokenizer_config": {"additional_special_tokens": []},
        "special_tokens_map": {"additional_special_tokens": ["<ent>"]},
    },
    "null in the newer file": {
        "tokenizer_config": {"extra_special_tokens": None},
        "special_tokens_map": {"additional_special_tokens": ["<ent>"]},
    },
    "named in the newer file": {
        "tokenizer_config": {"extra_special_tokens": {"image": "<ent>"}},
        "special_tokens_map": {"additional_special_tokens": ["<new>"]},
    },
    "named and extra": {
        "tokenizer_config": {
            "tokenizer_class": "DistilBertTokenizerFast",
            "extra_special_tokens": {"image": "<ent>"},
            "bos_token": "[CLS]",
            "eos_token": {"__type": "AddedToken", "content": "<new>", "rstrip": True},
        }
    },
}  # fmt: skip


def hostile_texts(count, seed=0):
    draw = random.Random(seed)
    planes = [(0, 0x2FF), (0x300, 0x24FF), (0x2500, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x2FFFF)]
    texts = []
    for _ in range(count):
        parts = draw.choices(PARTS, k=draw.randrange(12))
        parts += [chr(draw.randint(*draw.choice(planes))) for _ in range(draw.randrange(4))]
        draw.shuffle(parts)
        texts.append("".join(parts))
    return texts


def write_folder(folder, *, vocabulary=VOCABULARY, **files):
    config = {"model_type": "bert", "architectures": ["BertModel"]}
    for name, content in ({"config": config} | files).items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    return folder


def check_equal(folder, count):
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    assert ours.get_vocab() == theirs.get_vocab()
    texts = hostile_texts(count)
    pairs = list(zip(texts, reversed(texts), strict=True))
    for given in (texts, pairs):
        columns = [list(each) for each in zip(*pairs, strict=True)] if given is pairs else [texts]
        expected = theirs(*columns, return_token_type_ids=True)
        found = ours.encode_batch(given)
        for text, each, ids in zip(given, found, expected["input_ids"], strict=True):
            assert each.ids == ids, repr(text)
        assert [each.type_ids for each in found] == expected["token_type_ids"]


@pytest.mark.parametrize("name", SETTINGS)
def test_tokens_are_those_of_transformers(tmp_path, name):
    check_equal(write_folder(tmp_path, **SETTINGS[name]), 300)


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_tokens_of_many_texts_are_those_of_transformers(tmp_path, name):
    check_equal(write_folder(tmp_path, **SETTINGS[name]), 10_000)


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_beside_a_tokenizer_json_count_too(tmp_path, name):
    folder = write_folder(tmp_path, **{"tokenizer_config": {}} | SETTINGS[name])
    vocabulary = {word: index for index, word in enumerate(VOCABULARY)}
    wordpiece_tokenizer(vocabulary, lowercase=False).save(str(folder / "tokenizer.json"))
    check_equal(folder, 300)


def test_a_generic_class_takes_the_tokenizer_json_as_it_is(tmp_path):
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": True}
    folder = write_folder(tmp_path, tokenizer_config=said)
    vocabulary = {word: index for index, word in enumerate(VOCABULARY)}
    wordpiece_tokenizer(vocabulary, lowercase=False).save(str(folder / "tokenizer.json"))
    check_equal(folder, 300)
    assert load_tokenizer(folder).encode("THE", add_special_tokens=False).tokens == ["THE"]


def test_a_vocabulary_that_bert_would_cut_otherwise_keeps_its_tokens_when_it_is_written(tmp_path):
    vocabulary = {word: number for number, word in enumerate([*SPECIAL_TOKENS, "a", "@b", "##b"])}
    bert = normalizers.BertNormalizer(lowercase=False)
    words = pre_tokenizers.BertPreTokenizer()
    other_prefix = models.WordPiece(vocabulary, unk_token="[UNK]", continuing_subword_prefix="@")
    short = models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=2)
    usual = models.WordPiece(vocabulary, unk_token="[UNK]")
    for number, (model, normalizer, pre_tokenizer) in enumerate(
        [
            (other_prefix, bert, words),
            (short, bert, words),
            (usual, normalizers.BertNormalizer(lowercase=False, clean_text=False), words),
            (usual, bert, pre_tokenizers.WhitespaceSplit()),
            (models.WordLevel(vocabulary, unk_token="[UNK]"), bert, words),
        ]
    ):
        tokenizer = Tokenizer(model)
        tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizer
        tokenizer.add_special_tokens([*SPECIAL_TOKENS])
        tokenizer.post_processor = row_template(tokenizer)
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "config.json").write_text('{"model_type": "bert"}')
        write_tokenizer(folder, tokenizer, ModelConfig())
        theirs = AutoTokenizer.from_pretrained(folder)
        for text in ("ab", "abb a", "a\0b ab", "a[SEP]a"):
            wanted = tokenizer.encode(text).ids
            assert load_tokenizer(folder).encode(text).ids == wanted, (number, text)
            assert theirs(text).input_ids == wanted, (number, text)


def test_lines_of_a_vocabulary_are_read_as_transformers_does(tmp_path):
    words = [*SPECIAL_TOKENS, "a ", "\u3000", "b\r", "\u2028c", "a", "", "##b", ""]
    folder = write_folder(tmp_path, vocabulary=words)
    theirs = AutoTokenizer.from_pretrained(folder).get_vocab()
    assert load_tokenizer(folder).get_vocab() == {word: n for word, n in theirs.items() if word}


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"tokenizer_config": {"do_lower_case": "no"}}, "do_lower_case"),
        ({"tokenizer_config": {"do_lower_case": None}}, "do_lower_case"),
        ({"tokenizer_config": {"strip_accents": 1}}, "strip_accents"),
        ({"tokenizer_config": {"tokenizer_class": "BertJapaneseTokenizer"}}, "BertJapanese"),
        (
            {"config": {"model_type": "bert", "tokenizer_class": "BertJapaneseTokenizer"}},
            "Japanese",
        ),
        ({"tokenizer_config": {"tokenizer_class": 5}}, "tokenizer_class|settings"),
        ({"tokenizer_config": {"cls_token": "<ent>"}}, "cls_token '<ent>'.*only '.CLS.'"),
        ({"special_tokens_map": {"mask_token": {"content": "<ent>"}}}, "mask_token '<ent>'"),
        ({"tokenizer_config": {"split_special_tokens": True}}, "split_special_tokens"),
        ({"tokenizer_config": {"added_tokens_decoder": {"x": {"content": "a"}}}}, "'x'"),
        ({"tokenizer_config": {"added_tokens_decoder": {"1": {"text": "a"}}}}, "content"),
        ({"tokenizer_config": {"added_tokens_decoder": ["a"]}}, "items"),
        ({"tokenizer_config": {"extra_special_tokens": [5]}}, "settings"),
        ({"added_tokens": ["a"]}, "JSON object, found"),
        ({"special_tokens_map": 5}, "JSON object, found"),
        ({"vocabulary": ["a", "b"]}, "UNK"),
    ],
)
def test_settings_that_are_not_supported_are_refused_by_name(tmp_path, files, said):
    with pytest.raises(UserError, match=said) as caught:
        load_tokenizer(write_folder(tmp_path, **files))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, 64),
        ({"model_max_length": None}, 64),
        ({"model_max_length": 10**30}, 64),
        ({"model_max_length": 1e30}, 64),
        ({"model_max_length": 48}, 48),
        ({"max_len": 32}, 32),
        ({"model_max_length": 40, "max_len": 32}, 40),
    ],
)
def test_the_longest_row(tmp_path, said, expected):
    assert longest_row(tmp_path, 64) == 64
    assert longest_row(write_folder(tmp_path, tokenizer_config=said), 64) == expected


@pytest.mark.parametrize("length", [0, -1, 2, True, "512", [5]])
def test_a_length_without_room_for_text_is_refused(tmp_path, length):
    with pytest.raises(UserError, match="model_max_length"):
        longest_row(write_folder(tmp_path, tokenizer_config={"model_max_length": length}), 64)
