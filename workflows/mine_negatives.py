"""Finds passages that look like answers and are none: `python workflows/mine_negatives.py --help`.

The pairs of a search task go in; for each query the passages that a model of embeddings ranks
highest come out, as negatives to train embeddings with, and as candidates to train a reranker on.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import Field

from bert_core.command_help import Example, Guide
from bert_core.disk import atomic_write
from bert_core.errors import UserError
from bert_core.tasks.catalog import TASKS
from bert_core.tasks.text_embedding import RelatedTexts, TextEmbedding
from workflows.command import command
from workflows.output_folder import absolute_output
from workflows.settings import StoreSettings, parse_command_line

if TYPE_CHECKING:
    from bert_core.predictor import Predictor
    from bert_core.tasks.task import FloatArray

# Imports within functions load torch, which takes seconds: --help is answered before.

_TEXTS_AT_ONCE = 512


class MineSettings(StoreSettings):
    """Writes for each query of a split the passages that a model ranks highest, as JSONL.

    A line has `query`, `passage` (that belongs to it), `negatives` (that rank high and do not), and
    `passages` with their `scores`, 1 and 0, in the model's order: the columns of the tasks
    embedding (--options.negative_columns negatives) and rerank.
    """

    guide: ClassVar[Guide] = Guide(
        examples=(
            Example(
                "negatives of SQuAD's questions",
                "--model models:/search/1 --task squad_search --data squad --output train.jsonl",
            ),
            Example(
                "candidates to measure a reranker on",
                "--model models:/search/1 --task squad_search --data squad --split dev"
                " --margin 0 --output dev.jsonl",
            ),
            Example(
                "of a table of your own",
                "--model models:/search/1 --data pairs --options query_column=question"
                " --output train.jsonl",
            ),
        ),
        common=(
            "model",
            "data",
            "output",
            "task",
            "split",
            "options",
            "count",
            "margin",
            "depth",
            "skip",
        ),
    )

    model: str = Field(
        description="model of embeddings: a folder, models:/NAME@ALIAS, hf://OWNER/NAME, or a run"
        " name"
    )
    data: str = Field(
        description="pairs of the task: a folder with the splits, a file, hf://OWNER/NAME, docs://"
    )
    output: Path = Field(description="the JSONL file to write; must not exist")
    task: str = Field(
        default="embedding",
        description="task whose pairs they are, one of "
        + ", ".join(name for name, task in TASKS.items() if isinstance(task, TextEmbedding)),
    )
    split: str = Field(default="train", description="split of a folder to read: train, dev or test")
    options: dict[str, str] = Field(
        default={}, description="options of the task for this data, such as query_column=question"
    )
    count: int = Field(default=7, ge=1, description="negatives of a query, at most")
    margin: float = Field(
        default=0.95,
        ge=0,
        le=1,
        description="a negative's cosine is less than this share of the passage's own: what is"
        " nearer may well belong to the query (Moreira et al. 2024, arXiv 2407.15831); 0: any",
    )
    depth: int = Field(default=100, ge=1, description="so many of the highest ranks are looked at")
    skip: int = Field(default=0, ge=0, description="ranks from the top that are never negatives")
    max_tokens: int = Field(default=4096, ge=8, description="tokens of one forward pass, at most")


main = command(lambda given: mine(parse_command_line(MineSettings, given)))


def mine(settings: MineSettings) -> bool:
    """Writes the file; True when it is done. Raises `UserError` for wrong input, before that."""
    output = absolute_output(settings.output)
    if output.exists():
        raise UserError("the output exists already", str(output), "pass a new file")
    if not output.parent.is_dir():
        raise UserError("no such folder", str(output.parent), "make it first")
    task = TASKS.get(settings.task)
    if not isinstance(task, TextEmbedding):
        remedy = "see --help for the tasks of pairs"
        raise UserError("no task of pairs", f"--task {settings.task}", remedy)
    from bert_core.predictor import load_predictor
    from workflows.evaluation.settings import with_options
    from workflows.finetuning.data import located
    from workflows.model_location import locate_model

    asked = with_options(task, settings.options)
    assert isinstance(asked, TextEmbedding)
    if asked.kind != "pairs":
        what = "negatives are mined for pairs of a query and a passage"
        raise UserError(what, f"--options kind={asked.kind}", "leave it out")
    examples = asked.examples(located(settings.data), settings.split)
    if not examples:
        raise UserError("no pairs", settings.data, "give some")
    folder = locate_model(settings.model, settings.storage_folder, settings.mlflow_uri)
    predictor = load_predictor(folder, max_tokens=settings.max_tokens)
    lines, with_negatives = 0, 0
    with atomic_write(output) as beside, beside.open("w", encoding="utf-8") as file:
        for line in mined(predictor, examples, settings):
            lines += 1
            with_negatives += bool(line["negatives"])
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    print(f"{lines:,} queries, {with_negatives:,} of them with negatives\nwritten  {output}")
    return True


def mined(
    predictor: "Predictor", examples: Sequence[RelatedTexts], settings: MineSettings
) -> Iterator[dict[str, Any]]:
    """A line for each pair: what the model ranks highest among the passages of all."""
    from bert_core.tasks.retrieval import nearest

    queries = list(dict.fromkeys(example.texts[0] for example in examples))
    passages = list(dict.fromkeys(text for example in examples for text in example.texts[1:]))
    belongs: dict[str, set[str]] = {query: set() for query in queries}
    for example in examples:
        belongs[example.texts[0]].add(example.texts[1])
    of_queries = _vectors(predictor, queries, "query")
    of_passages = _vectors(predictor, passages, "document", "passage")
    found, scores = nearest(of_queries, of_passages, settings.depth + settings.skip + 1)
    number = {query: place for place, query in enumerate(queries)}
    place_of = {passage: place for place, passage in enumerate(passages)}
    for example in examples:
        query, passage = example.texts[:2]
        row = number[query]
        own = float(of_queries[row] @ of_passages[place_of[passage]])
        limit = settings.margin * own if settings.margin else np.inf
        # A query may be a passage of another one: it is no wrong answer of itself.
        places = [
            each for each in found[row].tolist() if passages[each] != query or query == passage
        ]
        places = places[: settings.depth + settings.skip]
        ranked = [passages[each] for each in places]
        score_of = dict(zip(found[row].tolist(), scores[row].tolist(), strict=True))
        candidates = [
            passages[each]
            for each in places[settings.skip :]
            if passages[each] not in belongs[query] and score_of[each] < limit
        ]
        negatives = candidates[: settings.count]
        kept = belongs[query].union(negatives)
        listed = [text for text in ranked if text in kept]
        if passage not in listed:
            listed.append(passage)
        yield {
            "query": query,
            "passage": passage,
            "negatives": negatives,
            "passages": listed,
            "scores": [int(text in belongs[query]) for text in listed],
        }


def _vectors(predictor: "Predictor", texts: Sequence[str], *prompts: str) -> "FloatArray":
    """The vectors of texts, of length 1, with the folder's first prompt of these names, if any."""
    from workflows.progress import ProgressLine

    known = predictor.sentence_pooling.prompts
    name = next((each for each in prompts if each in known), None)
    progress = ProgressLine(f"embedding {len(texts):,} texts ({prompts[0]})", sum(map(len, texts)))
    parts = []
    for begin in range(0, len(texts), _TEXTS_AT_ONCE):
        some = texts[begin : begin + _TEXTS_AT_ONCE]
        found = predictor.embed(some, normalize=True, prompt_name=name, overflow="right")
        parts.append(found)
        progress.advance(sum(map(len, some)))
    return np.concatenate(parts)


if __name__ == "__main__":
    sys.exit(main())
