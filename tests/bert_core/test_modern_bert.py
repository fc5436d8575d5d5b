"""Weights and configurations of ModernBERT, to ours and back, beside those of transformers."""

import json

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from transformers import (
    ModernBertConfig,
    ModernBertForMaskedLM,
    ModernBertForQuestionAnswering,
    ModernBertForSequenceClassification,
    ModernBertForTokenClassification,
)

from bert_core.config import ModernConfig, forward_flops
from bert_core.errors import UserError
from bert_core.features.inspection import attention_maps
from bert_core.hugging_face.families import MODERN_BERT
from bert_core.hugging_face.family import TensorHeader, UnknownWeightError
from bert_core.model.bert import Bert
from bert_core.model.encoder import Encoder
from bert_core.model.layout import Packed
from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.predictor import load_predictor
from bert_core.special_tokens import SPECIAL_TOKENS
from bert_core.tasks.catalog import TASKS, task_config, task_of
from bert_core.tasks.classification import Text
from bert_core.tasks.foreign_models import find_task
from bert_core.tasks.task import add_task_head, head_answers, task_loss
from bert_core.tokenizer import wordpiece_tokenizer
from bert_core.training.layers import draw_anew

SIZES = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 48, "local_attention": 8, "pad_token_id": 0}
SPECIAL = {f"{name}_token_id": 1 for name in ("bos", "cls", "sep", "eos")}
LENGTHS = [9, 30, 1, 30]


def model_of_theirs(kind, **more):
    """A model of transformers, its weights far from their initial values."""
    torch.manual_seed(0)
    model = kind(ModernBertConfig(**SIZES, **SPECIAL, **more)).eval()
    for weight in model.parameters():
        weight.data += 0.1 * torch.randn_like(weight)
    return model


def ours_of(theirs, *heads, outputs=0):
    """Our model with the weights of theirs, which are all that it has."""
    model = Bert(Encoder(ModernConfig(**SIZES)), {}).eval()
    model.add_missing_heads([name for name in heads if name in ("masked_token", "pooler")])
    for name in heads:
        if name in ("classifier", "span"):
            model.add_task_head(name, outputs)
    state = theirs.state_dict()
    model.load_state_dict(MODERN_BERT.to_ours(state, architecture=type(theirs).__name__))
    return model


@pytest.fixture(scope="module")
def batch():
    """Ids and mask, [N, n]."""
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS).unsqueeze(1)
    return torch.randint(2, 60, mask.shape) * mask, mask


def states_of(model, batch):
    ids, mask = batch
    positions = torch.arange(ids.shape[1]).expand_as(ids)[mask]
    return model.encoder(
        ids[mask], torch.zeros_like(ids[mask]), positions, Packed.from_lengths(LENGTHS)
    )


def assert_gradients_are_equal(ours, theirs):
    found = MODERN_BERT.to_theirs({name: each.grad for name, each in ours.named_parameters()})
    for name, each in theirs.named_parameters():
        scale = each.grad.abs().max()
        torch.testing.assert_close(found[name] / scale, each.grad / scale, rtol=0, atol=1e-5)


def test_masked_words_have_their_logits_loss_and_gradients(batch):
    theirs = model_of_theirs(ModernBertForMaskedLM)
    ours, (ids, mask) = ours_of(theirs, "masked_token"), batch
    labels = torch.where(mask & (torch.rand(mask.shape) < 0.3), torch.randint(60, mask.shape), -100)
    output = theirs(ids, attention_mask=mask.long(), labels=labels)
    head, words, states = ours.heads["masked_token"], ours.encoder.word_embeddings, None
    states = states_of(ours, batch)
    torch.testing.assert_close(head(states, words), output.logits[mask], rtol=0, atol=1e-5)
    known = (labels[mask] >= 0).nonzero().squeeze(1)
    loss, _ = head.loss(states[known], words, labels[mask][known], len(known))
    torch.testing.assert_close(loss, output.loss, rtol=0, atol=1e-5)
    loss.backward()
    output.loss.backward()
    assert_gradients_are_equal(ours, theirs)


