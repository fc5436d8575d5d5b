"""The folder of an exported model: the graph, its tokenizer, config.json, and how to call it.

README.md says what the graph takes and gives, and has a program that asks it.
"""

from collections.abc import Iterator
from pathlib import Path
from pprint import pformat
from typing import Any

from bert_core.disk import write_sorted_json
from bert_core.errors import UserError
from bert_core.example import Inputs
from bert_core.masked_language_model import MASK
from bert_core.model_folder import CONFIG, folder_to_publish
from bert_core.portable import INPUTS, PaddedModel, load_padded_model
from bert_core.special_tokens import special_tokens
from bert_core.strict_files import read_json_object
from bert_core.tasks.classification import Classification
from bert_core.tasks.multiple_choice import MultipleChoice
from bert_core.tokenizer import load_tokenizer, write_tokenizer
from workflows.model_location import model_name
from workflows.portable.graphs import FILES, check_size, open_graph, size_of, to_int8, write_graph
from workflows.portable.parity import TOLERANCE, Parity, reference
from workflows.portable.settings import Format

EXPORT_FIELD = "bertline_export"
"""Where config.json of an exported folder says what its graph takes and gives."""

_OPENED: dict[Format, tuple[str, str]] = {
    "onnx": (
        "from onnxruntime import InferenceSession\n",
        'graph = InferenceSession("model.onnx")\n{names} = graph.run(None, inputs)\n',
    ),
    "openvino": (
        "from openvino import Core\n",
        "# Without the hint CPUs with bfloat16 compute in that.\n"
        'hints = {{"INFERENCE_PRECISION_HINT": "f32"}}\n'
        'graph = Core().compile_model("openvino_model.xml", "CPU", hints)\n'
        "{names} = graph(inputs).to_tuple()\n",
    ),
}

_LABELS = 'labels = json.loads(Path("config.json").read_text(encoding="utf-8"))["id2label"]\n'

_SHAPES = {
    "row": "`logits` [batch, outputs]",
    "token": "`logits` [batch, sequence, labels]",
    "span": "`start_logits` and `end_logits` [batch, sequence]",
    "word": "`logits` [batch, sequence, vocabulary]",
    "vector": "`last_hidden_state` [batch, sequence, hidden] and `sentence_embedding`"
    " [batch, dimensions], of length 1",
    "sparse_vector": "`sparse_embedding` [batch, vocabulary], the weight of each word",
}


def write_portable(
    folder: Path,
    output: Path,
    format: Format,  # noqa: A002 - the option's name
    *,
    int8: bool,
    name: str = "",
) -> Iterator[str]:
    """Writes a model folder as a graph, atomically; yields a line about each step.

    `name` is the model's in README.md, by default the folder's.

    Raises `UserError` for a folder of a kind that cannot be exported, before work is done, and
    where the graph's outputs differ from the model's by more than `TOLERANCE` in float32.
    """
    model = load_padded_model(folder)
    check_size(model)
    expected = reference(folder, model)
    with folder_to_publish(output) as written:
        write_graph(model, format, written)
        size = size_of(format, written)
        yield f"graph    {FILES[format][0]}, outputs {', '.join(model.output_names)}"
        parity = expected.compare(open_graph(format, written), model)
        yield f"float32  {parity.sentence}"
        if not parity.largest <= TOLERANCE:  # so that NaN is not
            raise UserError(
                f"the graph's outputs differ by {parity.largest:.1e}, more than {TOLERANCE:g}",
                str(folder),
                "try the other --format, or serve the folder with python -m serving",
            )
        sizes = f"{size / 1e6:,.1f} MB"
        if int8:
            to_int8(format, written)
            parity = expected.compare(open_graph(format, written), model)
            yield f"int8     {parity.sentence}"
            sizes += f" in float32, {size_of(format, written) / 1e6:,.1f} MB in int8"
        yield f"size     {sizes}"
        _write_rest(folder, written, model, format, int8=int8)
        title = name or model_name(folder)
        card = _card_of(title, model, format, expected.first, parity, int8=int8)
        if model.answer == "word":  # the program's tokenizer knows its own name of [MASK] alone
            card = card.replace(MASK, special_tokens(load_tokenizer(folder)).mask)
        (written / "README.md").write_text(card, encoding="utf-8")


def _write_rest(
    folder: Path, written: Path, model: PaddedModel, format: Format, *, int8: bool
) -> None:  # noqa: A002
    write_tokenizer(written, load_tokenizer(folder), model.model.config)
    described: dict[str, Any] = {
        "format": format,
        "precision": "int8" if int8 else "float32",
        "inputs": list(INPUTS),
        "outputs": list(model.output_names),
        "max_length": model.max_length,
    }
    if model.answer in ("vector", "sparse_vector"):
        pooling = model.pooling
        described["prompts"] = dict(pooling.prompts)
        described["default_prompt_name"] = pooling.default_prompt
        if model.answer == "vector":
            described["pooling"] = pooling.pooling
    config = read_json_object(folder / CONFIG) | {EXPORT_FIELD: described}
    write_sorted_json(written / CONFIG, config)


