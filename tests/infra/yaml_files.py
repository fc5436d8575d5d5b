"""YAML files of infra/, read as the strictest reader does: a key that stands twice is refused."""

import copy
from pathlib import Path

import yaml

INFRA = Path(__file__).parents[2] / "infra"


class _OneOfEachKey(yaml.CSafeLoader):
    """PyYAML keeps the last of two equal keys in silence; Kubernetes and Go refuse them."""

    def construct_mapping(self, node, deep=False):
        # As they are written: what `<<` merges may be said anew.
        keys = [key.value for key, _ in node.value]
        twice = sorted({str(key) for key in keys if keys.count(key) > 1})
        if twice:
            raise yaml.constructor.ConstructorError(
                None, None, f"{', '.join(twice)} stands here twice", node.start_mark
            )
        return super().construct_mapping(node, deep)


def documents(path):
    """Every document of a file, in order; raises `yaml.YAMLError` for what is no strict YAML."""
    return read_documents(Path(path).read_text(encoding="utf-8"))


def read_documents(text):
    """The same of a text."""
    return [each for each in yaml.load_all(text, _OneOfEachKey) if each is not None]


def document(path):
    """The one document of a file."""
    (only,) = documents(path)
    return only


def places(value, place=()):
    """Every key of a document, as the path that leads to it."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield (*place, key)
            yield from places(each, (*place, key))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from places(each, (*place, number))


def misspelt(content, place):
    """A copy of a document in which one key, said by the path to it, has a letter too many."""
    content = holder = copy.deepcopy(content)
    for key in place[:-1]:
        holder = holder[key]
    holder[f"{place[-1]}s"] = holder.pop(place[-1])
    return content


def environment(path):
    """The variables of a file of `NAME=value` lines."""
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
