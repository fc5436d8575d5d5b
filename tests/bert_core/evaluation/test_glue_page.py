from html.parser import HTMLParser

from bert_core.evaluation.intervals import Interval
from workflows.paper.glue import Measured, glue_table
from workflows.paper.glue_page import html_page
from workflows.paper.paper_table import DASH

OURS = {
    "cola": Measured(Interval(0.52, 0.47, 0.571), "<a> & b", 1043, 2, num_models=3),
    "rte": "no model",
}


class Cells(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.rows, self.addresses = [], [], []

    def handle_starttag(self, tag, attrs):
        self.addresses += [value for name, value in attrs if name in ("src", "href")]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data.strip() + " "


def test_the_page_is_well_formed_and_needs_nothing_else():
    text = html_page(glue_table({"<ours> & co": OURS}))
    page = Cells()
    page.feed(text)
    assert page.open == page.addresses == []
    assert "http" not in text
    assert "prefers-color-scheme: dark" in text
    assert [len(row) for row in page.rows] == [11] * 4 + [4] * 10
    assert page.rows[0][-1] == "average of 1 "
    assert page.rows[1][0] == "BERT base test sets "
    assert page.rows[3][0] == "<ours> & co dev sets "
    assert page.rows[3][6] == "52.0 (47.0 to 57.1) "
    assert page.rows[3][1] == f"{DASH} "
    assert page.rows[-4] == ["CoLA ", "<a> & b (best of 3) ", "1,043 ", "2 "]
    assert page.rows[-1] == ["RTE ", f"{DASH} no model ", "", ""]
    assert "flatters" in text


def test_rows_without_a_column_in_common_have_a_page():
    assert "No averages" in html_page(glue_table({"ours": {}}))
