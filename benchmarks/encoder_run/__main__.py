"""Train a real encoder in minutes with bert_core alone: pre-train on text, fine-tune on GLUE.

`python -m benchmarks.encoder_run --shards DIR --glue DIR --out DIR --minutes N --preset small
--device cuda --json FILE`. The weights before pre-training are fine-tuned the same way. Results are
written as they are measured. If a call is killed or runs out of time, the next one with the same
--out and --json resumes it, to the same weights. `--pieces DIR` also writes the encoder as files of
15 MB, from which the same command with the same --json continues on another machine. `--plot FILE
--json FILE` draws the loss curve; it needs matplotlib.

Shards for a GPU, 30 million tokens: `python workflows/prepare.py --text wikipedia.txt --output DIR
--vocabulary_size 16384 --heldout_share 0.01` on 130 MB of text; `tar -cJf` makes 32 MB of their 70.
"""

import argparse
import hashlib
import json
import re
import struct
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, load_file, save, save_file

from benchmarks.encoder_run.finetuning import ARMS, FOLDERS, Finetuning, GlueData, compared
from benchmarks.encoder_run.pretraining import Pretraining, Record
from benchmarks.encoder_run.recipe import RECIPES, Clock, chosen_recipe
from benchmarks.measurement import bfloat16_peak, device_named, surroundings
from benchmarks.results import run_program, started_results, write_results
from bert_core.errors import UserError
from bert_core.model_folder import CONFIG, WEIGHTS, load_model_folder, save_model_folder

OUT_OF_TIME = 130
"""Exit code of a call that ran out of time, like that of a stopped workflow."""
PRETRAINING_SHARE = 0.7
"""Of the minutes of a call, by default."""
PEAK_SECONDS = 3.0

