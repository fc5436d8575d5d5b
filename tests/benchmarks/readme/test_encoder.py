import json

import pytest

from benchmarks.readme.encoder import encoder_run_block, picture_path
from benchmarks.readme.parts import RESULTS
from bert_core.errors import UserError


def results(device, rate=2_000_000):
    end = {
        "masked_token_loss": 3.456,
        "unigram_loss": 7.014,
        "masked_token_accuracy": 0.4321,
        "next_sentence_accuracy": 0.876,
    }
    recipe = {
        "size": "small",
        "sequence_length": 128,
        "finetuning_rows": 32,
        "finetuning_learning_rate": 1e-4,
    }
    arms = {"pre-trained": [{"seed": 0}], "untrained": [{"seed": 0}]}
    compared = {"pre-trained": 0.8512, "untrained": 0.8, "difference": 0.0512}
    stage = {
        "criterion": "f1",
        "examples": {"train": 3668, "dev": 408},
        "arms": arms,
        "compared": compared | {"low": 0.0213, "high": 0.08},
    }
    return {
        "settings": {"device": device, "epochs": 3, "recipe": recipe},
        "surroundings": {"device": f"the {device}", "torch": "2.11"},
        "matmul_flops_per_second": 8e14 if device == "cuda" else None,
        "pretraining": {
            "parameters": 28_800_000,
            "vocabulary": 16_384,
            "step": 11_000,
            "tokens": 390 * rate,
            "train_tokens": 30_000_000,
            "seconds": 390.0,
            "flops": 390 * 2e14,
            "rows_per_step": 580,
            "heldout": [{}, end],
        },
        "finetuning": {"mrpc": stage},
    }


def write(root, name, result, *, picture=True):
    for folder in (RESULTS, "docs"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / RESULTS / f"{name}.json").write_text(json.dumps(result))
    if picture:
        (root / picture_path(name)).write_text("")


def test_nothing_was_measured(tmp_path):
    assert encoder_run_block(tmp_path).startswith("Still to be measured: an encoder")


def test_what_came_out_on_a_gpu(tmp_path):
    write(tmp_path, "encoder-run-cuda", results("cuda"))
    block = encoder_run_block(tmp_path)
    assert block.startswith("![Masked-token loss over the tokens read](docs/encoder-run-cuda.svg)")
    row = "| `small`, 29 M, 16,384 words | 11,000 | 780 M | 6.5 | 3.46 | 7.01 | 43.2% | 87.6% |"
    assert row in block
    assert "On the cuda, torch 2.11: 2,000,000 real tokens/s (25% MFU), 26.0 passes over" in block
    assert "| MRPC | 3,668 x 3 | F1 | 85.1 | 80.0 | +5.1 (+2.1 to +8.0) |" in block
    assert "one seed" in block and "demonstration" not in block
    assert "Still to be measured" not in block


def test_what_came_out_on_a_cpu_is_a_demonstration(tmp_path):
    write(tmp_path, "encoder-run-cpu", results("cpu", rate=14_000))
    block = encoder_run_block(tmp_path)
    assert "A demonstration on a CPU: on the cpu, torch 2.11: 14,000 real tokens/s, 0.2" in block
    assert "MFU" not in block
    assert "Still to be measured: an encoder pre-trained and fine-tuned on a GPU" in block


def test_the_gpu_comes_first(tmp_path):
    for device in ("cpu", "cuda"):
        write(tmp_path, f"encoder-run-{device}", results(device))
    block = encoder_run_block(tmp_path)
    assert block.index("encoder-run-cuda") < block.index("encoder-run-cpu")


def test_figures_without_their_picture(tmp_path):
    write(tmp_path, "encoder-run-cuda", results("cuda"), picture=False)
    with pytest.raises(UserError, match=r"--plot docs/encoder-run-cuda.svg --json"):
        encoder_run_block(tmp_path)


def test_a_task_that_is_under_way_is_left_out(tmp_path):
    result = results("cuda")
    result["finetuning"]["sst2"] = result["finetuning"]["mrpc"] | {"compared": None}
    write(tmp_path, "encoder-run-cuda", result)
    assert "SST-2" not in encoder_run_block(tmp_path)