@pytest.mark.parametrize(
    ("kind", "head"),
    [
        (ModernBertForSequenceClassification, "classifier"),
        (ModernBertForTokenClassification, "classifier"),
        (ModernBertForQuestionAnswering, "span"),
    ],
)
def test_heads_of_tasks_have_their_outputs_and_gradients(batch, kind, head):
    outputs = 2 if head == "span" else 3
    theirs = model_of_theirs(kind, num_labels=outputs, classifier_pooling="cls")
    ours, (ids, mask) = ours_of(theirs, "pooler", head, outputs=outputs), batch
    output = theirs(ids, attention_mask=mask.long())
    if head == "span":
        wanted = torch.stack([output.start_logits, output.end_logits], -1)[mask]
    else:
        wanted = output.logits if output.logits.ndim == 2 else output.logits[mask]
    states = states_of(ours, batch)
    if len(wanted) == len(LENGTHS):
        states = states[Packed.from_lengths(LENGTHS).first_positions]
    found = ours.heads[head](ours.heads["pooler"](states))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    found.square().mean().backward()
    wanted.square().mean().backward()
    assert_gradients_are_equal(ours, theirs)


def test_weights_come_back_to_the_bit():
    theirs = model_of_theirs(ModernBertForMaskedLM)
    state = theirs.state_dict()
    back = MODERN_BERT.to_theirs(MODERN_BERT.to_ours(state))
    assert back.keys() == state.keys() - {"decoder.weight"}
    assert all(torch.equal(back[name], state[name]) for name in back)
    alone = {name.removeprefix("model."): each for name, each in theirs.model.state_dict().items()}
    encoder = MODERN_BERT.to_ours(alone)
    assert encoder.keys() == Encoder(ModernConfig(**SIZES)).state_dict(prefix="encoder.").keys()


def test_a_projection_of_its_own_is_kept():
    theirs = model_of_theirs(ModernBertForMaskedLM, tie_word_embeddings=False)
    ours = MODERN_BERT.to_ours(theirs.state_dict(), is_tied=False)
    assert torch.equal(ours["heads.masked_token.decoder.weight"], theirs.decoder.weight)
    back = MODERN_BERT.to_theirs(ours)
    assert torch.equal(back["decoder.weight"], theirs.decoder.weight)


def test_a_head_of_a_task_begins_as_the_transform_that_was_learned():
    theirs = model_of_theirs(ModernBertForMaskedLM)
    ours = ours_of(theirs, "masked_token")
    assert ours.add_missing_heads(["pooler"]) == []
    assert torch.equal(ours.heads["pooler"].dense.weight, theirs.head.dense.weight)
    assert torch.equal(ours.heads["pooler"].norm.weight, theirs.head.norm.weight)


def test_weights_of_another_shape_or_name_are_refused():
    theirs = model_of_theirs(ModernBertForMaskedLM).state_dict()
    header = {name: TensorHeader("F32", tuple(each.shape)) for name, each in theirs.items()}
    MODERN_BERT.check_header(header, ModernConfig(**SIZES))
    with pytest.raises(ValueError, match="model.layers.0.mlp.Wi.weight has the shape"):
        MODERN_BERT.check_header(header, ModernConfig(**SIZES | {"intermediate_size": 50}))
    with pytest.raises(ValueError, match="no model.layers.4.attn_norm.weight"):
        MODERN_BERT.check_header(header, ModernConfig(**SIZES | {"num_hidden_layers": 5}))
    with pytest.raises(UnknownWeightError, match="model.layers.0.attn.more.weight"):
        MODERN_BERT.to_ours(theirs | {"model.layers.0.attn.more.weight": torch.zeros(96)})


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"global_attn_every_n_layers": 2},
        {"global_attn_every_n_layers": 1},
        {"global_attn_every_n_layers": 9},
        {"global_rope_theta": 80_000, "local_rope_theta": 5_000.0, "norm_eps": 1e-6},
    ],
)
def test_configurations_say_the_same(more):
    theirs = ModernBertConfig(**SIZES, **SPECIAL, **more)
    ours = ModernConfig.model_validate(MODERN_BERT.read_config(theirs.to_dict()), strict=True)
    again = ModernBertConfig(**MODERN_BERT.write_config(ours))
    assert again.layer_types == theirs.layer_types
    for name in ("rope_parameters", "norm_eps", "local_attention", "intermediate_size"):
        assert getattr(again, name) == getattr(theirs, name), name
    # What transformers 4 wrote has no lists.
    old = MODERN_BERT.write_config(ours)
    del old["layer_types"], old["rope_parameters"]
    assert ModernConfig.model_validate(MODERN_BERT.read_config(old), strict=True) == ours


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]},
            "every so many layers",
        ),
        ({"layer_types": ["full_attention"] * 2 + ["sliding_attention"]}, "every so many layers"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "scaled"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "list of num_hidden_layers"),
        ({"layer_types": 3}, "list of num_hidden_layers"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "scaled"),
        ({"rope_scaling": {"type": "dynamic"}}, "scaled"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "scaled"),
        ({"rope_parameters": {"rope_theta": 10_000.0}}, "scaled"),
        ({"rope_parameters": [3]}, "rope_parameters has to be an object"),
        ({"rope_parameters": {"full_attention": "default"}}, "full_attention has to be an object"),
        ({"rope_parameters": {"full_attention": {"rope_theta": None}}}, "global_rope_theta"),
        ({"rope_parameters": {"sliding_attention": {"rope_theta": [1]}}}, "local_rope_theta"),
        ({"is_causal": True}, "is_causal True"),
        ({"is_causal": True, "is_decoder": True}, "is_causal True"),
        ({"sliding_window": None}, "sliding_window"),
        ({"sliding_window": 0}, "local_attention"),
    ],
)
def test_what_is_not_computed_here_is_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        ModernConfig.model_validate(
            MODERN_BERT.read_config({"num_hidden_layers": 3} | changed), strict=True
        )


