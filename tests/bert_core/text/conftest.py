"""Reading whole corpora, as the tests of every reader do."""

from collections import Counter

import pytest

from bert_core.text.corpus import read_documents
from bert_core.text.sources import find_parts


@pytest.fixture
def read():
    """Reads what is typed: gives all documents, and the counts of what was dropped or skipped."""

    def read_all(*texts, strict=False, text_column="text"):
        dropped = Counter()
        skipped = Counter()
        documents = [
            document
            for part in find_parts([str(text) for text in texts], text_column, skipped)
            for document in read_documents(part, dropped, text_column=text_column, strict=strict)
        ]
        return documents, {reason: n for reason, n in (dropped + skipped).items() if n}

    return read_all
