from pathlib import Path

import pytest

from bert_core.tasks.glue import GLUE

REAL = Path(__file__).parents[4] / "shared" / "data" / "glue"

FILES = {
    "cola": ("gj04\t0\t*\tThey drank the pub.\n", ("They drank the pub.", None, "0")),
    "sst2": ("sentence\tlabel\na fine film \t1\n", ("a fine film", None, "1")),
    "mrpc": (
        '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tHe said, "No\tNo, he said\n',
        ('He said, "No', "No, he said", "1"),
    ),
    "stsb": (
        "index\tgenre\tsentence1\tsentence2\tscore\n0\tnews\tA man.\tA woman.\t2.500\n",
        ("A man.", "A woman.", 2.5),
    ),
    "qqp": (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
        "1\t2\t3\tbroken\n1\t2\t3\tWhy?\tHow?\t0\n",
        ("Why?", "How?", "0"),
    ),
    "mnli": (
        "index\tsentence1\tsentence2\tlabel1\tgold_label\n"
        "0\tIt rains.\tIt is wet.\tx\tentailment\n",
        ("It rains.", "It is wet.", "entailment"),
    ),
    "qnli": (
        "index\tquestion\tsentence\tlabel\n0\tWho?\tNobody.\tnot_entailment\n",
        ("Who?", "Nobody.", "not_entailment"),
    ),
    "rte": (
        "index\tsentence1\tsentence2\tlabel\n0\tA.\tB.\tentailment\n",
        ("A.", "B.", "entailment"),
    ),
    "wnli": ("index\tsentence1\tsentence2\tlabel\n0\tA.\tB.\t1\n", ("A.", "B.", "1")),
}

EXAMPLES = {
    "cola": ("CoLA", 8551, 1043),
    "sst2": ("SST-2", 67349, 872),
    "mrpc": ("MRPC", 3668, 408),
    "rte": ("RTE", 2490, 277),
    "wnli": ("WNLI", 635, 71),
    "qnli": ("QNLI", 0, 5463),
}


@pytest.mark.parametrize("name", GLUE)
def test_the_published_format_is_read(name, tmp_path):
    text, expected = FILES[name]
    (tmp_path / "train.tsv").write_text(text, encoding="utf-8")
    (found,) = GLUE[name].examples(tmp_path, "train")
    assert (found.first, found.second, found.answer) == expected
    assert GLUE[name].criterion in {"accuracy", "f1", "matthews", "spearman"}


def test_mnli_has_two_dev_sets(tmp_path):
    for split in ("matched", "mismatched"):
        text = FILES["mnli"][0].replace("rains", split)
        (tmp_path / f"dev_{split}.tsv").write_text(text)
    for split, word in (("dev", "matched"), ("dev_mismatched", "mismatched")):
        (found,) = GLUE["mnli"].examples(tmp_path, split)
        assert found.first == f"It {word}."


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_real_files_have_their_published_sizes(name):
    folder, num_train, num_dev = EXAMPLES[name]
    if not REAL.exists():
        pytest.skip("../shared/data is not beside this checkout")
    for split, count in (("train", num_train), ("dev", num_dev)):
        if count:
            examples = GLUE[name].examples(REAL / folder, split)
            assert len(examples) == count
            assert {each.answer for each in examples} == set(GLUE[name].labels)
