"""Writes a model folder in int8: `python workflows/quantize.py --model M --data D --output FOLDER`.

The loss of quality is measured on the data, printed, and written to the folder's card.
"""

import sys

from workflows.command import command
from workflows.output_folder import new_folder
from workflows.quantization.settings import QuantizeSettings
from workflows.settings import parse_command_line

# Imports within functions load torch, which takes seconds: --help is answered before.


main = command(lambda given: quantize(parse_command_line(QuantizeSettings, given)))


def quantize(settings: QuantizeSettings) -> bool:
    """Measures the loss in int8 and writes the folder; returns True.

    Raises `UserError` for wrong input, before anything is written.
    """
    output = new_folder(settings.output)
    from workflows.model_location import locate_model
    from workflows.quantization.loss import measured_loss, write_quantized

    folder = locate_model(settings.model, settings.storage_folder, settings.mlflow_uri)
    loss = measured_loss(settings, folder)
    print(loss.text)
    write_quantized(folder, output, loss)
    print(f"\nwritten  {output}")
    return True


if __name__ == "__main__":
    sys.exit(main())
