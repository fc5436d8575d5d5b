import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertModel

from bert_core.features.states import stored_states
from bert_core.model.strategies import STRATEGIES, Strategy
from bert_core.model.tagger import FEATURE_TAGGER, FeatureTagger
from bert_core.model_folder import ModelFolderError, load_model_folder, save_model_folder
from bert_core.predictor import compute_all_outputs, load_predictor
from bert_core.quantization import for_inference
from bert_core.tasks.catalog import task_config
from bert_core.tasks.encoded_rows import FeatureRows, TaskBatchSource
from bert_core.tasks.task import compute_outputs, task_loss

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
