"""The pictures suite: attention by head, a map of words or texts by label, neighbours of words.

Shapes: L layers, A heads, n tokens, P points, K chosen layers, U units, H hidden size.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_core.disk import write_atomically
from bert_core.errors import UserError, nearest
from bert_core.features.extractor import Extractor, FeatureChoice, load_extractor
from bert_core.features.inspection import (
    AttentionMaps,
    WordsInContext,
    ambiguous_words,
    attention_maps,
    different_contexts,
    evenly_drawn,
    nearest_words,
    read_words,
)
from bert_core.interface import Unit
from bert_core.model.strategies import Strategy
from bert_core.tasks.catalog import TASKS
from bert_core.tasks.classification import Classification
from bert_core.tasks.tag_schemes import OUTSIDE, split_tag
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import FloatArray
from workflows.evaluation.settings import with_options
from workflows.finetuning.data import located
from workflows.model_location import EncoderFolder, model_name, open_encoder
from workflows.paper.suite_settings import PicturesSettings, Projection
from workflows.reporting.figures import GREY, INK, Figure, inline_figure, new_figure, save_picture
from workflows.reporting.render import Cell, Figures, Page, Part, Row, Section, Table, write_page
from workflows.runs.mlflow_run import log_report

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

MAP, REPORT, PAGE, RESULT = "map.png", "pictures.md", "pictures.html", "pictures.json"
MOST_TOKENS = 48
"""Of a sentence whose attention is drawn: pictures of more cannot be read."""
_SHARE_OF_PLAIN_WORDS = 0.8
_CELL, _PER_TOKEN, _MARGIN = 1.25, 0.105, 1.3  # inches
_COLORS = ("#4c78a8", "#e45756", "#54a24b", "#b279a2", "#f58518", "#72b7b2", "#9d755d", "#d8a500")
_NEIGHBOURS = 30  # perplexity of t-SNE
_OWN_SENTENCES, _OWN_WORDS, _CONTEXTS_OF_A_WORD, _WORDS_AROUND = 3, 5, 3, 6


@dataclass(frozen=True)
class TaggedTexts:
    """Texts as lists of words, and a label of each word."""

    texts: list[list[str]]
    labels: list[list[str]]


@dataclass(frozen=True)
class LabelledTexts:
    """Texts as strings, and a label of each."""

    texts: list[str]
    labels: list[str]


@dataclass(frozen=True)
class WordNeighbours:
    """A word in a text, and what lies near it: cosine, text, label; the word between bars."""

    word: str
    text: str
    label: str | None
    near: list[tuple[float, str, str | None]]


def draw_pictures(settings: PicturesSettings) -> bool:
    """Writes the pictures and the report, and logs them at MLflow; True when it is done.

    Raises `UserError` before anything is written.
    """
    encoder = open_encoder(settings.model, settings.storage_folder, settings.mlflow_uri)
    layers = layers_of_map(settings, encoder.config.num_hidden_layers)
    examples = read_examples(settings)
    extractor = opened(settings, encoder, layers, "word")
    sentences = settings.sentences or short_sentences(examples, extractor)
    maps = [short_enough(extractor, sentence) for sentence in sentences]
    print(f"encoder  {encoder.path}")
    print(f"data     {len(examples.texts):,} examples", flush=True)

    tags = examples.labels if isinstance(examples, TaggedTexts) else None
    words = read_words(extractor, examples.texts, tags)
    states = layered(words.states, len(layers))
    found = neighbours(settings, replace(words, states=states[-1]))
    labels = words.labels
    if isinstance(examples, LabelledTexts):
        of_texts = opened(settings, encoder, layers, "text").of_texts(examples.texts)
        labels, states = examples.labels, layered(of_texts, len(layers))
    assert labels is not None
    chosen = evenly_drawn(labels, settings.points, settings.seed)

    settings.report.mkdir(parents=True, exist_ok=True)
    name = model_name(encoder.path)
    attention = draw_attention(maps, sentences, settings.report, name)
    print(f"drawing  {MAP}: {len(chosen):,} points of {len(layers)} layers", flush=True)
    points = {
        layer: project(vectors, settings.projection)
        for layer, vectors in zip(layers, states[:, chosen], strict=True)
    }
    title = f"{name}: {'texts' if tags is None else 'words'} by label"
    kind = "t-SNE" if settings.projection == "tsne" else "The first two principal components"
    map_figure = _saved(
        map_drawing(points, [labels[index] for index in chosen], title),
        settings.report / MAP,
        f"{kind} of each layer on its own, with as many points of each label where it has them."
        " The axes have no unit.",
    )
    page = pictures_page(name, map_figure, attention, found, layers[-1])
    write_page(page, settings.report, "pictures")
    pictures = [MAP, *(f"{figure.name}{figure.suffix}" for figure in attention)]
    content = {
        "sentences": sentences,
        "layers": layers,
        "projection": settings.projection,
        "labels": sorted({labels[index] for index in chosen}),
        "neighbours": [vars(each) for each in found],
    }
    write_atomically(settings.report / RESULT, json.dumps(content, indent=1, ensure_ascii=False))
    print(f"report   {settings.report / REPORT}, {len(pictures)} pictures")
    log_report(
        [settings.report / each for each in (REPORT, PAGE, RESULT, *pictures)],
        tracking_uri=settings.mlflow_uri,
        experiment=settings.experiment,
        run_name=name,
        params={"model": settings.model, "data": settings.data, "split": settings.split}
        | {"encoder.sha256": encoder.sha256, "projection": settings.projection},
        metrics={},
    )
    return True


def layers_of_map(settings: PicturesSettings, num_hidden_layers: int) -> list[int]:
    """The layers of the map; raises `UserError` for one that the encoder lacks."""
    if not settings.layers:
        return sorted({0, num_hidden_layers // 2, num_hidden_layers})
    chosen = Strategy("--layers", tuple(settings.layers)).layers_of(num_hidden_layers)
    return list(dict.fromkeys(chosen))


def opened(
    settings: PicturesSettings, encoder: EncoderFolder, layers: Sequence[int], unit: Unit
) -> Extractor:
    """An extractor of the states of these layers, end to end."""
    choice = FeatureChoice(Strategy("layers", tuple(layers)), unit)
    return load_extractor(encoder.path, choice, max_tokens=settings.max_tokens)


def layered(states: FloatArray, num_layers: int) -> FloatArray:
    """States of several layers end to end, [U, K * H], apart: [K, U, H]."""
    return states.reshape(len(states), num_layers, -1).swapaxes(0, 1)


def read_examples(settings: PicturesSettings) -> TaggedTexts | LabelledTexts:
    """Some labelled examples of the data, each text once.

    Raises `UserError` for what has no labels.
    """
    task = TASKS.get(settings.task)
    if task is None:
        hint = nearest(settings.task, TASKS)
        raise UserError(
            f"unknown task{hint}", f"--task {settings.task}", f"one of {', '.join(TASKS)}"
        )
    task = with_options(task, settings.options)
    if not isinstance(task, Tagging | Classification):
        remedy = "take a tagging task, or one of single texts"
        raise UserError("no labels of words or texts", f"--task {settings.task}", remedy)
    found = task.examples(located(settings.data), settings.split)
    draw = np.random.default_rng(settings.seed)
    drawn = [found[index] for index in draw.permutation(len(found))]
    if isinstance(task, Tagging):
        tagged = [each for each in drawn if each.tags is not None and len(each.words)]
        tagged = list({tuple(each.words): each for each in tagged}.values())
        _refuse_nothing(tagged, settings)
        some = tagged[: settings.examples]
        kinds = [[split_tag(tag)[1] or OUTSIDE for tag in each.tags] for each in some]
        return TaggedTexts([list(each.words) for each in some], kinds)
    single = [each for each in drawn if each.second is None and isinstance(each.answer, str)]
    single = list({each.first: each for each in single}.values())
    _refuse_nothing(single, settings)
    some = single[: settings.examples]
    return LabelledTexts([each.first for each in some], [str(each.answer) for each in some])


def _refuse_nothing(found: Sequence[Any], settings: PicturesSettings) -> None:
    if len(found) < 2:
        where = f"{settings.split} of {settings.data}"
        raise UserError(
            "fewer than two labelled examples", where, "give others, or another --split"
        )


def short_sentences(examples: TaggedTexts | LabelledTexts, extractor: Extractor) -> list[str]:
    """Some of the texts that can be looked at with ease: of 8 to 16 tokens, mostly plain words."""
    found: list[str] = []
    for each in examples.texts:
        words = each.split() if isinstance(each, str) else each
        text = each if isinstance(each, str) else " ".join(each)
        plain = {word for word in words if word.isalpha()}
        if (
            len(plain) >= _SHARE_OF_PLAIN_WORDS * len(words)
            and 8 <= len(extractor.tokenizer.encode(text).ids) <= 16
        ):
            found.append(text)
            if len(found) == _OWN_SENTENCES:
                break
    return found


def short_enough(extractor: Extractor, sentence: str) -> AttentionMaps:
    """The attention to a sentence; raises `UserError` for one that is empty or too long to read."""
    if not sentence.strip():
        raise UserError("an empty sentence", "--sentences", "give a text")
    num_tokens = len(extractor.tokenizer.encode(sentence).ids)
    if num_tokens > MOST_TOKENS:
        raise UserError(
            f"a sentence of {num_tokens} tokens",
            f"--sentences {sentence[:40]}…",
            f"give one of {MOST_TOKENS} at most, for more cannot be read in a picture",
        )
    return attention_maps(extractor.encoder, extractor.tokenizer, sentence)


def draw_attention(
    maps: Sequence[AttentionMaps], sentences: Sequence[str], folder: Path, name: str
) -> list[Figure]:
    """Draws and saves a figure of each sentence."""
    figures = []
    for number, (each, sentence) in enumerate(zip(maps, sentences, strict=True), start=1):
        path = folder / f"attention-{number}.png"
        print(f"drawing  {path.name}: {sentence}", flush=True)
        drawing = attention_drawing(each, f"{name}: {sentence}")
        caption = f"{sentence}: row tokens attend to column tokens, dark is much."
        figures.append(_saved(drawing, path, caption))
    return figures


def _saved(drawing: "Drawing", path: Path, caption: str) -> Figure:
    """Drawn once for file and page, for drawing a square for each head takes long."""
    save_picture(drawing, path)
    return inline_figure(drawing, path.stem, caption=caption, alt=caption, suffix=path.suffix)


def neighbours(settings: PicturesSettings, words: WordsInContext) -> list[WordNeighbours]:
    """What lies near each word in its different contexts."""
    found = []
    for word in settings.words or ambiguous_words(words, _OWN_WORDS):
        places = different_contexts(words, word, _CONTEXTS_OF_A_WORD)
        if not places:
            print(f"words    {word} is not in the data: left out")
        for index in places:
            near = [
                (each.cosine, in_its_text(words, each.index), label_of(words, each.index))
                for each in nearest_words(words, index, settings.neighbours)
            ]
            text, label = in_its_text(words, index), label_of(words, index)
            found.append(WordNeighbours(words.words[index], text, label, near))
    if settings.words and not found:
        where = f"--words {' '.join(settings.words)}"
        raise UserError(
            "none of the words is in the data", where, "give others, or more --examples"
        )
    return found


def in_its_text(words: WordsInContext, index: int) -> str:
    """A word, marked, with those around it."""
    before, after = words.around(index, _WORDS_AROUND)
    return f"{before} **{words.words[index]}** {after}".strip()


def label_of(words: WordsInContext, index: int) -> str | None:
    """The label of a word, where it is known."""
    return None if words.labels is None else words.labels[index]


def pictures_page(
    name: str,
    map_figure: Figure,
    attention: Sequence[Figure],
    found: Sequence[WordNeighbours],
    layer: int,
) -> Page:
    """The figures, and a table of neighbours for each word in a text, as a page."""
    tables: list[Part] = []
    for near in found:
        labels = [] if near.label is None else ["label"]
        rows = [
            Row(
                [
                    Cell(f"{cosine:.2f}", cosine),
                    _bracketed(text),
                    *([] if label is None else [label]),
                ]
            )
            for cosine, text, label in near.near
        ]
        label = "" if near.label is None else f" ({near.label})"
        tables += [
            f"{near.word}{label}: {_bracketed(near.text)}",
            Table(f"Neighbours of {near.word}", ["cosine", "in its text", *labels], rows),
        ]
    about = (
        f"The words of other texts whose states after layer {layer} have the highest cosine with"
        " the word's."
    )
    return Page(
        f"What {name} has learned",
        f"Words in context: {len(found)}; sentences: {len(attention)}",
        sections=[
            Section("Map by label", [Figures([map_figure])]),
            Section("Neighbours of words in different texts", [about, *tables]),
            Section("Attention by layer and head", [Figures(attention)]),
        ],
    )


def _bracketed(text: str) -> str:
    """A text with its word in brackets instead of Markdown's asterisks."""
    return re.sub(r"\*\*(.*)\*\*", r"[\1]", text)


