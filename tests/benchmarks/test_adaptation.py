"""The rate of an adapted run beside that of one from scratch."""

import json

import pytest
import torch
from pretraining_runs import write_corpus

from benchmarks import adaptation
from bert_core.config import SIZES
from bert_core.model.bert import Bert
from bert_core.model_folder import save_model_folder
from bert_core.special_tokens import num_embeddings
from bert_core.tokenizer import load_tokenizer


@pytest.mark.slow
def test_both_arms_train_and_each_turn_has_a_ratio(tmp_path, capsys):
    shards = write_corpus(tmp_path / "corpus")
    tokenizer = load_tokenizer(shards)
    changes = {"vocab_size": num_embeddings(tokenizer), "num_hidden_layers": 1}
    torch.manual_seed(0)
    model = Bert.for_pretraining(SIZES["tiny"].model_copy(update=changes))
    save_model_folder(tmp_path / "start", model, tokenizer, "# A card\n")
    given = ["--start_from", str(tmp_path / "start"), "--shards", str(shards)]
    short = ["--turns", "3", "--steps", "1", "--json", str(tmp_path / "result.json")]
    assert adaptation.main([*given, *short]) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert len(result["ratio_of_turns"]) == 3
    assert result["ratio"] == sorted(result["ratio_of_turns"])[1] > 0
    assert all(seconds > 0 for seconds in result["seconds_of_a_step"].values())
    assert f"{result['ratio']:.3f} of the rate" in capsys.readouterr().out
    assert adaptation.main(["--start_from", "nowhere", "--shards", str(shards)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
