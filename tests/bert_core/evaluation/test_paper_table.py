from html.parser import HTMLParser

from workflows.paper.paper_table import (
    PaperRow,
    PaperTable,
    html_paper_table,
    json_paper_table,
    markdown_paper_table,
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


class Cells(HTMLParser):
    def __init__(self):
        super().__init__()
        self.rows, self.wide = [], []

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self.wide.append(int(dict(attrs).get("colspan", 1)))

    def handle_data(self, data):
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data.strip()


def test_ours_stands_beside_the_papers():
    assert markdown_paper_table(TABLE).splitlines() == [
        "|  | MNLI-m, ours | MNLI-m, the paper's | <SST-2>, ours | <SST-2>, the paper's |",
        "|---|--:|--:|--:|--:|",
        "| BERT base | 81.00 ± 1.41 | 84.4 | – | 92.7 |",
        "| no \\| NSP & co | – | – | 90.00 | – |",
        "",
        "- Only <few> steps.",
    ]


def test_the_page_has_the_same_cells():
    text = html_paper_table(TABLE)
    assert "<few>" not in text and "<SST-2>" not in text
    page = Cells()
    page.feed(text.split("<ul>")[0])
    assert page.rows[0] == ["", "MNLI-m", "<SST-2>"]
    assert page.wide[:3] == [1, 2, 2]
    assert page.rows[1] == ["ours", "paper"] * 2
    assert page.rows[2] == ["BERT base", "81.00 ± 1.41", "84.4", "–", "92.7"]
    assert page.rows[3] == ["no | NSP & co", "–", "–", "90.00", "–"]


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
    assert markdown_paper_table(table).splitlines() == [
        "|  | docs, ours | QNLI, the paper's | MRPC, ours | MRPC, the paper's |",
        "|---|--:|--:|--:|--:|",
        "| a | 60.00 | 88.4 | 70.00 | 86.7 |",
        "| b | – | 84.9 | – | 86.5 |",
    ]
    page = Cells()
    page.feed(html_paper_table(table).split("<ul>")[0])
    assert page.rows[:3] == [
        ["", "docs", "QNLI", "MRPC"],
        ["ours", "paper", "ours", "paper"],
        ["a", "60.00", "88.4", "70.00", "86.7"],
    ]
    assert page.wide[:4] == [1, 1, 1, 2]
    empty = PaperTable("Table 5", ("QNLI",), (PaperRow("a", {}, {"QNLI": 88.4}),))
    assert "QNLI, ours" in markdown_paper_table(empty), "where nothing is measured yet"