@pytest.mark.parametrize(
    "changed",
    [
        {"rope_scaling": {"rope_type": "default"}},
        {"rope_scaling": {"type": "default"}},
        {"rope_scaling": None, "rope_parameters": None, "layer_types": None},
        {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
    ],
)
def test_rotations_may_be_said_to_be_the_usual_ones(changed):
    assert MODERN_BERT.read_config(changed) == {}
    theirs = ModernBertConfig(**changed)
    for kind, theta in (("full_attention", 160_000.0), ("sliding_attention", 10_000.0)):
        found = theirs.rope_parameters[kind]
        assert (found["rope_type"], found["rope_theta"]) == ("default", theta)


def test_a_sliding_window_counts_over_local_attention():
    said = {"local_attention": 128, "sliding_window": 3, "is_causal": False}
    wanted = ModernBertConfig(**said).local_attention
    assert MODERN_BERT.read_config(said) == {"local_attention": wanted} == {"local_attention": 6}


def test_states_are_transformed_once(batch):
    theirs = model_of_theirs(ModernBertForTokenClassification, num_labels=3)
    ours = ours_of(theirs, "pooler", "classifier", outputs=3)
    states = states_of(ours, batch)
    transformed = F.gelu(states @ theirs.head.dense.weight.T)
    wanted = F.layer_norm(transformed, [32], theirs.head.norm.weight, None, 1e-5)
    torch.testing.assert_close(ours.heads["pooler"](states), wanted, rtol=0, atol=1e-5)


@pytest.fixture
def tokenizer():
    words = [
        *SPECIAL_TOKENS,
        *"abcdefghijklmnopqrstuvwxyz",
        *(f"##{each}" for each in "abcdefghij"),
    ]
    vocabulary = {word: number for number, word in enumerate(words)}
    return wordpiece_tokenizer(vocabulary, lowercase=True)


def test_a_folder_of_transformers_comes_back_to_the_bit(tmp_path, tokenizer):
    theirs = model_of_theirs(ModernBertForMaskedLM)
    theirs.save_pretrained(tmp_path / "theirs")
    tokenizer.save(str(tmp_path / "theirs" / "tokenizer.json"))
    config, model, read = load_model_folder(tmp_path / "theirs")
    assert isinstance(config, ModernConfig) and list(model.heads) == ["masked_token"]
    save_model_folder(tmp_path / "ours", model, read)
    back, said = ModernBertForMaskedLM.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(said.values()), said
    state = theirs.state_dict()
    assert all(torch.equal(each, state[name]) for name, each in back.state_dict().items())
    again, ours, _ = load_model_folder(tmp_path / "ours")
    assert again == config
    wanted = model.state_dict()
    assert all(torch.equal(each, wanted[name]) for name, each in ours.state_dict().items())


def test_what_is_not_computed_here_is_not_called_damaged(tmp_path):
    model_of_theirs(ModernBertForMaskedLM).save_pretrained(tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())
    said["rope_parameters"]["full_attention"] |= {"rope_type": "yarn", "factor": 2.0}
    (tmp_path / "config.json").write_text(json.dumps(said))
    with pytest.raises(UserError, match="unsupported model configuration, scaled rotary"):
        load_model_folder(tmp_path)


def test_a_folder_without_a_padding_token_has_that_of_its_tokenizer(tmp_path):
    words = [*"abcdefg", *SPECIAL_TOKENS]
    vocabulary = {word: number for number, word in enumerate(words)}
    theirs = model_of_theirs(ModernBertForMaskedLM)
    theirs.save_pretrained(tmp_path / "theirs")
    said = json.loads((tmp_path / "theirs" / "config.json").read_text()) | {"pad_token_id": None}
    (tmp_path / "theirs" / "config.json").write_text(json.dumps(said))
    tokenizer = wordpiece_tokenizer(vocabulary, lowercase=True)
    tokenizer.save(str(tmp_path / "theirs" / "tokenizer.json"))
    config, model, _ = load_model_folder(tmp_path / "theirs")
    assert config.pad_token_id == vocabulary["[PAD]"] == 7
    save_model_folder(tmp_path / "ours", model, tokenizer)
    back = ModernBertForMaskedLM.from_pretrained(tmp_path / "ours")
    assert back.config.pad_token_id == 7
    # Servers read rows' first and last token here, and need them to be numbers.
    written = json.loads((tmp_path / "ours" / "config.json").read_text())
    ends = {"bos": "[CLS]", "cls": "[CLS]", "eos": "[SEP]", "sep": "[SEP]"}
    assert {name: written[f"{name}_token_id"] for name in ends} == {
        name: vocabulary[token] for name, token in ends.items()
    }
    assert written["initializer_cutoff_factor"] == back.config.initializer_cutoff_factor


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("sst2", ModernBertForSequenceClassification),
        ("conll2003", ModernBertForTokenClassification),
        ("squad", ModernBertForQuestionAnswering),
    ],
)
def test_a_fine_tuned_folder_is_one_of_theirs(tmp_path, tokenizer, batch, name, kind):
    model = ours_of(model_of_theirs(ModernBertForMaskedLM), "masked_token")
    task = TASKS[name]
    if not task.labels and name == "conll2003":
        task = task.model_copy(update={"labels": ("O", "B-LOC", "I-LOC")})
    add_task_head(model, task)
    save_model_folder(tmp_path / "ours", model, tokenizer, extra_config=task_config(name, task))
    theirs, said = kind.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(said.values()), said
    ids, mask = batch
    output = theirs.eval()(ids, attention_mask=mask.long())
    states = states_of(model, batch)
    if name == "sst2":
        states, wanted = states[Packed.from_lengths(LENGTHS).first_positions], output.logits
    elif name == "squad":
        wanted = torch.stack([output.start_logits, output.end_logits], -1)[mask]
    else:
        wanted = output.logits[mask]
    found = head_answers(model.eval(), [states], torch.ones(len(states)))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    _, ours, _ = load_model_folder(tmp_path / "ours")
    assert ours.heads.keys() == model.heads.keys()
    config = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert task_of(config, ours)
    del ours.heads["pooler"]
    with pytest.raises(UserError, match="a head of"):
        task_of(config, ours)