RECIPE_OPTIONS = ("step_slots", "sequence_length", "peak_learning_rate", "finetuning_learning_rate")
OF_THE_RESULT = ("preset", "device", "steps", "heldout_rows", "epochs", "examples", "threads")
"""Options that determine the results: a file of other settings is refused."""
SHOWN_ABOVE_UNIGRAM = 0.6
"""Nats above the baseline at which the picture ends, to leave out the steep start."""
PIECE_BYTES = 15_000_000
_NAME = re.compile(r"encoder-(\w+)-(\d+)-of-(\d+)")
_WITH_THE_WEIGHTS = (CONFIG, "tokenizer.json", "README.md")


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.encoder_run", description=__doc__)
    parser.add_argument(
        "--json", type=Path, required=True, help="file of the results; continued if it exists"
    )
    parser.add_argument("--plot", type=Path, help="only draw the results, .svg or .png")
    parser.add_argument("--shards", type=Path, help="folder of token shards")
    parser.add_argument("--glue", type=Path, help="folder of GLUE's folders: SST-2, MRPC, …")
    parser.add_argument("--out", type=Path, help="folder of checkpoints and the encoder")
    parser.add_argument("--pieces", type=Path, help="folder for the encoder in files of 15 MB")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, help="of torch; default: its own choice")
    parser.add_argument("--preset", choices=tuple(RECIPES), default="small")
    parser.add_argument("--minutes", type=float, default=9.0, help="for the whole call")
    parser.add_argument("--pretraining_minutes", type=float, help="of these; default: 70 %%")
    parser.add_argument("--steps", type=int, help="of pre-training; default: as many as fit")
    parser.add_argument("--step_slots", type=int, help="token slots per step")
    parser.add_argument("--sequence_length", type=int, help="longest row, in tokens")
    parser.add_argument("--peak_learning_rate", type=float, help="of pre-training")
    parser.add_argument("--heldout_rows", type=int, default=2048, help="of an evaluation, at most")
    parser.add_argument("--tasks", nargs="+", choices=tuple(FOLDERS), default=["sst2", "mrpc"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of fine-tuning")
    parser.add_argument("--epochs", type=int, default=3, help="of fine-tuning")
    parser.add_argument("--examples", type=int, help="of train, drawn at random; default: all")
    parser.add_argument("--finetuning_learning_rate", type=float)
    parser.add_argument("--checkpoint_minutes", type=float, default=2.0, help="between two")
    options = parser.parse_args(arguments)
    missing = [name for name in ("shards", "glue", "out") if getattr(options, name) is None]
    if missing and not options.plot:
        parser.error(f"--{missing[0]} is needed")
    return options


class EncoderRun:
    """The stages of a run and their results."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Raises `UserError` if --json has results of other settings."""
        pretraining_minutes = options.pretraining_minutes
        if pretraining_minutes is None:
            pretraining_minutes = PRETRAINING_SHARE * options.minutes
        self.clock = Clock(options.minutes, pretraining_minutes)
        if options.threads:
            torch.set_num_threads(options.threads)
        torch.set_flush_denormal(True)
        self.options, self.device = options, device_named(options.device)
        changes = {name: getattr(options, name) for name in RECIPE_OPTIONS}
        self.recipe = chosen_recipe(options.preset, changes)
        self.encoder = options.out / "encoder"
        self.results = self._results_so_far()
        self._data: dict[str, GlueData] = {}

    def run(self) -> bool:
        """Run what is missing; return False if the time is up before the end."""
        if not self.results["pretraining"].get("finished") and not self._pretrain():
            return False
        if not (self.encoder / CONFIG).exists():
            self._bring_the_encoder()
        return all(
            self._finetune(task, arm, seed)
            for seed in self.options.seeds
            for task in self.options.tasks
            for arm in ARMS
        )

    def _results_so_far(self) -> dict[str, Any]:
        settings = {name: getattr(self.options, name) for name in OF_THE_RESULT}
        new = {
            "benchmark": "encoder_run",
            "settings": settings | {"recipe": asdict(self.recipe)},
            "surroundings": surroundings(self.device),
            "pretraining": {},
            "finetuning": {},
        }
        return started_results(self.options.json, new, ["settings"])

    def _pretrain(self) -> bool:
        options = self.options
        stage = Pretraining(self.recipe, options.shards, self.device, options.out)
        finished = stage.run(
            self.clock,
            steps=options.steps,
            heldout_rows=options.heldout_rows,
            checkpoint_seconds=60 * options.checkpoint_minutes,
            report=self._report("pretraining"),
        )
        if not finished:
            return False
        stage.export(self.encoder)
        if options.pieces:
            write_pieces(self.encoder, options.pieces)
        figures = {"finished": True, "peak_memory_bytes": None}
        if self.device.type == "cuda":
            figures["peak_memory_bytes"] = torch.cuda.max_memory_allocated(self.device)
            peak = bfloat16_peak(self.device, seconds=PEAK_SECONDS)
            self.results["matmul_flops_per_second"] = peak
        self._report("pretraining")(stage.record | figures)
        stage.remove_checkpoints()
        return True

    def _bring_the_encoder(self) -> None:
        """Restore the encoder of these results from its pieces; raise `UserError` without any."""
        pieces = self.options.pieces
        if pieces is None or not join_pieces(pieces, self.encoder):
            raise UserError(
                "the pre-training of these results is finished, and its encoder is not here",
                str(self.encoder),
                "give the --out or --pieces that it went to, or another --json",
            )
        self.results["encoder_was_rounded_to"] = "float16"

    def _finetune(self, name: str, arm: str, seed: int) -> bool:
        stages = self.results["finetuning"]
        stage = stages.get(name, {"arms": {each: [] for each in ARMS}})
        if any(each["seed"] == seed for each in stage["arms"][arm]):
            return True
        if self.clock.is_over():
            return False
        options = self.options
        finetuning = Finetuning(self.recipe, self.encoder, self.device, options.out / "finetuning")
        if name not in self._data:
            self._data[name] = finetuning.read(name, options.glue, options.examples)
        data = self._data[name]
        found = finetuning.run(
            data,
            arm,
            seed,
            epochs=options.epochs,
            clock=self.clock,
            every=60 * options.checkpoint_minutes,
        )
        if found is None:
            return False
        stage["arms"][arm].append(found)
        counts = {"train": data.train.num_items, "dev": data.dev.num_items}
        described = {"criterion": data.task.criterion, "examples": counts, "gold": data.gold}
        stage = described | stage
        self.results["finetuning"][name] = stage | {"compared": compared(stage)}
        self._write()
        return True

    def _report(self, stage: str) -> Callable[[Record], None]:
        def keep(record: Record) -> None:
            self.results[stage] = record
            self._write()

        return keep

    def _write(self) -> None:
        write_results(self.results, self.options.json)


def main(arguments: list[str] | None = None) -> int:
    """Draw, or run what is missing: 0 when all is done, 130 when the time ran out before."""
    options = parse_arguments(arguments)
    if options.plot:
        draw(json.loads(options.json.read_text(encoding="utf-8")), options.plot)
        return 0
    run = EncoderRun(options)
    if not run.run():
        print("out of time; run the same command again to continue", flush=True)
        return OUT_OF_TIME
    print_results(run.results)
    return 0


def print_results(results: dict[str, Any]) -> None:
    """Print a line of results for each stage."""
    record = results["pretraining"]
    end = record["heldout"][-1]
    print(
        f"{record['step']:,} steps, {record['tokens']:,} tokens in {record['seconds'] / 60:.1f} "
        f"min: held-out masked-token loss {end['masked_token_loss']:.3f} (unigram "
        f"{end['unigram_loss']:.3f}), accuracy {end['masked_token_accuracy']:.1%}, next-sentence "
        f"accuracy {end['next_sentence_accuracy']:.1%}"
    )
    for name, stage in results["finetuning"].items():
        difference = stage["compared"]
        print(
            f"{name}: {stage['criterion']} {difference['pre-trained']:.3f} pre-trained, "
            f"{difference['untrained']:.3f} untrained, {difference['difference']:+.3f} "
            f"({difference['low']:+.3f} to {difference['high']:+.3f})"
        )


def draw(results: dict[str, Any], path: Path) -> None:
    """Draw the losses over the tokens read; `path` ends in .png or .svg.

    Imports matplotlib, which a machine that only trains may not have.
    """
    from workflows.reporting.figures import (
        BLUE,
        DASHED,
        GREY,
        INK,
        RED,
        new_figure,
        save_picture,
        set_title,
        tidy,
    )

    record = results["pretraining"]
    recipe, device = results["settings"]["recipe"], results["surroundings"]["device"]
    curve, heldout = record["curve"], record["heldout"]
    figure = new_figure(9, 4.8)
    axes = figure.add_subplot()
    minutes = record["seconds"] / 60
    title = f"{minutes:.1f} minutes of pre-training, {recipe['size']}, {device.partition(',')[0]}"
    set_title(axes, title)
    losses = [point["masked_token_loss"] for point in (*curve, *heldout)]
    for points, label, style in (
        (curve, "training, mean since the last point", {"color": BLUE, "linewidth": 1.6}),
        (
            heldout,
            "held-out documents",
            {"color": RED, "linewidth": 1.2, "marker": "o", "markersize": 4.5},
        ),
    ):
        tokens = [point["tokens"] / 1e6 for point in points]
        axes.plot(tokens, [point["masked_token_loss"] for point in points], label=label, **style)
    end, unigram = heldout[-1], heldout[-1]["unigram_loss"]
    axes.annotate(
        f"{end['masked_token_loss']:.2f}",
        (end["tokens"] / 1e6, end["masked_token_loss"]),
        xytext=(0, -17),
        textcoords="offset points",
        ha="center",
        color=RED,
        fontweight="bold",
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
    )
    line = axes.axhline(unigram, color=GREY, linewidth=1.3, linestyle=DASHED)
    line.set_label(f"unigram baseline, {unigram:.2f}")
    axes.set_xlabel("million tokens read", color=INK)
    axes.set_ylabel("masked-token loss (nats)", color=INK)
    axes.set_ylim(min(losses) - 0.2, unigram + SHOWN_ABOVE_UNIGRAM)
    axes.margins(x=0.02)
    axes.legend(frameon=False, labelcolor=INK, loc="upper right")
    tidy(axes)
    save_picture(figure, path)


def write_pieces(model: Path, folder: Path, piece_bytes: int = PIECE_BYTES) -> list[Path]:
    """Writes the encoder of a model folder as files of at most so many bytes; returns them.

    Weights are rounded to float16. Pieces of another encoder in `folder` are deleted.
    """
    weights = {name: each.half() for name, each in load_file(model / WEIGHTS).items()}
    texts = {name: (model / name).read_text(encoding="utf-8") for name in _WITH_THE_WEIGHTS}
    content = save(weights, metadata=texts)
    folder.mkdir(parents=True, exist_ok=True)
    for path in _pieces(folder):
        path.unlink()
    count = -(-len(content) // piece_bytes)
    digest = hashlib.sha256(content).hexdigest()[:16]
    paths = [folder / f"encoder-{digest}-{number}-of-{count}" for number in range(1, count + 1)]
    for number, path in enumerate(paths):
        path.write_bytes(content[number * piece_bytes : (number + 1) * piece_bytes])
    return paths


def join_pieces(folder: Path, model: Path) -> bool:
    """Restores a model folder from pieces; False if there are none.

    Raises `UserError` if one is missing or damaged.
    """
    paths = _pieces(folder)
    if not paths:
        return False
    content = b"".join(path.read_bytes() for path in paths)
    match = _NAME.fullmatch(paths[0].name)
    if match is None or hashlib.sha256(content).hexdigest()[:16] != match[1]:
        raise UserError("damaged or missing pieces of an encoder", str(folder),
                        "copy them again, or leave them out and pre-train")  # fmt: skip
    (length,) = struct.unpack("<Q", content[:8])
    texts = json.loads(content[8 : 8 + length])["__metadata__"]
    with tempfile.TemporaryDirectory() as temporary:
        whole = Path(temporary)
        for name in _WITH_THE_WEIGHTS:
            (whole / name).write_text(texts[name], encoding="utf-8")
        save_file({name: each.float() for name, each in load(content).items()}, whole / WEIGHTS)
        _, loaded, tokenizer = load_model_folder(whole)
    save_model_folder(model, loaded, tokenizer, texts["README.md"])
    return True


def _pieces(folder: Path) -> list[Path]:
    """The pieces in a folder, in order."""
    found = {path: _NAME.fullmatch(path.name) for path in folder.glob("encoder-*-of-*")}
    numbers = {path: int(match[2]) for path, match in found.items() if match}
    return sorted(numbers, key=numbers.__getitem__)


if __name__ == "__main__":
    run_program(main)
