"""Runs modules as on a machine that has little installed: `python bare_machine.py '[[...]]'`.

The argument is JSON, a list of command lines, each beginning with a module's name. Every package
that is installed is hidden unless ALLOWED or one of their own requirements. All command lines run
in this process, one after the other; it fails with the first.
"""

import importlib
import json
import re
import runpy
import sys
import traceback
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, packages_distributions, requires

ALLOWED = ("torch", "tokenizers", "numpy", "pydantic", "safetensors", "transformers")


def with_requirements(names):
    """These distributions and all they need, normalised."""
    found, left = set(), list(names)
    while left:
        name = normalised(left.pop())
        if name in found:
            continue
        found.add(name)
        try:
            needed = requires(name) or []
        except PackageNotFoundError:
            continue
        left += [re.match(r"[\w.-]+", each)[0] for each in needed if "extra ==" not in each]
    return found


def normalised(name):
    """A distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def hidden_names():
    """The importable names that only other distributions bring."""
    allowed = with_requirements(ALLOWED)
    return {
        name
        for name, distributions in packages_distributions().items()
        if not {normalised(distribution) for distribution in distributions} & allowed
    } - {"bert_core", "benchmarks"}


class BareFinder(PathFinder):
    """Finds what stands on the path, save what is hidden: that is simply not there."""

    hidden: frozenset[str] = frozenset()

    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        """None for a hidden name, as for one that nobody ever installed."""
        if fullname.partition(".")[0] in cls.hidden:
            return None
        return super().find_spec(fullname, path, target)


def main():
    """Runs the command lines."""
    BareFinder.hidden = frozenset(hidden_names())
    sys.meta_path[:] = [BareFinder if each is PathFinder else each for each in sys.meta_path]
    commands = json.loads(sys.argv[1])
    if any(module.startswith("benchmarks.") for module, *_ in commands):
        importlib.import_module("benchmarks.measurement").CPU_PRODUCT_SIZE = 64
    for module, *arguments in commands:
        sys.argv[1:] = arguments
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as leaving:
            if leaving.code:
                raise SystemExit(f"{module}: {leaving.code}") from None
        except BaseException:
            traceback.print_exc()
            raise SystemExit(f"{module} failed") from None


if __name__ == "__main__":
    main()
