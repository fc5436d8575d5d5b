"""Strategies of layers, and the tagger that reads their states."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertModel

from bert_core.errors import UserError
from bert_core.features.states import stored_states
from bert_core.model.strategies import STRATEGIES, Strategy, find_strategy
from bert_core.model.tagger import FEATURE_TAGGER, FeatureTagger, LayerMix
from bert_core.model_folder import ModelFolderError, load_model_folder, save_model_folder
from bert_core.predictor import load_predictor
from bert_core.quantization import for_inference
from bert_core.tasks.catalog import task_config
from bert_core.tasks.encoded_rows import FeatureRows, TaskBatchSource
from bert_core.tasks.outputs import compute_all_outputs
from bert_core.tasks.task import compute_outputs, task_loss

TRANSFORMERS = {
    "embeddings": lambda states: states[0],
    "second_to_last": lambda states: states[-2],
    "last": lambda states: states[-1],
    "sum_last_four": lambda states: torch.stack(states[-4:]).sum(0),
    "weighted_sum_last_four": lambda states: torch.stack(states[-4:]).mean(0),
    "concat_last_four": lambda states: torch.cat(states[-4:], dim=-1),
    "weighted_sum_all": lambda states: torch.stack(states[1:]).mean(0),
}
"""Each strategy, written out over the hidden_states of transformers."""


@torch.no_grad()
def test_real_weights_give_the_features_of_transformers(minilm_folder, extractor_of, some_rows):
    encoder = extractor_of().encoder
    rows = some_rows([7, 30, 12, 1], vocab_size=30_522)
    batch = rows.batch(packed=True)
    arguments = batch.inputs
    expected = BertModel.from_pretrained(minilm_folder).eval()(
        **rows.inputs, output_hidden_states=True
    )
    for name, strategy in STRATEGIES.items():
        states = encoder.hidden_states(*arguments, layers=strategy.layers_of(6))
        found = strategy.combine(states)
        assert found.shape[1] == strategy.feature_size(6, 384)
        atol = 4e-5 if name == "sum_last_four" else 1e-5  # the rounding of four layers adds up
        theirs = TRANSFORMERS[name](expected.hidden_states)[rows.real]
        torch.testing.assert_close(found, theirs, rtol=0, atol=atol)


def test_layers_count_from_the_embeddings_or_from_the_top():
    layers = {name: strategy.layers_of(12) for name, strategy in STRATEGIES.items()}
    last_four = (9, 10, 11, 12)
    assert layers == {
        "embeddings": (0,),
        "second_to_last": (11,),
        "last": (12,),
        "sum_last_four": last_four,
        "weighted_sum_last_four": last_four,
        "concat_last_four": last_four,
        "weighted_sum_all": tuple(range(1, 13)),
    }
    assert Strategy("layers", (0, 12, -2)).layers_of(12) == (0, 12, 11)


@pytest.mark.parametrize(
    ("strategy", "needed"),
    [
        (STRATEGIES["concat_last_four"], 4),
        (STRATEGIES["second_to_last"], 2),
        (Strategy("layers 1 and 7", (1, 7)), 7),
    ],
)
def test_a_model_with_fewer_layers_is_refused(strategy, needed):
    with pytest.raises(UserError, match=f"{strategy.name} needs {needed} layers: the model has"):
        strategy.layers_of(needed - 1)
    strategy.layers_of(needed)  # the embeddings are no layer, so one fewer would not do


def test_an_unknown_strategy_is_refused_with_the_nearest():
    with pytest.raises(UserError, match="did you mean concat_last_four"):
        find_strategy("concat_last_for")
    with pytest.raises(UserError, match="unknown strategy"):
        find_strategy("layer_x")
    with pytest.raises(UserError, match="unknown strategy"):
        find_strategy("layer_" + "9" * 5000)  # which int() refuses to read
    assert find_strategy("last") is STRATEGIES["last"]
    assert find_strategy("layer_3").layers_of(12) == (3,)
    with pytest.raises(UserError, match="layer_13 needs 13 layers: the model has 12"):
        find_strategy("layer_13").layers_of(12)


def test_layers_are_mixed_by_learned_weights():
    torch.manual_seed(0)
    states = torch.randn(3, 5, 4)
    strategy, mix = STRATEGIES["weighted_sum_all"], LayerMix(3)
    torch.testing.assert_close(strategy.combine(list(states)), states.mean(0))
    torch.testing.assert_close(strategy.combine(list(states), mix.weights), states.mean(0))
    with torch.no_grad():
        mix.logits.copy_(torch.tensor([0.0, 1.0, -1.0]))
        mix.scale.fill_(2.0)
    shares = torch.tensor([1, torch.e, 1 / torch.e]) / (1 + torch.e + 1 / torch.e)
    expected = 2 * (shares[:, None, None] * states).sum(0)
    found = strategy.combine(list(states), mix.weights)
    torch.testing.assert_close(found, expected)
    found.sum().backward()
    assert mix.logits.grad.abs().sum() > 0
    assert mix.scale.grad.abs() > 0


def test_one_layer_is_scaled_too():
    states = [torch.ones(2, 3)]
    found = STRATEGIES["weighted_sum_all"].combine(states, torch.tensor([0.5]))
    assert found.tolist() == [[0.5] * 3] * 2


CPU = torch.device("cpu")
READ = [
    STRATEGIES["embeddings"],
    STRATEGIES["second_to_last"],
    STRATEGIES["weighted_sum_all"],
    Strategy("sum", (1, 3), "sum"),
    Strategy("concatenate", (3, 1, 0)),
]


def tagger_of(strategy, config, num_outputs=3, **options):
    torch.manual_seed(1)
    return FeatureTagger(strategy, config, num_outputs=num_outputs, lstm_size=8, **options)


def test_a_word_sees_its_row_and_no_other(small_config):
    """As an LSTM over each row alone."""
    tagger = tagger_of(STRATEGIES["last"], small_config)
    counts = torch.tensor([3, 5, 1, 0, 4])
    states = torch.randn(int(counts.sum()), small_config.hidden_size)
    found = tagger([states], counts)
    expected = [tagger.linear(tagger.lstm(row)[0]) for row in states.split([3, 5, 1, 4])]
    torch.testing.assert_close(found, torch.cat(expected))
    assert tagger.lstm.num_layers == 2
    assert tagger.lstm.bidirectional
    assert tagger([states[:0]], counts[:0]).shape == (0, 3)


def test_dropout_is_for_training_alone(small_config):
    tagger = tagger_of(STRATEGIES["last"], small_config, dropout_prob=0.5)
    states, counts = [torch.randn(6, small_config.hidden_size)], torch.tensor([6])
    assert not torch.equal(tagger(states, counts), tagger(states, counts))
    tagger.eval()
    assert torch.equal(tagger(states, counts), tagger(states, counts))


@pytest.mark.parametrize("strategy", READ, ids=lambda strategy: strategy.name)
def test_kept_states_answer_as_the_encoder_does(
    bert, task, tokenizer, sentences, tmp_path, strategy
):
    rows = task.encode(sentences, tokenizer)
    tagger = tagger_of(strategy, bert.config, len(task.labels)).eval()
    states = stored_states(
        bert.encoder, rows, tmp_path, tagger.layers.tolist(), device=CPU, dtype="float32"
    )
    kept, loss = compute_all_outputs(task, tagger, FeatureRows.of(rows, states), device=CPU)
    bert.heads[FEATURE_TAGGER] = tagger
    computed, same_loss = compute_all_outputs(task, bert, rows, device=CPU)
    torch.testing.assert_close(torch.from_numpy(kept), torch.from_numpy(computed))
    assert loss == pytest.approx(same_loss, rel=1e-5)


def test_a_tagger_learns_from_kept_states(bert, task, tokenizer, sentences, tmp_path):
    """Words that stand for their tags: all of them are learned, and the encoder stays."""
    rows = task.encode(sentences, tokenizer)
    states = stored_states(bert.encoder, rows, tmp_path, (1, 2, 3), device=CPU)
    tagger = tagger_of(STRATEGIES["weighted_sum_all"], bert.config, len(task.labels))
    source = TaskBatchSource(
        FeatureRows.of(rows, states), batch_size=8, max_tokens=64, seed=0, layout="packed"
    )
    optimizer = torch.optim.AdamW(tagger.parameters(), lr=1e-2)
    before = tagger.mix.weights.detach().clone()
    for step in range(60):
        optimizer.zero_grad()
        for batch in source.step(step).micro_batches:
            task_loss(task, tagger, batch, **source.step(step).counts)[0].backward()
        optimizer.step()
    outputs, _ = compute_all_outputs(task, tagger, FeatureRows.of(rows, states), device=CPU)
    predictions = task.decode(outputs, rows, sentences)
    assert task.metrics(predictions, sentences)["f1"] > 0.99
    assert not torch.equal(tagger.mix.weights, before)


@pytest.mark.parametrize("strategy", READ, ids=lambda strategy: strategy.name)
def test_the_folder_holds_encoder_and_tagger(bert, task, tokenizer, sentences, tmp_path, strategy):
    bert.heads[FEATURE_TAGGER] = tagger_of(strategy, bert.config, len(task.labels)).eval()
    folder = tmp_path / "model"
    config = task_config("ner", task)
    save_model_folder(folder, bert, tokenizer, "card", extra_config=config)
    rows = task.encode(sentences, tokenizer)
    batch = rows.batch(torch.arange(5).numpy(), "packed")
    again = load_model_folder(folder)[1].eval()
    with torch.inference_mode():
        assert torch.equal(compute_outputs(again, batch), compute_outputs(bert, batch))
    for_inference(bert, "float32", CPU)
    expected = task.decode(compute_all_outputs(task, bert, rows, device=CPU)[0], rows, sentences)
    assert load_predictor(folder).predict_examples(sentences)[0] == expected
    theirs = BertModel.from_pretrained(folder)
    ours = bert.encoder.embeddings.word.weight
    assert torch.equal(theirs.embeddings.word_embeddings.weight, ours)


def test_weights_that_are_no_taggers_are_refused(bert, task, tokenizer, tmp_path):
    bert.heads[FEATURE_TAGGER] = tagger_of(STRATEGIES["last"], bert.config)
    folder = tmp_path / "model"
    save_model_folder(folder, bert, tokenizer, "card")
    (folder / "checksums").unlink()
    path = folder / "model.safetensors"
    weights = load_file(path)
    for name, bad in (
        ("feature_tagger.layers", torch.tensor([4.0])),
        ("feature_tagger.layers", torch.tensor([])),
        ("feature_tagger.lstm.weight_ih_l0", torch.ones(32, 70)),
        ("feature_tagger.lstm.weight_hh_l0", None),
    ):
        changed = {key: each for key, each in weights.items() if key != name}
        save_file(changed if bad is None else changed | {name: bad}, path)
        with pytest.raises(ModelFolderError, match="damaged weights"):
            load_model_folder(folder)
