import json

import pytest

from bert_core.model.strategies import STRATEGIES
from workflows.paper.paper_table import DASH, score_text
from workflows.paper.published import FINETUNING, TABLE_7_DEV, TABLE_7_TITLES
from workflows.paper.table7 import (
    SeedScores,
    Table7,
    json_table,
    markdown_table,
    table_lines,
    text_table,
)

TABLE = Table7(
    "Encoder: tiny.",
    "Features: few.",
    {
        FINETUNING: SeedScores([90.0, 92.0], [80.0, 81.0]),
        "embeddings": SeedScores([70.0, 71.0]),
        "last": SeedScores([85.0]),
    },
)


def test_the_rows_are_the_papers():
    assert set(TABLE_7_TITLES) == set(TABLE_7_DEV) == {FINETUNING, *STRATEGIES} - {"sum_last_four"}
    assert max(TABLE_7_DEV, key=TABLE_7_DEV.get) == FINETUNING
    assert TABLE_7_DEV["concat_last_four"] == 96.1


def test_scores_of_seeds_are_a_mean_and_a_deviation():
    assert score_text([90.0, 92.0]) == "91.00 ± 1.41"
    assert score_text([85.123]) == "85.12"
    assert score_text([]) == DASH


def test_what_was_not_measured_has_a_dash():
    lines = {line[0]: line[1:] for line in table_lines(TABLE)}
    assert lines["Fine-tuning"] == ["91.00 ± 1.41", "2", "96.4", "80.50 ± 0.71", "92.4"]
    assert lines["Embeddings"] == ["70.50 ± 0.71", "2", "91.0", DASH, ""]
    assert lines["Last hidden"] == ["85.00", "1", "94.9", DASH, ""]
    assert lines["Weighted sum all layers"] == [DASH, DASH, "95.5", DASH, ""]


def test_the_order_is_told_beside_the_papers():
    assert TABLE.order == ["last", "embeddings"]
    assert "here: last > embeddings; in the paper: last > embeddings." in TABLE.notes[-1]


def test_the_table_is_written_for_people_and_programs():
    text, markdown = text_table(TABLE), markdown_table(TABLE, ["a.png"])
    assert "Encoder: tiny." in text
    assert "91.00 ± 1.41" in text
    assert "| Embeddings | 70.50 ± 0.71 | 2 | 91.0 | – |  |" in markdown
    assert "![a](a.png)" in markdown
    found = json.loads(json_table(TABLE, {"by_layer": {0: [1.0]}}))
    assert found["rows"]["embeddings"]["dev"] == [70.0, 71.0]
    assert found["rows"]["embeddings"]["dev_standard_error"] == pytest.approx(0.5)
    assert found["rows"]["last"]["dev_standard_error"] is None
    assert found["by_layer"] == {"0": [1.0]}
