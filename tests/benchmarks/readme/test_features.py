import json

from benchmarks.readme.features import extraction_block, features_block, table7_block
from benchmarks.readme.parts import RESULTS
from workflows.paper.table7 import SeedScores, Table7, json_table

RESULT = {
    "settings": {"precision": "float32"},
    "encoder": {"num_hidden_layers": 6, "hidden_size": 384},
    "surroundings": {"device": "A", "threads": 2, "torch": "2.13"},
    "num_texts": 1024,
    "num_tokens": 59_000,
    "longest": 342,
    "arms": {"ours": {"tokens_per_second": 6181.4}, "peer": {"tokens_per_second": 4080}},
    "ratios": {"peer": 1.549},
    "flops_per_second": 138e9,
    "peak_flops_per_second": 187e9,
    "padding_of_peers": 0.177,
    "largest_difference": 1.02e-06,
}


def test_nothing_was_measured(tmp_path):
    assert features_block(tmp_path).startswith("Still to be measured")


def test_a_row_for_each_arm_and_what_it_ran_on(tmp_path):
    (tmp_path / RESULTS).mkdir(parents=True)
    (tmp_path / RESULTS / "features-cpu.json").write_text(json.dumps(RESULT))
    block = features_block(tmp_path)
    assert "| ours | 6,181 |  |" in block
    assert "| peer | 4,080 | 1.55 times as fast |" in block
    assert "138 GFLOP/s, 74% of the\nlargest matrix" in block
    assert "1e-06 at most; 18% of what the peers compute" in block


def test_a_long_extraction_is_told_in_a_sentence(tmp_path):
    assert "still to be measured" in extraction_block(tmp_path)
    result = {
        "texts": 1_000_000,
        "size": "tiny",
        "cores": 2,
        "texts_per_second": [2000.4, 2100, 1900],
        "last_rate_over_first": 0.95,
        "bytes_above_idle": [700_400_000, 0, 710_000_000],
        "same_after_kill": True,
    }
    path = tmp_path / RESULTS / "extraction-cpu.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(result))
    block = extraction_block(tmp_path)
    assert "1,000,000 sentences through a `tiny` encoder on 2 cores" in block
    assert "2,000 texts/s, in the last three tenths 0.95 of the rate" in block
    assert "700 MB above the idle cluster in the second tenth, 710 MB in the last" in block
    assert "the same features again" in block
    path.write_text(json.dumps(result | {"same_after_kill": False}))
    assert "**other features**" in extraction_block(tmp_path)


def test_table_7_has_a_column_for_each_encoder(tmp_path):
    assert table7_block(tmp_path) == "Not run at full length yet.\n"
    (tmp_path / RESULTS).mkdir(parents=True)
    for name, scores in (("large", [94.0, 95.0]), ("little", [90.123])):
        table = Table7(
            f"Encoder: {name}.", "Features: so.", {"concat_last_four": SeedScores(scores)}
        )
        (tmp_path / RESULTS / f"table7-{name}.json").write_text(json_table(table, {}))
    block = table7_block(tmp_path)
    assert "| F1 on dev | large | little | the paper's BERT base, cased |" in block
    assert "| Concat last four hidden | 94.50 ± 0.71 | 90.12 | 96.1 |" in block
    assert "| Last hidden | – | – | 94.9 |" in block
    assert "- `large`, seeds: 2. Encoder: large. Features: so. Order of the strategies" in block
