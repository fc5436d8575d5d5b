"""The page about prepared text: what each rule dropped, with examples, lengths and words."""

from collections.abc import Mapping, Sequence

from bert_core.errors import one_line
from bert_core.text.corpus_statistics import CorpusStatistics
from bert_core.text.quality import QUALITY_RULES
from bert_core.text.screening import (
    COPIES,
    NEAR_DUPLICATES,
    OTHER_LANGUAGE,
    OVERLAP,
    Example,
    Screened,
)
from bert_core.text.shards import ShardIndex
from workflows.reporting.figures import Chart, Figure
from workflows.reporting.render import Cell, Code, Figures, Page, Part, Row, Section, Table

REPORT_NAME = "prepare-report.html"
_MOST_LANGUAGES = 12
_DROPS = {
    **QUALITY_RULES,
    COPIES: "the text of an earlier document",
    OTHER_LANGUAGE: "another language than those to keep",
    OVERLAP: "13 words in a row of evaluation data",
    NEAR_DUPLICATES: "nearly the text of an earlier document",
    "documents_without_token": "nothing that the tokenizer knows as text",
}


def corpus_page(index: ShardIndex, screened: Screened, statistics: CorpusStatistics) -> Page:
    """The page of a finished folder of shards."""
    kept = sum(entry.num_documents for split in index.splits.values() for entry in split)
    tokens = sum(entry.num_tokens for split in index.splits.values() for entry in split)
    read = index.counts["documents_read"]
    characters, unknown = index.counts["characters"], index.counts["unknown_tokens"]
    scrubbed = {
        name.removeprefix("scrubbed_"): number
        for name, number in index.counts.items()
        if name.startswith("scrubbed_")
    }
    facts = [
        ("Text", ", ".join(str(source["text"]) for source in index.sources)),
        ("Tokens", f"{tokens:,}"),
        ("Characters to a token", f"{characters / max(tokens, 1):.2f}"),
        ("Vocabulary", f"{index.vocab_size:,} entries"),
        ("Unknown tokens", f"{unknown:,} ({unknown / max(tokens, 1):.4%})"),
    ]
    if scrubbed:
        what = ", ".join(f"{number:,} {name}" for name, number in scrubbed.items())
        facts.append(("Personal data replaced", what))
    return Page(
        title="Prepared text",
        verdict=f"{kept:,} of {read:,} documents kept ({kept / max(read, 1):.1%})",
        facts=facts,
        sections=[
            Section("Kept and dropped", [_rule_table(index, screened, read)]),
            Section("Examples", _examples(screened, statistics)),
            Section("Lengths and languages", [_figures(screened, statistics)]),
            Section(
                "Words",
                [
                    _word_table("Most frequent words", statistics.words),
                    _word_table("Words that become [UNK]", statistics.unknown_words),
                ],
            ),
        ],
    )


def _rule_table(index: ShardIndex, screened: Screened, read: int) -> Table:
    names = [COPIES, *screened.counts, "documents_without_token"]
    rows = [_row(name, _DROPS[name], index.counts.get(name, 0), read) for name in names]
    for split, entries in index.splits.items():
        rows.append(
            _row(f"kept ({split})", "", sum(entry.num_documents for entry in entries), read)
        )
    notes = ["Each document counts for the first rule that drops it, in this order."]
    return Table("Documents by rule", ("Rule", "Documents", "Share", "Drops"), rows, notes)


def _row(name: str, drops: str, number: int, read: int) -> Row:
    share = number / max(read, 1)
    return Row([name, Cell(f"{number:,}", number), Cell(f"{share:.2%}", share), drops])


def _examples(screened: Screened, statistics: CorpusStatistics) -> list[Part]:
    """Folded, so that the page stays short."""
    named = {"kept": statistics.examples, **screened.examples}
    parts: list[Part] = [
        Code(_written(examples), f"Examples of {name} ({len(examples)})")
        for name, examples in named.items()
        if examples
    ]
    return parts or ["There are none."]


def _written(examples: Sequence[Example]) -> str:
    lines = []
    for number, example in enumerate(examples, start=1):
        lines.append(f"{number}. {_safe(example.text)}")
        if example.earlier:
            lines.append(f"   like: {_safe(example.earlier)}")
    return "\n\n".join(lines)


def _safe(text: str) -> str:
    return "\n".join(map(one_line, text.split("\n")))


def _figures(screened: Screened, statistics: CorpusStatistics) -> Figures:
    languages = dict(screened.languages.most_common(_MOST_LANGUAGES))
    others = screened.languages.total() - sum(languages.values())
    if others:
        languages["other"] = others
    figures = [
        _histogram("documents", "Documents by tokens", statistics.document_lengths),
        _histogram("sentences", "Sentences by tokens", statistics.sentence_lengths),
        _histogram("languages", "Documents by language, before filters", languages),
    ]
    return Figures([figure for figure in figures if figure])


def _histogram(name: str, title: str, counts: Mapping[str, int]) -> Figure | None:
    if not counts:
        return None
    chart = Chart(title, (3.75, 0.8 + 0.24 * len(counts)))
    chart.bars(list(counts), list(counts.values()), [f"{number:,}" for number in counts.values()])
    alt = f"{title}: " + ", ".join(f"{key} {number:,}" for key, number in counts.items())
    return chart.finish(name, caption="", alt=alt)


def _word_table(caption: str, words: Mapping[str, int]) -> Part:
    if not words:
        return f"{caption}: none."
    rows = [Row([word, Cell(f"{number:,}", number)]) for word, number in words.items()]
    return Table(caption, ("Word", "Times"), rows)