def _card_of(
    name: str,
    model: PaddedModel,
    format: Format,  # noqa: A002 - the option's name
    asked: Inputs,
    parity: Parity,
    *,
    int8: bool,
) -> str:
    """README.md of the model `name`, with a program that asks about the inputs `asked`."""
    program = "".join(_program(model, format, asked))
    lines = [
        f"# {name}, for {'ONNX Runtime' if format == 'onnx' else 'OpenVINO'}",
        f"A BERT model in {'8-bit integers' if int8 else 'float32'}, exported by Bertline."
        f" Compared with the model: {parity.sentence}.",
        "\n".join(
            [
                f"- Graph: {' and '.join(f'`{each}`' for each in FILES[format])}.",
                f"- Inputs: {', '.join(f'`{each}`' for each in INPUTS)}, int64 [batch, sequence];"
                " `attention_mask` is 1 at tokens and 0 at padding.",
                f"- Outputs: {_SHAPES[model.answer]}.",
                f"- `tokenizer.json` neither cuts nor pads. At most {model.max_length} tokens fit"
                " in a row: cut longer texts, or read them in windows.",
                *_notes(model, int8=int8),
            ]
        ),
        f"In this folder, with `pip install {'onnxruntime' if format == 'onnx' else 'openvino'}"
        " tokenizers`:",
        f"```python\n{program}```",
    ]
    return "\n\n".join(lines) + "\n"


def _notes(model: PaddedModel, *, int8: bool) -> list[str]:
    notes = []
    if _reads_labels(model):
        notes.append("- Labels: `id2label` in `config.json`, in the order of the outputs.")
    if isinstance(model.task, Classification) and model.task.thresholds:
        tuned = ", ".join(f"`{name}` {each:g}" for name, each in model.task.thresholds.items())
        notes.append(
            f"- A label is given from a probability on: {tuned}, of others 0.5. The program below"
            " gives each from 0.5 on."
        )
    if model.answer == "token":
        notes.append("- The label of a word is that of its first token.")
    prompts = {name: text for name, text in model.pooling.prompts.items() if text}
    if prompts:
        said = ", ".join(f"{name} `{text}`" for name, text in sorted(prompts.items()))
        usual = model.pooling.default_prompt
        notes.append(
            f"- Put a prompt before each text: {said}"
            + (f"; by default {usual}." if usual else ".")
        )
    if int8:
        notes.append("- In 8 bits an answer depends a little on the other texts of its batch.")
    return notes


def _reads_labels(model: PaddedModel) -> bool:
    task = model.task
    return model.answer == "token" or (isinstance(task, Classification) and bool(task.labels))


def _program(model: PaddedModel, format: Format, asked: Inputs) -> list[str]:  # noqa: A002
    imports, call = _OPENED[format]
    reads_labels = _reads_labels(model)
    rows = pformat(_rows(asked), width=96)
    names = ", ".join(model.output_names)
    pad = model.model.config.pad_token_id
    return [
        "import json\nfrom pathlib import Path\n\n" if reads_labels else "",
        "import numpy as np\n",
        imports,
        "from tokenizers import Tokenizer\n\n",
        'tokenizer = Tokenizer.from_file("tokenizer.json")\n',
        f"tokenizer.enable_truncation({model.max_length})\n",
        f"tokenizer.enable_padding(pad_id={pad})\n",
        f"asked = {rows}\n",
        "rows = tokenizer.encode_batch(asked)\n",
        "inputs = {\n",
        '    "input_ids": np.array([row.ids for row in rows]),\n',
        '    "attention_mask": np.array([row.attention_mask for row in rows]),\n',
        '    "token_type_ids": np.array([row.type_ids for row in rows]),\n',
        "}\n",
        call.format(names=names if len(model.output_names) > 1 else f"({names},)"),
        _LABELS if reads_labels else "",
        _reading(model),
    ]


def _rows(asked: Inputs) -> list[str | tuple[str, str]]:
    """The rows of an input as `Tokenizer.encode_batch` takes them."""
    match asked:
        case {"context": str(context), "choices": [*choices]}:
            return [(context, choice) for choice in choices]
        case {"text": str(first), "text_pair": str(second)}:
            return [(first, second)]
        case {"question": str(question), "context": str(context)}:
            return [(question, context)]
        case str():
            return [asked]
    raise ValueError(f"no input, {asked}")


def _reading(model: PaddedModel) -> str:
    """The lines that turn outputs into an answer."""
    task = model.task
    match model.answer:
        case "row" if isinstance(task, MultipleChoice):
            return 'print("choice", logits[:, 0].argmax())\n'
        case "row" if isinstance(task, Classification) and task.kind == "multiple":
            return (
                "for row in logits:\n"
                "    print([labels[str(number)] for number in np.flatnonzero(row > 0)])\n"
            )
        case "row" if _reads_labels(model):
            return "for row in logits:\n    print(labels[str(row.argmax())])\n"
        case "row":
            return "print(logits[:, 0])\n"
        case "token":
            return (
                "for row, numbers in zip(rows, logits.argmax(-1)):\n"
                "    print([(token, labels[str(n)]) for token, n in zip(row.tokens, numbers)])\n"
            )
        case "span":
            return (
                "for (_, context), row, start, end in zip(asked, rows, start_logits, end_logits):\n"
                "    is_context = np.array([each == 1 for each in row.sequence_ids])\n"
                "    scores = start[:, None] + end  # of answers by first and last token\n"
                "    scores[~np.triu(np.outer(is_context, is_context))] = -np.inf\n"
                "    first, last = np.unravel_index(scores.argmax(), scores.shape)\n"
                "    print(context[row.offsets[first][0] : row.offsets[last][1]])\n"
            )
        case "word":
            return (
                'mask = tokenizer.token_to_id("[MASK]")\n'
                'for row, column in np.argwhere(inputs["input_ids"] == mask):\n'
                "    words = map(tokenizer.id_to_token, (-logits[row, column]).argsort())\n"
                "    print(next(filter(None, words)))  # a row may have no token\n"
            )
        case "vector":
            return "print(sentence_embedding @ sentence_embedding.T)  # cosines\n"
        case "sparse_vector":
            return (
                "for weights in sparse_embedding:\n"
                "    words = map(tokenizer.id_to_token, (-weights).argsort())\n"
                "    print(list(filter(None, words))[:5])  # a column may have no token\n"
            )
