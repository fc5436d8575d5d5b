"""The nine tasks of GLUE by name, in the files as they were published (Wang et al. 2018)."""

from bert_core.tasks.classification import Classification

ENTAILMENT = ("entailment", "not_entailment")

GLUE: dict[str, Classification] = {
    "cola": Classification(
        header=False, text_column="3", label_column="1", labels=("0", "1"), metric="matthews"
    ),
    "sst2": Classification(text_column="sentence", labels=("0", "1")),
    "mrpc": Classification(
        text_column="#1 String",
        second_column="#2 String",
        label_column="Quality",
        labels=("0", "1"),
        metric="f1",
    ),
    "stsb": Classification(
        kind="regression",
        text_column="sentence1",
        second_column="sentence2",
        label_column="score",
        metric="spearman",
    ),
    "qqp": Classification(
        text_column="question1",
        second_column="question2",
        label_column="is_duplicate",
        labels=("0", "1"),
        skip_ragged=True,
        metric="f1",
    ),
    "mnli": Classification(
        text_column="sentence1",
        second_column="sentence2",
        label_column="gold_label",
        labels=("entailment", "neutral", "contradiction"),
    ),
    "qnli": Classification(text_column="question", second_column="sentence", labels=ENTAILMENT),
    "rte": Classification(text_column="sentence1", second_column="sentence2", labels=ENTAILMENT),
    "wnli": Classification(text_column="sentence1", second_column="sentence2", labels=("0", "1")),
}
"""The metric is the one that the paper's table 1 reports: F1 for MRPC and QQP, Spearman for STS-B,
Matthews for CoLA, accuracy for the others."""
