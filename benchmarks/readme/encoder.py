"""The README's block on an encoder that was trained in minutes: its picture, its figures."""

from pathlib import Path

from benchmarks.readme.parts import RESULTS, Results, link, read_results, table
from bert_core.errors import UserError

PREFIX = "encoder-run-"
COMMAND = "python -m benchmarks.encoder_run"
TITLES = {"sst2": "SST-2", "mrpc": "MRPC", "cola": "CoLA", "qnli": "QNLI", "rte": "RTE"}
METRICS = {"accuracy": "accuracy", "f1": "F1", "matthews": "Matthews"}


def encoder_run_block(root: Path) -> str:
    """Picture and tables of each run, that of a GPU first; raises `UserError` without a picture."""
    names = sorted(path.stem for path in (root / RESULTS).glob(f"{PREFIX}*.json"))
    results = {name: read_results(root, name) for name in names}
    names.sort(key=lambda name: results[name]["settings"]["device"] != "cuda")
    parts = [_described(root, name, results[name]) for name in names]
    if not any(each["settings"]["device"] == "cuda" for each in results.values()):
        missing = "Still to be measured: an encoder pre-trained and fine-tuned on a GPU"
        parts.append(f"{missing}\n(`{COMMAND} --device cuda`).\n")
    return "\n".join(parts)


def picture_path(name: str) -> str:
    """Where the picture of these results belongs, seen from the root."""
    return f"docs/{name}.svg"


def _described(root: Path, name: str, result: Results) -> str:
    picture = picture_path(name)
    if not (root / picture).exists():
        remedy = f"{COMMAND} --plot {picture} --json {RESULTS}/{name}.json"
        raise UserError("figures without their picture", picture, remedy)
    parts = [
        f"![Masked-token loss over the tokens read]({picture})\n",
        _pretraining(result),
        _surroundings(name, result),
    ]
    if result["finetuning"]:
        parts += [_finetuning(result), _alike(result)]
    return "\n".join(parts)


def _pretraining(result: Results) -> str:
    record, recipe = result["pretraining"], result["settings"]["recipe"]
    end = record["heldout"][-1]
    header = ["encoder", "steps", "tokens read", "minutes", "held-out masked-token loss"]
    header += ["unigram baseline", "accuracy", "next-sentence accuracy"]
    row = [
        f"`{recipe['size']}`, {record['parameters'] / 1e6:.0f} M, {record['vocabulary']:,} words",
        f"{record['step']:,}",
        f"{record['tokens'] / 1e6:,.0f} M",
        f"{record['seconds'] / 60:.1f}",
        f"{end['masked_token_loss']:.2f}",
        f"{end['unigram_loss']:.2f}",
        f"{end['masked_token_accuracy']:.1%}",
        f"{end['next_sentence_accuracy']:.1%}",
    ]
    return table(header, [row], right=range(1, 8))


def _surroundings(name: str, result: Results) -> str:
    record, around = result["pretraining"], result["surroundings"]
    rate = record["tokens"] / record["seconds"]
    passes = record["tokens"] / record["train_tokens"]
    cpu = "" if result["settings"]["device"] == "cuda" else "A demonstration on a CPU: "
    peak = result.get("matmul_flops_per_second")
    mfu = f" ({record['flops'] / record['seconds'] / peak:.0%} MFU)" if peak else ""
    where = "on" if cpu else "On"
    return (
        f"{cpu}{where} {around['device']}, torch {around['torch']}: {rate:,.0f} real tokens/s{mfu},"
        f" {passes:.1f} passes over\n{record['train_tokens'] / 1e6:.1f} million tokens of text, "
        f"steps of {record['rows_per_step']} rows of up to "
        f"{result['settings']['recipe']['sequence_length']} ({link(name)}).\n"
    )


def _finetuning(result: Results) -> str:
    rows = []
    for task, stage in result["finetuning"].items():
        found = stage["compared"]
        if found is None:
            continue
        rows.append(
            [
                TITLES.get(task, task),
                f"{stage['examples']['train']:,} x {result['settings']['epochs']}",
                METRICS[stage["criterion"]],
                f"{100 * found['pre-trained']:.1f}",
                f"{100 * found['untrained']:.1f}",
                f"{100 * found['difference']:+.1f} ({100 * found['low']:+.1f} to "
                f"{100 * found['high']:+.1f})",
            ]
        )
    header = ["task", "examples x epochs", "metric on dev", "pre-trained", "untrained"]
    return table([*header, "difference, 95 % interval"], rows, right=(3, 4))


def _alike(result: Results) -> str:
    recipe = result["settings"]["recipe"]
    runs = next(iter(result["finetuning"].values()))["arms"]["pre-trained"]
    seeds = f"the mean of {len(runs)} seeds" if len(runs) > 1 else "one seed"
    return (
        f"Untrained are the weights that the pre-training began with; both in steps of "
        f"{recipe['finetuning_rows']} at\n{recipe['finetuning_learning_rate']:g}, after the last "
        f"epoch, {seeds}; the interval is over the examples of dev.\n"
    )
