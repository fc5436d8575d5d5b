"""Imports modules one by one and writes as JSON what each did besides defining names.

`python import_watch.py ROOT MODULE...` runs as a process of its own, in an empty folder that is
its home too. What a module imports from elsewhere comes first: only our own doings count.
"""

import contextlib
import importlib
import json
import logging
import os
import signal
import sys
import threading
import warnings
from functools import cache
from pathlib import Path

from source_rules import PACKAGES, imports_of

FORBIDDEN_EVENTS = {
    "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chdir", "os.putenv", "os.system",
    "subprocess.Popen", "os.fork", "os.exec", "os.posix_spawn", "shutil.rmtree",
    "socket.connect", "socket.getaddrinfo", "socket.bind", "sqlite3.connect",
}  # fmt: skip
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Watch:
    """Collects forbidden events while it is on (an audit hook cannot be taken off again)."""

    def __init__(self):
        self.on = False
        self.seen = []

    def __call__(self, event, arguments):
        """Is called by the interpreter for everything that it audits."""
        if self.on and event in FORBIDDEN_EVENTS:
            self.seen.append(f"{event}{arguments!r}"[:200])
        elif self.on and event == "open" and arguments[2] & WRITING:
            self.seen.append(f"opens {arguments[0]!r} for writing")

    def see_threads(self):
        """Has every start of a thread reported, which Python 3.11 does not audit."""
        start = threading.Thread.start

        def start_seen(thread):
            if self.on:
                self.seen.append(f"starts {thread.name}")
            start(thread)

        threading.Thread.start = start_seen


def state():
    """What an import could change for the rest of the process."""
    loggers = [logging.getLogger(name) for name in [None, *logging.Logger.manager.loggerDict]]
    changed = {
        "environment": dict(os.environ),
        "working directory": str(Path.cwd()),
        "logging": {
            logger.name: (logger.level, len(logger.handlers), logger.propagate, logger.disabled)
            for logger in loggers
            if logger.level or logger.handlers or logger.disabled or not logger.propagate
        },
        "warning filters": [str(entry) for entry in warnings.filters],
        "sys.path": list(sys.path),
        "signal handlers": [
            str(signal.getsignal(each)) for each in (signal.SIGINT, signal.SIGTERM)
        ],
        "hooks": [str(sys.excepthook), str(threading.excepthook)],
    }
    torch = sys.modules.get("torch")
    if torch is not None:
        changed["torch settings"] = [
            torch.get_num_threads(), str(torch.get_default_dtype()), torch.initial_seed(),
            torch.are_deterministic_algorithms_enabled(), torch.is_grad_enabled(),
            torch.get_float32_matmul_precision(),
        ]  # fmt: skip
    return changed


def ours(name):
    """Whether a module belongs to the packages that are watched."""
    return name.split(".")[0] in PACKAGES


def import_others(name, root):
    """Imports everything from elsewhere that a module and our modules below it import."""
    todo, done = [name], set()
    while todo:
        module = todo.pop()
        for path in source_files(module, root) - done:
            done.add(path)
            for each in imports_in(path):
                if each.at_import and ours(each.name):
                    todo.append(each.name)
                elif each.at_import:
                    import_once(each.name)


@cache
def imports_in(path):
    """What a file imports: many modules have much the same below them."""
    return imports_of(path.read_text(encoding="utf-8"))


@cache
def import_once(name):
    """Imports something from elsewhere, which stays.

    What cannot be imported is a function or class, or fails again under watch.
    """
    with contextlib.suppress(ImportError):
        importlib.import_module(name)


@cache
def source_files(module, root):
    """The files that importing a module, or a name out of one, executes; found without importing.

    `importlib.util.find_spec` would import the packages above, unwatched.
    """
    parts = module.split(".")
    stems = [root.joinpath(*parts[:count]) for count in range(1, len(parts) + 1)]
    files = {stem.with_suffix(".py") for stem in stems} | {stem / "__init__.py" for stem in stems}
    return {file for file in files if file.is_file()}


def complaints(name, root, watch):
    """What importing one module did, and those below it that were not imported before."""
    import_others(name, root)
    before = state()
    watch.seen, watch.on = [], True
    try:
        importlib.import_module(name)
    except Exception as error:
        return [f"cannot be imported: {type(error).__name__}: {error}"]
    finally:
        watch.on = False
    after = state()
    return watch.seen + [
        f"changes the {part}" for part in after if part in before and before[part] != after[part]
    ]


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    watching = Watch()
    sys.addaudithook(watching)
    watching.see_threads()
    root = Path(sys.argv[1])
    sys.path.insert(0, str(root))
    print(json.dumps({name: complaints(name, root, watching) for name in sys.argv[2:]}))