def attention_drawing(maps: AttentionMaps, title: str) -> "Drawing":
    """Draws a square for each head of each layer: row tokens attend to column tokens.

    Dark is much. Tokens are at the left and at the bottom.
    """
    num_layers, num_heads, num_tokens, _ = maps.probabilities.shape
    cell = max(_CELL, _PER_TOKEN * num_tokens)
    figure = new_figure(num_heads * cell + _MARGIN, num_layers * cell + _MARGIN)
    figure.suptitle(title, x=0.01, ha="left", color=INK, fontsize=13, fontweight="bold")
    cells = figure.subplots(num_layers, num_heads, squeeze=False)
    for layer, row in enumerate(cells):
        for head, axes in enumerate(row):
            shares = maps.probabilities[layer, head].numpy()
            axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
            axes.tick_params(length=0, labelsize=6, colors=INK, pad=1)
            axes.set_xticks([])
            axes.set_yticks([])
            for spine in axes.spines.values():
                spine.set_color(GREY)
                spine.set_linewidth(0.5)
            if layer == 0:
                axes.set_title(f"head {head + 1}", color=INK, fontsize=8, pad=4)
            if layer == num_layers - 1:
                axes.set_xticks(range(num_tokens), maps.tokens, rotation=90)
            if head == 0:
                axes.set_yticks(range(num_tokens), maps.tokens)
                axes.set_ylabel(f"layer {layer + 1}", color=INK, fontsize=8)
    return figure


