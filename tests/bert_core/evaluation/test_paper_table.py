from bert_core.evaluation.paper_table import (
    OURS,
    PAPERS,
    PaperRow,
    PaperTable,
    halves,
    json_paper_table,
    paper_cell,
)

TABLE = PaperTable(
    "Table 5",
    ("MNLI-m", "<SST-2>"),
    (
        PaperRow("BERT base", {"MNLI-m": (80.0, 82.0)}, {"MNLI-m": 84.4, "<SST-2>": 92.7}),
        PaperRow("no | NSP & co", {"<SST-2>": (90.0,)}),
    ),
    ("Only <few> steps.",),
)


def cells(table):
    """All cells, each row with its name."""
    layout = [(column, half) for column in table.columns for half in halves(table, column)]
    return [[row.name, *(paper_cell(row, *place) for place in layout)] for row in table.rows]


def test_ours_stands_beside_the_papers():
    assert cells(TABLE) == [
        ["BERT base", "81.00 ± 1.41", "84.4", "–", "92.7"],
        ["no | NSP & co", "–", "–", "90.00", "–"],
    ]


def test_programs_get_all_seeds():
    content = json_paper_table(TABLE)
    assert content["rows"][0]["ours"] == {"MNLI-m": [80.0, 82.0]}
    assert content["rows"][0]["ours_mean"] == {"MNLI-m": 81.0}
    assert content["rows"][1]["paper"] == {}


def test_a_column_of_one_side_has_no_place_for_the_other():
    table = PaperTable(
        "Table 5",
        ("docs", "QNLI", "MRPC"),
        (
            PaperRow("a", {"docs": (60.0,), "MRPC": (70.0,)}, {"QNLI": 88.4, "MRPC": 86.7}),
            PaperRow("b", {}, {"QNLI": 84.9, "MRPC": 86.5}),
        ),
    )
    assert [halves(table, column) for column in table.columns] == [
        (OURS,), (PAPERS,), (OURS, PAPERS)
    ]  # fmt: skip
    assert cells(table) == [
        ["a", "60.00", "88.4", "70.00", "86.7"],
        ["b", "–", "84.9", "–", "86.5"],
    ]
    empty = PaperTable("Table 5", ("QNLI",), (PaperRow("a", {}, {"QNLI": 88.4}),))
    assert halves(empty, "QNLI") == (OURS, PAPERS), "where nothing is measured yet"
