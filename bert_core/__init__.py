"""BERT encoders in PyTorch: text, model, tasks, training, and inference with a model folder.

`load` opens a folder, and the `Predictor` it returns answers the folder's task, embeds texts and
fills masks:

    import bert_core

    predictor = bert_core.load("MODEL_FOLDER")
    vectors = predictor.embed(["A cat sleeps.", "The bank raised its rates."])
    print(vectors.shape, vectors.dtype)

`load_model_folder` and `save_model_folder` read and write the model itself, a `Bert` of the shape
`ModelConfig`. Mistakes of a user raise `UserError`, in one line. The names in `__all__` are loaded
when they are first used, so that `import bert_core` takes milliseconds and loads no torch. No
cluster, tracker or server is imported by any module here.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bert_core.config import ModelConfig
    from bert_core.errors import UserError
    from bert_core.interface import Answered, Chosen, Classified, Filled, Tagged
    from bert_core.model.bert import Bert
    from bert_core.model_folder import load_model_folder, save_model_folder
    from bert_core.predictor import Predictor
    from bert_core.predictor import load_predictor as load

__all__ = [
    "Answered",
    "Bert",
    "Chosen",
    "Classified",
    "Filled",
    "ModelConfig",
    "Predictor",
    "Tagged",
    "UserError",
    "load",
    "load_model_folder",
    "save_model_folder",
]

_SOURCES = {
    "Answered": "bert_core.interface:Answered",
    "Bert": "bert_core.model.bert:Bert",
    "Chosen": "bert_core.interface:Chosen",
    "Classified": "bert_core.interface:Classified",
    "Filled": "bert_core.interface:Filled",
    "ModelConfig": "bert_core.config:ModelConfig",
    "Predictor": "bert_core.predictor:Predictor",
    "Tagged": "bert_core.interface:Tagged",
    "UserError": "bert_core.errors:UserError",
    "load": "bert_core.predictor:load_predictor",
    "load_model_folder": "bert_core.model_folder:load_model_folder",
    "save_model_folder": "bert_core.model_folder:save_model_folder",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any of the names in __all__
    """Imports a name in `__all__` when it is first used (PEP 562)."""
    if name not in _SOURCES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _SOURCES[name].partition(":")
    value = globals()[name] = getattr(import_module(module), attribute)
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
