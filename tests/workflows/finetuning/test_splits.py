"""How training examples are divided, and what train and dev share."""

import json
from collections import Counter

import numpy as np
import pytest
from finetuning_runs import arguments, write_encoder, write_tagged, write_task

from bert_core.errors import UserError
from bert_core.tasks.catalog import TASKS
from bert_core.tasks.text_embedding import RelatedTexts, TextEmbedding
from bert_core.tokenizer import load_tokenizer
from workflows.finetune import parse
from workflows.finetuning.data import read_task_data
from workflows.finetuning.splits import Division, balanced_parts, overlap, unlabelled_examples


def parts(strata, group=None, shares=(0.2,) * 5, seed=0):
    group = np.arange(len(strata)) if group is None else np.asarray(group)
    return balanced_parts(strata, group, shares, seed)


def test_each_label_has_its_share_of_each_part():
    strata = [["rare"]] * 23 + [["common"]] * 477
    found = parts(strata)
    for label in ("rare", "common"):
        own = np.bincount(found[[each == [label] for each in strata]], minlength=5)
        assert own.max() - own.min() <= 1
    assert np.ptp(np.bincount(found)) <= 1
    tenth = parts(strata, shares=(0.1, 0.9))
    assert Counter(tenth[:23].tolist()) == {0: 2, 1: 21}
    assert Counter(tenth.tolist()) == {0: 50, 1: 450}


@pytest.mark.parametrize(("labels", "each"), [(77, 4), (30, 3), (20, 2), (200, 1)])
def test_many_labels_of_few_examples_leave_something_for_a_small_part(labels, each):
    strata = [[str(number % labels)] for number in range(labels * each)]
    dev = [
        label
        for (label,), part in zip(strata, parts(strata, shares=(0.1, 0.9)), strict=True)
        if part == 0
    ]
    assert len(dev) == labels * each // 10 and len({*dev}) == len(dev)


def test_rare_ones_of_several_labels_are_spread_first():
    draw = np.random.default_rng(1)
    strata = [["a"] * (draw.random() < 0.9) + ["b"] * (draw.random() < 0.05) for _ in range(400)]
    found = parts(strata)
    for label in ("a", "b"):
        own = np.bincount(found[[label in each for each in strata]], minlength=5)
        assert own.max() - own.min() <= 2, label


def test_groups_stay_together_and_parts_are_of_a_size():
    draw = np.random.default_rng(2)
    group = draw.integers(0, 60, 900)
    strata = [["x"] if draw.random() < 0.1 else ["y"] for _ in range(900)]
    found = parts(strata, np.unique(group, return_inverse=True)[1])
    for each in np.unique(group):
        assert len(set(found[group == each].tolist())) == 1
    assert np.ptp(np.bincount(found)) <= 10
    rare = np.bincount(found[[each == ["x"] for each in strata]], minlength=5)
    assert np.ptp(rare) <= 8


def test_the_seed_decides_and_the_division_is_the_same_everywhere():
    strata = [[str(number % 3)] for number in range(60)]
    assert parts(strata, seed=4).tolist() == parts(strata, seed=4).tolist()
    assert parts(strata, seed=4).tolist() != parts(strata, seed=5).tolist()
    # Runs resume under the data that they began with: these numbers may not change.
    found = parts([[str(number % 2)] for number in range(12)], shares=(0.25, 0.75))
    assert found.tolist() == [1, 1, 1, 0, 1, 0, 1, 1, 1, 1, 0, 1]


@pytest.fixture
def storage(tmp_path):
    write_task(tmp_path / "data")
    write_encoder(tmp_path / "encoder")
    return tmp_path


def read(storage, *more, **changed):
    given = [*arguments(storage, **changed), *more]
    return read_task_data(parse(given), load_tokenizer(storage / "encoder"))


def one_file(storage, rows, name="all.csv", header="text,label,author"):
    path = storage / name
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def texts(split):
    return [example.first for example in split.examples]


def test_one_file_is_enough(storage):
    rows = [f"ba keli {'to ' * (n % 40)}monu {n},{'up' if n % 4 else 'down'},a" for n in range(80)]
    path = one_file(storage, rows)
    with pytest.raises(UserError, match=r"add --split 0.1"):
        read(storage, data=path)
    data = read(storage, data=path, split=0.25)
    assert (len(data.train.examples), len(data.dev.examples)) == (60, 20)
    assert Counter(each.answer for each in data.dev.examples) == {"up": 15, "down": 5}
    assert not {*texts(data.train)} & {*texts(data.dev)}
    assert data.sha256 == read(storage, data=path, split=0.25).sha256
    assert data.sha256 != read(storage, data=path, split=0.25, split_seed=1).sha256
    expected = "split    dev is 0.25 of the training examples, seed 0: 20 of 80 examples"
    assert expected in data.tally_lines


def test_the_folds_are_all_examples_once(storage):
    folds = [read(storage, folds=5, fold=number) for number in range(5)]
    whole = read(storage)
    assert sorted(sum((texts(each.dev) for each in folds), [])) == sorted(texts(whole.train))
    for each in folds:
        assert len(each.train.examples) + len(each.dev.examples) == 90
        assert not each.overlaps and each.task.labels == ("down", "up")
    assert len({each.sha256 for each in folds}) == 5


