"""Word pieces added to a tokenizer: which ones, that nothing else changes, and the model's rows."""

import random
import string

import pytest
import torch
from transformers import AutoTokenizer, BertForMaskedLM

from bert_core.adaptation import extend_vocabulary, extends
from bert_core.config import ModelConfig
from bert_core.model.bert import Bert
from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.new_pieces import count_words, extend_tokenizer, old_pieces
from bert_core.special_tokens import SPECIAL_TOKENS, TokenizerError, num_embeddings
from bert_core.tokenizer import load_tokenizer, save_tokenizer, wordpiece_tokenizer

LETTERS = [*string.ascii_lowercase, *(f"##{letter}" for letter in string.ascii_lowercase)]
WORDS = [*SPECIAL_TOKENS, *LETTERS, "##ing", "the", "read"]
TEXTS = ["The reading of readings", "reading, reading! the Sarcoma", "sarcomas sarcoma"] * 5


@pytest.fixture(scope="module")
def tokenizer():
    return wordpiece_tokenizer({word: index for index, word in enumerate(WORDS)}, lowercase=True)


@pytest.fixture(scope="module")
def extended(tokenizer):
    return extend_tokenizer(tokenizer, TEXTS, 3)


def pieces_of(tokenizer, old):
    first = num_embeddings(old)
    found = {index: piece for piece, index in tokenizer.get_vocab().items() if index >= first}
    return [found[index] for index in sorted(found)]


def test_the_most_frequent_words_become_pieces_and_nothing_on_the_way_there(tokenizer, extended):
    # "reading" is one join away; "sarcoma" six, of which no step stays.
    assert set(pieces_of(extended, tokenizer)) == {"reading", "sarcoma", "of"}
    assert extended.encode("Reading sarcomas").tokens == [
        *("[CLS]", "reading", "sarcoma", "##s", "[SEP]")
    ]


def test_whatever_has_no_new_piece_keeps_its_ids(tokenizer, extended):
    assert extends(extended, tokenizer) and not extends(tokenizer, extended)
    for text in ("the readers [MASK] ing", "Thé, \u4e2d?", "", "[UNK]"):
        assert extended.encode(text).ids == tokenizer.encode(text).ids


def test_the_order_of_the_texts_decides_nothing(tokenizer):
    choose = random.Random(4)
    words = ["".join(choose.choices("abcde", k=choose.randint(2, 7))) for _ in range(300)]
    texts = [" ".join(choose.choices(words, k=30)) for _ in range(200)]
    first = extend_tokenizer(tokenizer, texts, 100)
    assert len(pieces_of(first, tokenizer)) == 100
    assert extend_tokenizer(tokenizer, texts[::-1], 100).to_str() == first.to_str()

    def tokens_of(which):
        return sum(
            count * len(which.encode(word, add_special_tokens=False).ids)
            for word, count in count_words(tokenizer, texts).items()
        )

    used = {piece for text in texts for piece in first.encode(text).tokens}
    assert used >= set(pieces_of(first, tokenizer)), "each is in the text"
    assert tokens_of(first) < 0.6 * tokens_of(tokenizer)


def test_rare_words_and_long_ones_are_no_pieces(tokenizer):
    texts = ["abab " * 4]
    assert pieces_of(extend_tokenizer(tokenizer, texts, 50), tokenizer) == []
    long = pieces_of(extend_tokenizer(tokenizer, ["z" * 60] * 9, 50), tokenizer)
    assert all(len(piece.removeprefix("##")) <= 40 for piece in long)


def test_a_piece_is_cut_as_it_was_in_its_word(tokenizer):
    def cut(piece):
        return [tokenizer.id_to_token(index) for index in old_pieces(tokenizer, piece)]

    assert cut("reading") == ["read", "##ing"]
    assert cut("##sing") == ["##s", "##ing"]
    assert cut("##\u4e2d") == ["[UNK]"]


def test_transformers_divides_10000_strings_alike(tmp_path, tokenizer, extended):
    config = ModelConfig(
        vocab_size=num_embeddings(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=32,
    )
    torch.manual_seed(0)
    model = Bert.for_pretraining(config, next_sentence=False)
    extend_vocabulary(model, tokenizer, extended)
    save_model_folder(tmp_path / "model", model, extended, "# A card\n")
    theirs, report = BertForMaskedLM.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not any(report.values()), report
    assert theirs.config.vocab_size == num_embeddings(extended)
    their_tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    save_tokenizer(extended, tmp_path / "tokenizer.json")
    ours = load_tokenizer(tmp_path / "tokenizer.json")
    choose = random.Random(1)
    parts = ["reading", "sarcoma", "of", "the", "s", "ing", "É", "\u4e2d", " ", ",", "[MASK]", "zz"]
    strings = ["".join(choose.choices(parts, k=choose.randint(0, 9))) for _ in range(10_000)]
    expected = their_tokenizer(strings)["input_ids"]
    assert [encoding.ids for encoding in ours.encode_batch(strings)] == expected


def test_a_new_row_is_the_mean_of_the_old_ones_and_as_long_as_they_are(
    tokenizer, extended, small_config
):
    config = small_config.model_copy(update={"vocab_size": num_embeddings(tokenizer) + 2})
    torch.manual_seed(0)
    model = Bert.for_pretraining(config, next_sentence=False)
    torch.nn.init.normal_(model.heads["masked_token"].bias)
    words = model.encoder.word_embeddings.detach().clone()
    bias = model.heads["masked_token"].bias.detach().clone()
    assert extend_vocabulary(model, tokenizer, extended) == 3
    table = model.encoder.word_embeddings
    assert len(table) == model.config.vocab_size == num_embeddings(extended)
    new = extended.token_to_id("reading")
    parts = [tokenizer.token_to_id(piece) for piece in ("read", "##ing")]
    mean = words[parts].mean(0)
    torch.testing.assert_close(table[new], mean * words[parts].norm(dim=1).mean() / mean.norm())
    torch.testing.assert_close(
        model.heads["masked_token"].bias[new], bias[parts].mean(), rtol=1e-6, atol=0
    )
    first = num_embeddings(tokenizer)
    assert torch.equal(table[:first], words[:first])
    assert table.requires_grad


def test_other_tokenizers_are_refused(tmp_path, minilm_folder):
    from tokenizers import Tokenizer, models

    with pytest.raises(TokenizerError, match="only WordPiece"):
        extend_tokenizer(Tokenizer(models.BPE()), ["a"], 1)
    _, _, tokenizer = load_model_folder(minilm_folder)
    assert extends(extend_tokenizer(tokenizer, ["sarcomatoid"] * 9, 5), tokenizer)
