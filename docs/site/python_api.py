"""The reference page of the Python interface: blocks that mkdocstrings fills from docstrings."""

from collections.abc import Iterator

import commands

import bert_core
from bert_core.command_help import Guide, help_of_settings
from bert_core.config import ModelConfig
from serving import client

INTRODUCTION = """# Python

`bert_core` is the model: it needs PyTorch and `tokenizers`, and imports neither Ray nor MLflow.
`serving.client` asks a server; it loads no PyTorch.

```
pip install -e .        # in a checkout
```
"""

CLIENT = """## Client

Guide with examples: [client programs](clients.md). `Client` has the methods of `AsyncClient`,
without `await`.
"""

_RESULTS = """Fields are those of the answers over HTTP: [tasks](http/tasks.md#types),
[texts](http/texts.md#types), [pre-training heads](http/pre-training.md#types).
"""


def page() -> str:
    """The Markdown of the page."""
    return "\n".join([INTRODUCTION, *_bert_core(), CLIENT, *_client()])


def _bert_core() -> Iterator[str]:
    yield "## bert_core\n"
    for name in bert_core.__all__:
        yield f"::: bert_core.{name}\n"
        if name == "ModelConfig":
            options = help_of_settings("", ModelConfig, Guide()).options
            fields = commands.table(options).replace("`--", "`")
            yield fields.replace("| option |", "| field |") + "\n"


def _client() -> Iterator[str]:
    classes = [name for name in client.__all__ if name not in ("AsyncClient", "Client")]
    errors = [name for name in classes if name.endswith("Error")]
    for name in ("Client", "AsyncClient"):
        yield f"::: serving.client.{name}\n"
    yield "### Errors\n"
    for name in errors:
        yield f"::: serving.client.{name}\n    options: {{heading_level: 4}}\n"
    yield f"### Inputs and results\n\n{_RESULTS}"
    for name in classes:
        if name not in errors:
            yield f"::: serving.client.{name}\n    options: {{heading_level: 4}}\n"