def test_what_split_holds_out_is_in_no_fold(storage):
    held_out = texts(read(storage, split=0.2).dev)
    folds = [read(storage, split=0.2, folds=3, fold=number) for number in range(3)]
    found = sum((texts(each.dev) for each in folds), [])
    assert sorted(found + held_out) == sorted(texts(read(storage).train))
    assert {*found}.isdisjoint(held_out)
    for each in folds:
        assert {*texts(each.train)}.isdisjoint(held_out)
        assert len(each.train.examples) + len(each.dev.examples) == 90 - len(held_out)


def test_a_list_of_examples_to_leave_out_may_name_those_held_out(storage):
    suspects = storage / "suspects.csv"
    both = {"split": 0.2, "folds": 3, "fold": 0}
    held_out = read(storage, split=0.2).dev.examples
    train = read(storage, **both).train.examples
    lines = [f"{each.where},{each.first}" for each in (held_out[0], train[0])]
    suspects.write_text("\n".join(["where,text", *lines]) + "\n")
    found = read(storage, exclude=suspects, **both)
    assert texts(found.train) == [each.first for each in train[1:]]
    (told,) = (line for line in found.tally_lines if line.startswith("split"))
    assert told == next(
        line for line in read(storage, **both).tally_lines if line.startswith("split")
    )


