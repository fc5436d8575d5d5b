"""What a pre-training run tells of itself: its figures by name, its rows and masks in words."""

from typing import TYPE_CHECKING

from bert_core.settings import Objective, RowSettings

if TYPE_CHECKING:
    from bert_core.training.loop import StepResult

_NEXT_TOKENS = {
    "masked_token_loss": "next_token_loss",
    "masked_token_accuracy": "next_token_accuracy",
    "perplexity": "next_token_perplexity",
}
"""Names of their own: losses of masked and of next tokens, of other questions, must not meet."""


def metric_name(objective: Objective, name: str) -> str:
    """What a figure of masked tokens is called under an objective: left to right, of next ones."""
    return _NEXT_TOKENS.get(name, name) if objective == "left_to_right" else name


def predicted(objective: Objective) -> str:
    """What is predicted, in words: `masked-token` or `next-token`."""
    return "next-token" if objective == "left_to_right" else "masked-token"


def step_metrics(result: "StepResult", objective: Objective) -> dict[str, float]:
    """The metrics of one step by name: means over the global batch."""
    sums = result.sums.tolist()
    predictions, rows = max(sums[2], 1), max(sums[5], 1)
    metrics = {
        "train/loss": float(result.loss),
        f"train/{metric_name(objective, 'masked_token_loss')}": sums[0] / predictions,
        f"train/{metric_name(objective, 'masked_token_accuracy')}": sums[1] / predictions,
        "train/learning_rate": result.learning_rate,
        "train/gradient_norm": float(result.gradient_norm),
    }
    if sums[5]:
        metrics["train/next_sentence_loss"] = sums[3] / rows
        metrics["train/next_sentence_accuracy"] = sums[4] / rows
    return metrics


def described_rows(rows: RowSettings) -> str:
    """The objective, and what of rows and masks is other than the paper's, in a line."""
    default, parts = RowSettings(), [str(rows.objective)]
    if rows.input_format != default.input_format:
        parts.append(rows.input_format)
    if rows.masked_share != default.masked_share:
        parts.append(f"{rows.masked_share:.4g} of the tokens predicted")
    shares = rows.mask_token_share, rows.random_token_share, rows.same_token_share
    if shares[:2] != (default.mask_token_share, default.random_token_share):
        names = ("[MASK]", "random", "the same")
        pairs = zip(shares, names, strict=True)
        parts.append("of these " + " / ".join(f"{share:.4g} {name}" for share, name in pairs))
    if rows.whole_word:
        parts.append("whole words")
    return ", ".join(parts)


def is_as_in_the_paper(rows: RowSettings) -> bool:
    """Whether `described_rows` says nothing but the paper's objective."""
    return described_rows(rows) == RowSettings().objective
