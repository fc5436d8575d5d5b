import hashlib
import os
import random
import subprocess
import sys
from collections import Counter

import pytest
from tokenizers import Tokenizer, models

from bert_core.tokenizer import (
    SPECIAL_TOKENS,
    TokenizerError,
    load_tokenizer,
    num_embeddings,
    save_tokenizer,
    special_token_ids,
    tokenizer_hash,
    train_wordpiece,
    wordpiece_tokenizer,
)


def some_texts(num_texts=300, seed=7):
    """Many words of equal frequency and a wide alphabet, where ties have to be broken."""
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefghijklmnopéüßñ漢字かな", k=5)) for _ in range(400)]
    return [" ".join(draw.choices(words, k=30)) + ", and so on." for _ in range(num_texts)]


@pytest.fixture(scope="module")
def tokenizer():
    return train_wordpiece(some_texts(), 500, lowercase=True)


def test_special_tokens_come_first(tokenizer):
    assert special_token_ids(tokenizer).all == (0, 1, 2, 3, 4)
    assert tokenizer.get_vocab_size() <= 500
    assert len(set(tokenizer.get_vocab().values())) == tokenizer.get_vocab_size()
    assert max(tokenizer.get_vocab().values()) == tokenizer.get_vocab_size() - 1


def test_training_is_equal_to_the_byte():
    """In this process and in two others, with other hash seeds and numbers of threads."""
    script = (
        "import hashlib, sys; sys.path.insert(0, sys.argv[1]);"
        "from test_tokenizer import some_texts; from bert_core.tokenizer import train_wordpiece;"
        "text = train_wordpiece(some_texts(), 500, lowercase=True,"
        " least_alphabet=15, alphabet_coverage=0.5).to_str();"
        "print(hashlib.sha256(text.encode()).hexdigest())"
    )
    here = [
        train_wordpiece(
            some_texts(), 500, lowercase=True, least_alphabet=15, alphabet_coverage=0.5
        ).to_str()
        for _ in range(3)
    ]
    folder = __file__.rsplit("/", 1)[0]
    elsewhere = [
        subprocess.run(
            [sys.executable, "-c", script, folder],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"RAYON_NUM_THREADS": num_threads},
        ).stdout.strip()
        for num_threads in "13"
    ]
    assert {hashlib.sha256(text.encode()).hexdigest() for text in here} == set(elsewhere)


def test_a_one_shot_iterator_trains_the_same():
    once = train_wordpiece(iter(some_texts()), 300, lowercase=True)
    assert once.to_str() == train_wordpiece(some_texts(), 300, lowercase=True).to_str()


def test_encodes_as_bert_does(tokenizer):
    encoding = tokenizer.encode("Abc", "DÉF")
    assert encoding.tokens[0] == "[CLS]" and encoding.tokens[-1] == "[SEP]"
    assert set(encoding.type_ids) == {0, 1}
    assert "é" not in "".join(tokenizer.get_vocab())
    assert tokenizer.encode("漢字", add_special_tokens=False).tokens == ["漢", "字"]


def test_case_is_kept_when_asked():
    texts = ["Cafés Open in Paris"] * 20
    cased = train_wordpiece(texts, 80, lowercase=False)
    assert cased.decode(cased.encode("Cafés Open").ids) == "Cafés Open"
    lower = train_wordpiece(texts, 80, lowercase=True)
    assert lower.decode(lower.encode("Cafés Open").ids) == "cafes open"


def test_every_kept_character_can_continue_a_word(tokenizer):
    vocabulary = tokenizer.get_vocab()
    for char in "abcdefghijklmnop":
        assert char in vocabulary and f"##{char}" in vocabulary
    assert "," in vocabulary and "##," not in vocabulary and "##漢" not in vocabulary


def chinese_texts(num_characters=60_000, alphabet=6000):
    """Text whose characters are about as frequent as those of Chinese: the r-th as 1/(r + 60)."""
    draw = random.Random(3)
    characters = [chr(0x4E00 + 3 * rank) for rank in range(alphabet)]
    weights = [(1 / (rank + 60)) ** 1.3 for rank in range(alphabet)]
    drawn = draw.choices(characters, weights, k=num_characters)
    return ["".join(drawn[begin : begin + 30]) + "。" for begin in range(0, num_characters, 30)]


def test_the_alphabet_covers_text_of_many_characters():
    texts = chinese_texts()
    used = Counter("".join(texts))
    assert sum(n for _, n in used.most_common(1000)) < 0.95 * used.total()  # more are needed
    trained = train_wordpiece(texts, 30_000, lowercase=True)
    ids = [each.ids for each in trained.encode_batch(texts, add_special_tokens=False)]
    unknown = sum(row.count(trained.token_to_id("[UNK]")) for row in ids)
    assert 0 < unknown <= 0.0005 * sum(map(len, ids))
    every = train_wordpiece(texts, 30_000, lowercase=True, alphabet_coverage=1.0)
    assert all(char in every.get_vocab() for char in used)
    with pytest.raises(TokenizerError, match="lower alphabet coverage"):
        train_wordpiece(texts, 3000, lowercase=True)


def test_embeddings_reach_the_highest_id(tokenizer):
    assert num_embeddings(tokenizer) == tokenizer.get_vocab_size()
    gap = {token: index for index, token in enumerate(SPECIAL_TOKENS)} | {"far": 99}
    assert num_embeddings(wordpiece_tokenizer(gap, lowercase=True)) == 100


def test_what_cannot_be_trained_is_refused():
    with pytest.raises(TokenizerError, match="give more text"):
        train_wordpiece([" "], 100, lowercase=True)
    with pytest.raises(TokenizerError, match="larger vocabulary"):
        train_wordpiece(some_texts(), 20, lowercase=True)


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
    hashes = {
        tokenizer_hash(tokenizer),
        tokenizer_hash(wordpiece_tokenizer(vocabulary, lowercase=False)),
        tokenizer_hash(wordpiece_tokenizer(vocabulary | {"new": len(vocabulary)}, lowercase=True)),
    }
    assert len(hashes) == 3
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
