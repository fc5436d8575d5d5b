"""HerBERT: byte pairs behind BERT's normalizer, under RoBERTa's names of special tokens."""

import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, HerbertTokenizer

from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.predictor import load_predictor

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


def test_pairs_have_one_separator_between_them(folder):
    model = BertForSequenceClassification.from_pretrained(folder).eval()
    rows = AutoTokenizer.from_pretrained(folder)("a b", "c d", return_tensors="pt")
    # transformers 4 gave the second text the second segment, which 5 leaves out.
    rows["token_type_ids"] = torch.tensor([[0, 0, 0, 0, 1, 1, 1]])
    wanted = model(**rows).logits.softmax(1)[0].tolist()
    (found,) = load_predictor(folder).predict([{"text": "a b", "text_pair": "c d"}])
    scores = sorted(each.score for each in found.scores)
    assert scores == pytest.approx(sorted(wanted), abs=1e-5)
