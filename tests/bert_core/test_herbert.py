"""HerBERT: byte pairs behind BERT's normalizer, under RoBERTa's names of special tokens."""

import numpy as np
import pytest
import torch
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    HerbertTokenizer,
    pipeline,
)

from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.predictor import load_predictor
from bert_core.word_marks import begins_word, word_marks

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
WORDS = [*SPECIAL, *"abcdefgh", *(f"{letter}</w>" for letter in "abcdefgh"), "ab</w>"]
TEXTS = ["a b ab", "ab <mask> h", "abc, D", ""]


@pytest.fixture
def folder(tmp_path):
    """A classifier of theirs with its tokenizer."""
    tokenizer = HerbertTokenizer(
        vocab={word: number for number, word in enumerate(WORDS)}, merges=[("a", "b</w>")]
    )
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 24, "max_position_embeddings": 32}
    config = BertConfig(vocab_size=len(WORDS), pad_token_id=1, num_labels=3, **sizes)
    model = BertForSequenceClassification(config)
    for weight in model.parameters():
        weight.data += 0.3 * torch.randn_like(weight)
    model.save_pretrained(tmp_path / "theirs")
    tokenizer.save_pretrained(tmp_path / "theirs")
    return tmp_path / "theirs"


def test_transformers_reads_the_tokens_of_a_folder_written_here(folder, tmp_path):
    _, model, ours = load_model_folder(folder)
    save_model_folder(tmp_path / "ours", model, ours)
    wanted = AutoTokenizer.from_pretrained(folder)
    for found in (AutoTokenizer.from_pretrained(tmp_path / "ours"), wanted):
        for text in TEXTS:
            assert found(text).input_ids == ours.encode(text).ids
            assert found(text, "ab").input_ids == ours.encode(text, "ab").ids


@pytest.fixture
def language_model(folder, tmp_path):
    """A masked language model of theirs with the same tokenizer."""
    config = BertConfig.from_pretrained(folder)
    BertForMaskedLM(config).save_pretrained(tmp_path / "language_model")
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path / "language_model")
    return tmp_path / "language_model"


def test_words_are_what_ends_with_their_mark(folder):
    _, _, tokenizer = load_model_folder(folder)
    ids = tokenizer.encode("abc hgf a ab", add_special_tokens=False).ids
    begins = begins_word(np.array(ids), word_marks(tokenizer))
    assert len(ids) > 4 and begins.sum() == 4


def test_missing_words_are_filled_as_transformers_does(language_model):
    text = "a <mask> b"
    theirs = pipeline("fill-mask", str(language_model), top_k=len(WORDS) - 5)(text)
    ours = load_predictor(language_model).fill_mask([text], top_k=len(WORDS))[0].masks[0]
    found = {each.id: (each.token, each.sequence) for each in ours.candidates}
    for each in theirs:
        token, sequence = found[each["token"]]
        assert token == each["token_str"].strip()
        if each["token"] >= len(SPECIAL):
            assert sequence == each["sequence"]


def test_a_target_is_a_whole_word(language_model):
    (found,) = load_predictor(language_model).fill_mask(["a <mask> b"], targets=["c"])
    assert [each.id for each in found.masks[0].candidates] == [WORDS.index("c</w>")]


def test_pairs_have_one_separator_between_them(folder):
    model = BertForSequenceClassification.from_pretrained(folder).eval()
    rows = AutoTokenizer.from_pretrained(folder)("a b", "c d", return_tensors="pt")
    # transformers 4 gave the second text the second segment, which 5 leaves out.
    rows["token_type_ids"] = torch.tensor([[0, 0, 0, 0, 1, 1, 1]])
    wanted = model(**rows).logits.softmax(1)[0].tolist()
    (found,) = load_predictor(folder).predict([{"text": "a b", "text_pair": "c d"}])
    scores = sorted(each.score for each in found.scores)
    assert scores == pytest.approx(sorted(wanted), abs=1e-5)
