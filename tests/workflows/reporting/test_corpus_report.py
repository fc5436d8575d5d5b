"""The page about prepared text: all rules, examples of any text, and figures."""

from collections import Counter
from types import SimpleNamespace

import numpy as np

from bert_core.text.corpus_statistics import CorpusStatistics
from bert_core.text.screening import NEAR_DUPLICATES, Example, Screened
from workflows.corpus_report import corpus_page
from workflows.reporting.render import html


def page(text="An example."):
    index = SimpleNamespace(
        splits={"train": [SimpleNamespace(num_documents=7, num_tokens=70)], "heldout": []},
        counts={
            "documents_read": 10,
            "characters": 300,
            "unknown_tokens": 7,
            "duplicate_documents": 1,
            NEAR_DUPLICATES: 2,
            "scrubbed_email": 3,
        },
        vocab_size=100,
        sources=[{"text": "texts"}],
    )
    screened = Screened(
        is_dropped=np.zeros(10, dtype=bool),
        counts=Counter({NEAR_DUPLICATES: 2}),
        examples={NEAR_DUPLICATES: [Example(rank=1, text=text, earlier="Before.")]},
        languages=Counter({f"l{number}": 20 - number for number in range(20)}),
    )
    statistics = CorpusStatistics({"the": 9}, {}, [], {"1–1": 7}, {"1–15": 7})
    return html(corpus_page(index, screened, statistics))


def test_the_page_has_every_count():
    written = page()
    assert "7 of 10 documents kept (70.0%)" in written and "3 email" in written
    assert f"Examples of {NEAR_DUPLICATES} (1)" in written and "like: Before." in written
    assert "20.00%" in written and "Words that become [UNK]: none." in written
    assert "l11" in written and "l12" not in written and "other 36" in written


def test_text_of_any_kind_is_only_text():
    written = page("<script>alert(1)</script> \x1b[31m \u202e end")
    assert "<script>alert" not in written and "\x1b" not in written and "\u202e" not in written