def map_drawing(points: Mapping[int, FloatArray], labels: Sequence[str], title: str) -> "Drawing":
    """Draws points [P, 2] of each layer, colored by their labels [P].

    The axes have no unit: only distances within a layer mean something. The labels beyond the eight
    most frequent are grey.
    """
    figure = new_figure(3.5 * len(points), 4.1)
    figure.suptitle(title, x=0.01, ha="left", color=INK, fontsize=13, fontweight="bold")
    frequent = [label for label, _ in Counter(labels).most_common(len(_COLORS))]
    colors = dict(zip(sorted(frequent), _COLORS, strict=False))
    names, array = [*colors, "other"], np.array(labels)
    for number, (layer, places) in enumerate(points.items(), start=1):
        axes = figure.add_subplot(1, len(points), number)
        for name in names:
            chosen = ~np.isin(array, frequent) if name == "other" else array == name
            if chosen.any():
                x, y = places[chosen].T
                color = colors.get(name, GREY)
                dots = {"s": 9, "alpha": 0.65, "linewidths": 0, "rasterized": True}
                axes.scatter(x, y, color=color, label=name, **dots)
        axes.set_title("embeddings" if layer == 0 else f"layer {layer}", color=INK, fontsize=11)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[["top", "right", "left", "bottom"]].set_color(GREY)
    handles, shown = figure.axes[0].get_legend_handles_labels()
    figure.legend(
        handles,
        shown,
        loc="outside lower center",
        ncols=len(shown),
        frameon=False,
        labelcolor=INK,
        markerscale=2,
    )
    return figure


def project(vectors: FloatArray, projection: Projection) -> FloatArray:
    """The vectors [P, H] in two dimensions, [P, 2], by scikit-learn; the same again every time."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    if projection == "pca":
        return PCA(2, random_state=0).fit_transform(vectors)
    perplexity = min(_NEIGHBOURS, max((len(vectors) - 1) / 3, 1))
    # Its threads meet several times a step: on a busy machine two took a hundred times as long.
    with threadpool_limits(1):
        return TSNE(2, init="pca", perplexity=perplexity, random_state=0).fit_transform(vectors)
