import pytest

from bert_core.errors import UserError
from bert_core.model_folder import load_model_folder
from bert_core.tokenizer import tokenizer_hash
from bert_core.training.checkpoint import newest_checkpoint


def test_the_last_checkpoint_becomes_a_model_folder_with_card_and_plot(pretraining_job):
    assert pretraining_job.folder.is_trained()
    folder, shards = pretraining_job.folder, pretraining_job.shards
    results = pretraining_job.write_results()
    config, model, tokenizer = load_model_folder(folder.model)
    assert (config.num_hidden_layers, config.vocab_size) == (1, shards.vocab_size)
    assert tokenizer_hash(tokenizer) == shards.tokenizer_hash
    assert {"masked_token", "next_sentence"} <= set(model.heads)
    loss = f"{results.figures['heldout/masked_token_loss']:.4g}"
    for part in (loss, shards.data_hash, "8 x 32", "Unigram baseline", "280"):
        assert part.lower() in results.card.lower(), part
    plot = folder.path / "artifacts" / "loss.png"
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert str(folder.path) not in results.card
    # Killed in between, the command does it all again.
    first = (folder.model / "model.safetensors").read_bytes()
    pretraining_job.write_results()
    assert (folder.model / "model.safetensors").read_bytes() == first


def test_without_a_whole_checkpoint_there_is_no_result(pretraining_job):
    path, _ = newest_checkpoint(pretraining_job.folder.checkpoints)
    (path / "state.json").write_text("{}")
    assert not pretraining_job.folder.is_trained()
    with pytest.raises(UserError, match="no whole checkpoint"):
        pretraining_job.write_results()