def test_records_without_a_group_are_divided_one_by_one(storage):
    path = storage / "all.jsonl"
    rows = [
        {"text": f"ba {n}", "label": "up" if n % 3 else "down"} | ({"g": n % 5} if n % 2 else {})
        for n in range(60)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = read(storage, "--group_by", "g", data=path, split=0.3)
    groups = [
        {each.columns["g"] for each in split.examples if "g" in each.columns}
        for split in (data.train, data.dev)
    ]
    assert groups[0].isdisjoint(groups[1]) and len(data.dev.examples) > 10


def test_unlabelled_text_need_not_be_written_as_train_is(tmp_path):
    path = tmp_path / "more.jsonl"
    path.write_text('{"text": "ba keli"}\n')
    task = TASKS["classification"].model_copy(update={"header": False, "text_column": "text"})
    (example,) = unlabelled_examples(task, [path])
    assert example.first == "ba keli"


def test_a_label_that_only_dev_has_is_known(storage):
    rows = [f"ba {n} {'keli ' * n},up,a" for n in range(30)] + ["monu,once,a", "vuza,down,a"]
    path = one_file(storage, rows)
    folds = [read(storage, data=path, folds=4, fold=fold) for fold in range(4)]
    assert all("once" in each.task.labels for each in folds)
    told = [line for each in folds for line in each.tally_lines if "only dev has" in line]
    assert sorted("".join(told).split("lost     labels that only dev has: ")[1:]) in (
        ["down", "once"],
        ["down, once"],
    )


def test_equal_texts_and_groups_do_not_leak(storage):
    rows = [f"ba {'keli ' * (n % 7)}x,{'up' if n % 3 else 'down'},{n % 12}" for n in range(84)]
    path = one_file(storage, rows)
    data = read(storage, data=path, split=0.3)
    assert {*texts(data.train)}.isdisjoint(texts(data.dev))
    rows = [f"ba {n},{'up' if n % 3 else 'down'},{n % 12}" for n in range(84)]
    path = one_file(storage, rows)
    data = read(storage, "--group_by", "author", data=path, split=0.3)
    authors = [
        {each.columns["author"] for each in split.examples} for split in (data.train, data.dev)
    ]
    assert authors[0].isdisjoint(authors[1]) and len(data.dev.examples) in range(20, 32)
    with pytest.raises(UserError, match="no column autor, did you mean author"):
        read(storage, "--group_by", "autor", data=path, split=0.3)
    with pytest.raises(UserError, match="groups of column author do not fill 20 parts"):
        read(storage, "--group_by", "author", data=path, folds=20, fold=0)
    rows = [f"ba {n},{'up' if n % 2 else 'down'},{'' if n < 60 else 'a'}" for n in range(70)]
    path = one_file(storage, rows)
    data = read(storage, "--group_by", "author", data=path, folds=5, fold=0)
    assert len(data.dev.examples) == 14, "rows without an author are no group"


def test_a_text_of_several_groups_does_not_join_them(storage):
    rows = [
        f"ba {f'keli {n}' if n % 4 else 'to'},{'up' if n % 3 else 'down'},{n // 4}"
        for n in range(80)
    ]
    path = one_file(storage, rows)
    data = read(storage, "--group_by", "author", data=path, split=0.25)
    assert len(data.dev.examples) == 20 and data.overlaps["dev"].count == 5
    assert any(line.startswith("overlap  of dev 5 have") for line in data.tally_lines)
    rows = [f"ba to,up,{'a' if n else ''}" for n in range(40)] + ["monu,down,b"]
    with pytest.raises(UserError, match=r"the largest group, of .*all.csv:3, has 39 of 41"):
        read(storage, "--group_by", "author", data=one_file(storage, rows), folds=5, fold=0)
    sentences = [
        f"{word} O\n\n" for n in range(60) for word in ("monu" if n % 3 else "ba", f"to{n}")
    ]
    starts = ["-DOCSTART- O\n\n" if n % 4 == 0 else "" for n in range(120)]
    path = storage / "all.txt"
    path.write_text("".join(map("".join, zip(starts, sentences, strict=True))) + "keli B-X\n")
    data = read(storage, task="ner", data=path, split=0.25)
    assert len(data.dev.examples) in range(28, 33)
    documents = [{each.document for each in split.examples} for split in (data.train, data.dev)]
    assert documents[0].isdisjoint(documents[1])


def test_sentences_of_tags_and_numbers_are_divided_too(storage):
    write_tagged(storage / "tagged", train=60)
    data = read(storage, task="tagging", data=storage / "tagged", folds=3, fold=1)
    assert len(data.dev.examples) in range(18, 23) and data.task.labels[0] == "B-ONE"
    rows = [f"ba {'keli ' * (n % 9)}{n},{n / 10},a" for n in range(100)]
    path = one_file(storage, rows)
    given = {"data": path, "split": 0.2, "options.kind": "regression"}
    data = read(storage, task="classification", **given)
    assert len(data.dev.examples) == 20
    means = [np.mean([each.answer for each in split.examples]) for split in (data.train, data.dev)]
    assert abs(means[0] - means[1]) < 0.5


@pytest.mark.parametrize("name", ["classification", "multiple", "regression", "mrpc", "swag"])
def test_answers_of_unlabelled_examples_are_not_read(tmp_path, name):
    task = TASKS.get(name) or TASKS["classification"].model_copy(update={"kind": name})
    names = ["text", "#1 String", "#2 String", "sent1", "sent2", *(f"ending{n}" for n in range(4))]
    record = dict.fromkeys(names, "ba") | {"label": {"to": "do"}, "Quality": [1, {}]}
    path = tmp_path / "more.jsonl"
    path.write_text(json.dumps(record) + "\n")
    (example,) = unlabelled_examples(task, [path])
    assert example.answer is None and "ba" in task.texts(example)[0]


def test_what_dev_shares_with_train_is_counted(storage):
    folder = storage / "data"
    lines = (folder / "train.tsv").read_text().splitlines()
    dev = (folder / "dev.tsv").read_text().splitlines()
    text, label = lines[1].split("\t")
    other = {"up": "down", "down": "up"}[label]
    new = [f"{text.upper()}\t{label}", f" {text}\t{other}", f"cafe\u0301\t{label}"]
    (folder / "train.tsv").write_text("\n".join([*lines, f"caf\u00e9\t{label}"]) + "\n")
    (folder / "dev.tsv").write_text("\n".join([*dev, *new]) + "\n")
    known = {line.split("\t")[0] for line in lines}
    before = [line.split("\t") for line in dev[1:] if line.split("\t")[0] in known]
    found = read(storage).overlaps["dev"]
    assert found.count == len(before) + 3 and found.contradicting >= 1
    expected = f"overlap  of dev {found.count} have a text of train, {found.contradicting} of them"
    assert any(line.startswith(expected) for line in read(storage).tally_lines)
    task = TASKS["classification"]
    assert overlap(task, [], read(storage).dev.examples).count == 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--split", "0.001", "--folds", "3", "--fold", "0"], "too few"),
        (["--folds", "3"], r"which fold is dev\?: --folds 3"),
        (["--folds", "3", "--fold", "3"], "no such fold.*below 3"),
        (["--fold", "3"], "no such fold.*--folds 5"),
        (["--split", "0.1", "--dev", "d.tsv"], "takes dev from the training examples"),
        (["--group_by", "author"], "nothing is divided: --group_by"),
        (["--split_seed", "3"], "nothing is divided: --split_seed"),
        (["--folds", "90", "--fold", "0"], "too few"),
        (["--split", "0.001"], "too few.*a larger --split"),
        (["--split", "0.999"], "too few.*a smaller --split"),
    ],
)
def test_what_cannot_be_divided_is_refused(storage, more, message):
    with pytest.raises(UserError, match=message) as error:
        read(storage, *more)
    assert "\n" not in str(error.value)


def test_a_run_without_a_division_keeps_its_name(storage):
    recipe = parse(arguments(storage)).recipe()
    assert not recipe.keys() & {"split", "folds", "fold", "group_by", "split_seed"}
    assert str(Division((0.25,) * 4, 2, of_folds=True)) == "dev is fold 2 of 4, seed 0"
    assert str(Division((0.5,) * 2, 1, of_folds=True)) == "dev is fold 1 of 2, seed 0"


def test_wrong_answers_that_many_share_join_no_examples():
    passages = [f"passage {number}" for number in range(100)]
    examples = [
        RelatedTexts((f"query {n}", *(passages[(n + step) % 100] for step in range(8))), True)
        for n in range(100)
    ]
    task = TextEmbedding(negative_columns=("negatives",))
    train, dev = Division((0.1, 0.9)).divide(task, examples, "data")
    assert (len(train), len(dev)) == (90, 10)
