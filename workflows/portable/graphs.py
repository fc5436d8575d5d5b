"""Graphs of a model: writes them for ONNX Runtime and OpenVINO, in float32 and int8, and runs them.

Shapes: N rows of n tokens.
"""

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from bert_core.errors import UserError, require
from bert_core.portable import INPUTS, PaddedModel
from bert_core.tasks.task import FloatArray
from bert_core.text.rng import IntArray
from workflows.portable.settings import Format

Graph = Callable[[Mapping[str, IntArray]], dict[str, FloatArray]]
"""Inputs by name, int64 [N, n], to outputs by name."""

FILES: dict[Format, tuple[str, ...]] = {
    "onnx": ("model.onnx",),
    "openvino": ("openvino_model.xml", "openvino_model.bin"),
}
"""The files of a graph; the first is the one to open. The names are those of Optimum."""

OPSET = 18
"""The last one in which attention is a few plain operations, which int8 of ONNX Runtime knows."""

_MOST_BYTES = 2_000_000_000  # of one protobuf message, less what is no weight

_PACKAGES: dict[Format, tuple[str, ...]] = {
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "openvino": ("onnx", "onnxscript", "openvino", "nncf"),
}


def refuse_missing_packages(format: Format) -> None:  # noqa: A002 - the option's name
    """Raises `UserError` where the extra `export` is not installed; imports nothing."""
    what = f"--format {format} needs {{}}"
    require(what, *_PACKAGES[format], where="not installed here", extra="export")


def check_size(model: PaddedModel) -> None:
    """Raises `UserError` for weights that do not fit in one ONNX file."""
    size = sum(each.numel() for each in model.parameters()) * 4
    if size > _MOST_BYTES:
        what = f"{size / 1e9:.1f} GB of weights, of which one ONNX file holds 2 GB"
        raise UserError(what, "the model", "export a smaller model, or serve this one")


def write_graph(model: PaddedModel, format: Format, folder: Path) -> None:  # noqa: A002
    """Writes the graph of a model, in float32, to a folder."""
    graph = folder / FILES[format][0]
    with _quiet():
        written = folder / FILES["onnx"][0]
        _write_onnx(model, written)
        if format == "openvino":
            import openvino

            openvino.save_model(_read_openvino(written), graph, compress_to_fp16=False)
            written.unlink()


def to_int8(format: Format, folder: Path) -> None:  # noqa: A002
    """Replaces the graph in a folder by one with weights in 8-bit integers.

    ONNX Runtime multiplies them with activations in 8 bits, one scale for each batch; OpenVINO
    chooses the product when it opens the graph.
    """
    graph = folder / FILES[format][0]
    with _quiet(), TemporaryDirectory(dir=folder) as temporary:
        replacing = Path(temporary) / graph.name
        if format == "onnx":
            _quantize_onnx(graph, replacing)
        else:
            _compress_openvino(graph, replacing)
        for name in FILES[format]:
            replacing.with_name(name).replace(folder / name)


def open_graph(format: Format, folder: Path) -> Graph:  # noqa: A002
    """Opens the graph in a folder on the CPU, in float32 where it is not in int8."""
    path = folder / FILES[format][0]
    return _open_onnx(path) if format == "onnx" else _open_openvino(path)


def size_of(format: Format, folder: Path) -> int:  # noqa: A002
    """The bytes of a graph's files."""
    return sum((folder / name).stat().st_size for name in FILES[format])


def _write_onnx(model: PaddedModel, path: Path) -> None:
    # Any rows will do whose numbers are not 1, which the exporter takes for constants.
    ids = torch.full((2, 8), model.model.config.pad_token_id)
    mask = (torch.arange(8) < torch.tensor([[8], [5]])).long()
    program = torch.onnx.export(
        model,
        (ids, mask, torch.zeros_like(ids)),
        input_names=list(INPUTS),
        output_names=list(model.output_names),
        dynamic_shapes=({0: "batch", 1: "sequence"},) * len(INPUTS),
        opset_version=OPSET,
        dynamo=True,
        external_data=False,
        verbose=False,
    )
    assert program is not None  # with dynamo there is one
    program.save(path)


def _quantize_onnx(source: Path, path: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    # 7 bits of a weight: with 8, CPUs without VNNI overflow in the sum of two products.
    quantize_dynamic(source, path, per_channel=True, reduce_range=True, weight_type=QuantType.QInt8)


def _compress_openvino(source: Path, path: Path) -> None:
    os.environ.setdefault("NNCF_CI", "1")  # else NNCF reports its use to its maker
    import nncf
    import openvino

    logging.getLogger("nncf").setLevel(logging.ERROR)  # its own function sets others' handlers too
    graph = nncf.compress_weights(_read_openvino(source), mode=nncf.CompressWeightsMode.INT8_SYM)
    openvino.save_model(graph, path, compress_to_fp16=False)


def _read_openvino(path: Path) -> Any:  # noqa: ANN401 - a graph of OpenVINO
    import openvino

    return openvino.Core().read_model(path)


def _open_onnx(path: Path) -> Graph:
    from onnxruntime import InferenceSession

    session = InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]

    def run(inputs: Mapping[str, IntArray]) -> dict[str, FloatArray]:
        found = session.run(names, dict(inputs))
        return {name: np.asarray(each) for name, each in zip(names, found, strict=True)}

    return run


def _open_openvino(path: Path) -> Graph:
    import openvino

    # By default bfloat16 on CPUs that have it.
    model = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    names = [each.any_name for each in model.outputs]

    def run(inputs: Mapping[str, IntArray]) -> dict[str, FloatArray]:
        found = model(dict(inputs))
        return {name: np.array(found[name]) for name in names}

    return run


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps exporters' notes about themselves from the screen; errors are raised all the same."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
