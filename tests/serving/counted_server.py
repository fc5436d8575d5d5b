"""`python counted_server.py …` is `python -m serving`, which says what there is when it is asked.

To each line of standard input it prints a line of JSON: how many models and encoders that it has
opened are still there, its threads, its open files.
"""

import gc
import json
import sys
import threading
import weakref
from pathlib import Path

from serving import __main__ as program
from serving.models import ModelLoader

MODELS, WEIGHTS, BATCHERS = weakref.WeakSet(), weakref.WeakSet(), weakref.WeakSet()


def watch_what_is_opened():
    load = ModelLoader.load

    def noted(*given, **named):
        model = load(*given, **named)
        MODELS.add(model)
        WEIGHTS.add(model.model)
        BATCHERS.add(model.batcher)
        return model

    ModelLoader.load = noted


def tell():
    for _ in sys.stdin:
        gc.collect()
        found = {
            "models": len(MODELS),
            "weights": len(WEIGHTS),
            "batchers": len(BATCHERS),
            "threads": sorted(each.name for each in threading.enumerate()),
            "files": len([*Path("/proc/self/fd").iterdir()]),
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    watch_what_is_opened()
    threading.Thread(target=tell, name="telling", daemon=True).start()
    sys.exit(program.main())