@pytest.fixture
def mean_classifier(tmp_path, tokenizer):
    """A classifier of theirs that reads the mean of all tokens, and its folder."""
    labels = {"id2label": {0: "bad", 1: "good", 2: "odd"}}
    theirs = model_of_theirs(
        ModernBertForSequenceClassification, classifier_pooling="mean", **labels
    )
    theirs.save_pretrained(tmp_path / "theirs")
    tokenizer.save(str(tmp_path / "theirs" / "tokenizer.json"))
    return theirs, tmp_path / "theirs"


MEAN_TEXTS = ["a b c d e f g", "z", "q w e r t y u i o p a s d f g h j k l z x"]


def test_a_classifier_of_the_mean_of_all_tokens_answers_as_theirs(
    mean_classifier, tokenizer, tmp_path
):
    theirs, folder = mean_classifier
    predictor = load_predictor(folder)
    found = predictor.predict(MEAN_TEXTS)
    for text, answer in zip(MEAN_TEXTS, found, strict=True):
        wanted = theirs(torch.tensor([tokenizer.encode(text).ids])).logits.softmax(-1)[0]
        scores = {each.label: each.score for each in answer.scores}
        assert [scores[name] for name in ("bad", "good", "odd")] == pytest.approx(
            wanted.tolist(), abs=1e-5
        )
    task = predictor.task
    assert task.classifier_pooling == "mean"
    rest = task_config("classification", TASKS["classification"].model_copy(update={
        "labels": task.labels, "classifier_pooling": "mean", "max_length": 32,
    }))  # fmt: skip
    save_model_folder(tmp_path / "ours", predictor.model, tokenizer, extra_config=rest)
    again = ModernBertForSequenceClassification.from_pretrained(tmp_path / "ours")
    assert again.config.classifier_pooling == "mean"
    state = again.state_dict()
    assert all(torch.equal(each, state[name]) for name, each in theirs.state_dict().items())
    assert load_predictor(tmp_path / "ours").predict(MEAN_TEXTS) == found


