"""Writes a model as a graph for ONNX Runtime or OpenVINO: `python workflows/export.py --model M`.

The folder that comes out is all that a program in another language needs.
"""

import sys

from workflows.command import command
from workflows.output_folder import new_folder
from workflows.portable.settings import ExportSettings
from workflows.settings import parse_command_line

# Imports within functions load torch, which takes seconds: --help is answered before.


main = command(lambda given: export(parse_command_line(ExportSettings, given)))


def export(settings: ExportSettings) -> bool:
    """Writes the graph, compares it with the model, and publishes the folder; returns True.

    Raises `UserError` for wrong input, before anything is written, and for a graph that answers
    otherwise than the model, of which nothing is left.
    """
    output = new_folder(settings.output)
    from workflows.model_location import located_model, model_name
    from workflows.portable.folder import write_portable
    from workflows.portable.graphs import refuse_missing_packages

    refuse_missing_packages(settings.format)
    located = located_model(settings.model, settings.storage_folder, settings.mlflow_uri)
    name = located.version or model_name(located.folder)
    written = write_portable(located.folder, output, settings.format, int8=settings.int8, name=name)
    for line in written:
        print(line, flush=True)
    print(f"\nwritten  {output}")
    return True


if __name__ == "__main__":
    sys.exit(main())
