"""Cross-encoders of modules have the scores that sentence-transformers gives them."""

import json

import pytest
import torch
from sentence_transformers import CrossEncoder
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.sentence_transformer.modules import LayerNorm, Pooling
from torch import nn
from transformers import (
    BertConfig,
    BertModel,
    BertTokenizer,
    ModernBertConfig,
    ModernBertModel,
    PreTrainedTokenizerFast,
)

from bert_core.errors import UserError
from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.predictor import load_predictor
from bert_core.special_tokens import SPECIAL_TOKENS
from bert_core.tasks.catalog import TASKS, task_config
from bert_core.tasks.task import add_task_head
from bert_core.tokenizer import wordpiece_tokenizer

WORDS = [*SPECIAL_TOKENS, "the", "cat", "sat", "on", "mat", ".", *"abcdefgh"]
PAIRS = [("the cat", "sat on the mat"), ("a b c", "the cat sat."), ("d", "e f g h a b c d e f")]
SIZES = {"vocab_size": len(WORDS), "hidden_size": 64, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 2, "intermediate_size": 48, "max_position_embeddings": 64}


def encoder_folder(folder, kind):
    torch.manual_seed(0)
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    if kind == "modern":
        special = {f"{name}_token_id": 1 for name in ("bos", "cls", "sep", "eos")}
        model = ModernBertModel(
            ModernBertConfig(**SIZES, **special, pad_token_id=0, local_attention=8)
        )
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=wordpiece_tokenizer(vocabulary, lowercase=True),
            **{f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep")},
            mask_token="[MASK]",
            model_input_names=["input_ids", "attention_mask"],
        )
    else:
        model, tokenizer = BertModel(BertConfig(**SIZES)), BertTokenizer(vocab=vocabulary)
    for weight in model.parameters():
        weight.data += 0.1 * torch.randn_like(weight)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def modules(folder, kind, pooling="cls", *, norm=True):
    """A cross-encoder of theirs, its weights far from their initial values."""
    is_modern = kind == "modern"
    activation = nn.GELU() if is_modern else nn.Tanh()
    parts = [
        Transformer(encoder_folder(folder, kind)),
        Pooling(64, pooling),
        Dense(64, 64, bias=not is_modern, activation_function=activation),
        *([LayerNorm(64)] if is_modern and norm else []),
        Dense(64, 1, activation_function=nn.Identity(), module_output_name="scores"),
    ]
    for part in parts[1:]:
        for weight in part.parameters():
            weight.data += 0.3 * torch.randn_like(weight)
    return CrossEncoder(modules=parts, device="cpu")


@pytest.mark.parametrize(
    ("kind", "pooling"), [("modern", "cls"), ("modern", "mean"), ("bert", "cls")]
)
def test_scores_are_theirs(tmp_path, kind, pooling):
    theirs = modules(tmp_path / "encoder", kind, pooling)
    theirs.save_pretrained(str(tmp_path / "theirs"))
    wanted = theirs.predict(PAIRS).tolist()
    assert max(wanted) - min(wanted) > 1e-3, "else any constant would do"
    predictor = load_predictor(tmp_path / "theirs")
    found = predictor.predict([{"text": text, "text_pair": pair} for text, pair in PAIRS])
    assert [answer.value for answer in found] == pytest.approx(wanted, abs=1e-5)
    with pytest.raises(UserError, match="a cross-encoder, which has no vectors"):
        predictor.embed(["the cat"])

    # Fine-tuning goes on from the head, and writes transformers' own class.
    _, model, tokenizer = load_model_folder(tmp_path / "theirs")
    task = TASKS["rerank"].model_copy(update={"classifier_pooling": pooling})
    assert not add_task_head(model, task), "no head is drawn"
    save_model_folder(tmp_path / "ours", model, tokenizer, extra_config=task_config("rerank", task))
    again = CrossEncoder(str(tmp_path / "ours"), device="cpu").predict(PAIRS).tolist()
    assert again == pytest.approx(wanted, abs=1e-5)


def test_what_no_classifier_computes_is_refused(tmp_path):
    modules(tmp_path / "a", "modern", norm=False).save_pretrained(str(tmp_path / "bare"))
    with pytest.raises(UserError, match="cross-encoder of Pooling, Dense, Dense; it is read of"):
        load_model_folder(tmp_path / "bare")
    modules(tmp_path / "b", "bert", "mean").save_pretrained(str(tmp_path / "mean"))
    with pytest.raises(UserError, match=r"reads more than \[CLS\]"):
        load_model_folder(tmp_path / "mean")
    modules(tmp_path / "c", "modern").save_pretrained(str(tmp_path / "eps"))
    path = tmp_path / "eps" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"norm_eps": 1e-6}))
    with pytest.raises(UserError, match="LayerNorm beside norm_eps"):
        load_model_folder(tmp_path / "eps")