def test_gradients_through_the_mean_of_all_tokens_are_theirs(mean_classifier, tokenizer):
    theirs, folder = mean_classifier
    # A predictor's weights may be in the order of its CPU's instructions, which learn nothing.
    _, ours, _ = load_model_folder(folder)
    _, task = find_task(folder, ours)
    labels = ["good", "bad", "odd"]
    examples = [Text(text, None, label) for text, label in zip(MEAN_TEXTS, labels, strict=True)]
    rows = task.encode(examples, tokenizer)
    batch = rows.batch(np.arange(3), "packed")
    loss, _ = task_loss(task, ours.requires_grad_(), batch, num_labels=3)
    loss.backward()
    texts = zip(MEAN_TEXTS, (1, 0, 2), strict=True)
    wanted = sum(
        theirs(torch.tensor([tokenizer.encode(text).ids]), labels=torch.tensor([number])).loss / 3
        for text, number in texts
    )
    torch.testing.assert_close(loss, wanted, rtol=0, atol=1e-5)
    wanted.backward()
    assert_gradients_are_equal(ours, theirs)


def test_an_unknown_pooling_is_refused(mean_classifier):
    _, folder = mean_classifier
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"classifier_pooling": "max"}))
    with pytest.raises(UserError, match="unknown pooling 'max'"):
        load_predictor(folder)


def test_attention_maps_are_theirs(tokenizer):
    theirs = model_of_theirs(ModernBertForMaskedLM, attn_implementation="eager")
    ours = ours_of(theirs, "masked_token")
    text = "a b c d e f g h i j k l m n o p q r s t u v w x y z"
    maps = attention_maps(ours.encoder, tokenizer, text)
    ids = torch.tensor([tokenizer.encode(text).ids])
    wanted = torch.cat(theirs(ids, output_attentions=True).attentions)
    torch.testing.assert_close(maps.probabilities, wanted, rtol=0, atol=1e-5)
    assert (maps.probabilities[1] == 0).any()


def test_layers_are_drawn_anew_as_they_were_drawn():
    torch.manual_seed(0)
    ours = ours_of(model_of_theirs(ModernBertForMaskedLM), "masked_token")
    layer = ours.encoder.layers[-1]
    before = layer.output.weight.detach().clone()
    draw_anew(ours, 1)
    assert not torch.equal(layer.output.weight, before)
    assert layer.output.weight.abs().max() <= 0.04 / 8**0.5
    assert torch.equal(layer.output_norm.weight, torch.ones(32))


def test_flops_count_the_gate_and_the_reach():
    config = ModernConfig(**SIZES)
    counts = {"num_predictions": 0, "num_rows": 0, "num_read": 100}
    long = forward_flops(config, num_tokens=100, sum_of_squared_lengths=100**2, **counts)
    maps = 100 * 4 * (8 * 32**2 + 6 * 32 * 48)
    assert long == maps + 4 * 32 * (2 * 100**2 + 2 * 100 * 9)
