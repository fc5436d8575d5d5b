"""Entity metrics: equal to conlleval, written down here once more, and to seqeval on all words."""

import collections
import functools
import random
import re
import string
import unicodedata
from collections import Counter

import numpy as np
import pytest
import sklearn.metrics
from hostile_labels import HOSTILE_LABELS
from hypothesis import example, given
from hypothesis import strategies as st
from seqeval.metrics import accuracy_score, f1_score, precision_score, recall_score

from bert_core.tasks.metrics import (
    METRIC_NAME,
    answer_scores,
    best_threshold,
    correlation_metrics,
    entity_metrics,
    label_metrics,
    metric_parts,
    multi_label_metrics,
    normalize_answer,
    readable_metric,
    squad_metrics,
    squad_v2_metrics,
    tuned_threshold,
)
from bert_core.tasks.squad import Answer, Question, read_squad


def test_label_metrics_by_hand():
    gold, found = list("yyyynnnnnn"), list("yyynnnnnny")  # 3 hits, 1 miss, 1 false, 5 rejections
    metrics = label_metrics(gold, found, ("n", "y"))
    assert metrics["accuracy"] == pytest.approx(0.8)
    assert metrics["f1"] == pytest.approx(2 * 3 / (2 * 3 + 1 + 1)), "of the second label"
    assert metrics["f1_macro"] == pytest.approx((0.75 + 10 / 12) / 2)
    assert metrics["matthews"] == pytest.approx((3 * 5 - 1) / np.sqrt(4 * 4 * 6 * 6))


def test_what_is_undefined_is_zero():
    metrics = label_metrics(["n", "n"], ["n", "n"], ("n", "y"))
    assert (metrics["f1"], metrics["matthews"], metrics["accuracy"]) == (0, 0, 1)
    assert "f1" not in label_metrics(["a", "b"], ["a", "c"], ("a", "b", "c"))
    assert correlation_metrics([1, 2, 3], [2, 2, 2])["pearson"] == 0


def test_several_labels_by_hand():
    gold, found = [("a",), ("a", "b"), ()], [("a",), ("b",), ("c",)]
    metrics = multi_label_metrics(gold, found, ("a", "b", "c"))
    assert metrics["exact_match"] == pytest.approx(1 / 3)
    assert metrics["f1_micro"] == pytest.approx(2 * 2 / (3 + 3))
    assert metrics["f1_macro"] == pytest.approx((2 / 3 + 1 + 0) / 3)


def test_macro_f1_is_of_the_labels_that_occur():
    gold, found = list("nnyy"), list("nnyn")
    expected = sklearn.metrics.f1_score(gold, found, average="macro")
    assert label_metrics(gold, found, ("maybe", "n", "y"))["f1_macro"] == expected
    assert label_metrics(["n"], ["n"], ("n", "y"))["f1_macro"] == 1
    assert label_metrics(["n"], ["y"], ("n", "y", "z"))["f1_macro"] == 0, "of what is predicted too"
    sets = multi_label_metrics([("a",), ("a",)], [("a",), ()], ("a", "never"))
    assert sets["f1_macro"] == pytest.approx(2 / 3)
    assert multi_label_metrics([()], [()], ("a", "b"))["f1_macro"] == 0


def test_correlations_by_hand():
    metrics = correlation_metrics([1, 2, 3, 4], [1, 4, 9, 16])
    assert metrics["spearman"] == pytest.approx(1)
    assert metrics["pearson"] == pytest.approx(np.corrcoef([1, 2, 3, 4], [1, 4, 9, 16])[0, 1])
    assert metrics["correlation"] == pytest.approx((1 + metrics["pearson"]) / 2)
    assert metrics["mean_squared_error"] == pytest.approx((0 + 4 + 36 + 144) / 4)


def as_a_database_may_compare(name):
    """Without case, accents and spaces at the end, as MySQL does by default."""
    letters = unicodedata.normalize("NFKD", name).casefold().rstrip()
    return "".join(letter for letter in letters if not unicodedata.combining(letter))


def check_parts(labels):
    from mlflow.utils.validation import _validate_metric_name, _validate_tag_name

    parts = metric_parts(labels)
    assert parts.keys() == set(labels)
    names = [f"metric.champion/dev/f1_{part}" for part in parts.values()]
    for name in names:
        assert METRIC_NAME.fullmatch(name)
        _validate_metric_name(name)
        _validate_tag_name(name)
        assert name.rpartition("/")[2] == name.split("/dev/")[1], "no label parts the name"
    assert len(set(map(as_a_database_may_compare, names))) == len(names)
    for label, part in parts.items():
        if not re.search(r"_xH[0-9a-f]{16}_$", part):
            assert readable_metric(f"f1_{part}") == f"f1_{label}"


def test_any_label_becomes_a_part_of_a_metrics_name_of_its_own():
    check_parts(HOSTILE_LABELS)


@example({"x0000;", "x0041_b", "_x0041;", "X0041 ", "a_x00411/"})
@given(st.sets(st.text(st.characters()) | st.text("aAàÀ_x04/;. \u0300"), max_size=12))
def test_labels_of_any_characters_do_not_collide(labels):
    check_parts(labels)


def test_ordinary_labels_stay_as_they_are():
    plain = ("PER", "X-Y", "Steuerliche_Abzüge", "a.b", "geo:loc", "very positive", "中文", "x2_x")
    assert metric_parts(plain) == {each: each for each in plain}
    assert metric_parts(["R&D"]) == {"R&D": "R_x0026_D"}
    assert metric_parts(["PER", "per"])["PER"] == "PER"


def chunks(sentence):
    """Types, first and last words, after startOfChunk and endOfChunk of conlleval.pl."""
    found, open_chunk = set(), None
    previous = ("O", "")
    for index, tag in enumerate([*sentence, "O"]):
        prefix, _, kind = tag.partition("-")
        before, kind_before = previous
        ends = before in "ES" or (before in "BI" and prefix in "BSO")
        ends = ends or (before != "O" and kind != kind_before)
        starts = prefix in "BS" or (before in "ESO" and prefix in "EI")
        starts = starts or (prefix != "O" and kind != kind_before)
        if ends and open_chunk is not None:
            found.add((*open_chunk, index - 1))
            open_chunk = None
        if starts:
            open_chunk = (kind, index)
        previous = (prefix, kind)
    return found


def conlleval(gold, found):
    """Precision, recall and F1 of all types together ("") and of each."""
    wanted, guessed, right = Counter(), Counter(), Counter()
    for gold_tags, found_tags in zip(gold, found, strict=True):
        gold_chunks, found_chunks = chunks(gold_tags), chunks(found_tags)
        for counter, some in (
            (wanted, gold_chunks),
            (guessed, found_chunks),
            (right, gold_chunks & found_chunks),
        ):
            counter.update([kind for kind, *_ in some] + [""] * len(some))
    scores = {}
    for kind in wanted.keys() | guessed.keys():
        precision = right[kind] / guessed[kind] if guessed[kind] else 0
        recall = right[kind] / wanted[kind] if wanted[kind] else 0
        f1 = 2 * precision * recall / (precision + recall) if right[kind] else 0
        scores[kind] = (precision, recall, f1)
    return scores


def random_tags(choose, lengths, prefixes):
    names = ["O"] * 4 + [
        f"{prefix}-{kind}" for prefix in prefixes for kind in ("PER", "LOC", "X-Y")
    ]
    return [choose.choices(names, k=length) for length in lengths]


def altered(choose, sentences, names):
    return [[choose.choice(names) if choose.random() < 0.15 else t for t in s] for s in sentences]


@pytest.mark.parametrize("prefixes", ["BI", "BBII", "BIES"])
def test_any_tags_are_counted_as_by_conlleval(prefixes):
    choose = random.Random(prefixes)
    gold = random_tags(choose, [choose.randint(1, 15) for _ in range(300)], prefixes)
    found = altered(choose, gold, ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"])
    metrics = entity_metrics(gold, found)
    expected = conlleval(gold, found)
    assert 0.2 < metrics["f1"] < 0.9
    assert [metrics[name] for name in ("precision", "recall", "f1")] == pytest.approx(expected[""])
    assert {name for name in metrics if name.startswith("f1_")} == {"f1_LOC", "f1_PER", "f1_X-Y"}
    for kind in ("PER", "LOC", "X-Y"):
        assert metrics[f"f1_{kind}"] == pytest.approx(expected[kind][2])
    assert metrics["precision"] == pytest.approx(precision_score(gold, found))
    assert metrics["recall"] == pytest.approx(recall_score(gold, found))
    assert metrics["f1"] == pytest.approx(f1_score(gold, found))
    # conlleval counts a word as right when prefix and type are: invalid tags as they are written.
    pairs = [pair for both in zip(gold, found, strict=True) for pair in zip(*both, strict=True)]
    assert metrics["accuracy"] == sum(wanted == guessed for wanted, guessed in pairs) / len(pairs)
    assert metrics["accuracy"] == pytest.approx(accuracy_score(gold, found))


def test_the_accuracy_of_invalid_tags_by_hand():
    gold = [["O", "B-PER", "I-PER"]]
    for invalid in (["O", "I-PER", "I-PER"], ["O", "B-PER", "I-LOC"], ["I-LOC", "B-PER", "I-PER"]):
        assert entity_metrics(gold, [invalid])["accuracy"] == 2 / 3
    assert entity_metrics(gold, [["O", "I-PER", "I-PER"]])["f1"] == 1, "the entity is the same"


def test_a_case_by_hand():
    gold = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-LOC", "B-LOC"]]
    found = [["B-PER", "I-PER", "O", "B-PER"], ["B-LOC", "I-LOC", "B-LOC"]]
    assert entity_metrics(gold, found, ["LOC", "ORG", "PER"]) == pytest.approx(
        {
            "precision": 2 / 4,
            "recall": 2 / 4,
            "f1": 1 / 2,
            "accuracy": 4 / 7,
            "f1_LOC": 2 * (1 / 2) * (1 / 3) / (1 / 2 + 1 / 3),
            "f1_ORG": 0,
            "f1_PER": 2 * (1 / 2) * 1 / (1 / 2 + 1),
        }
    )


def test_the_scheme_does_not_matter():
    iob1 = [["I-PER", "B-PER", "O", "I-LOC", "I-LOC"]]
    iob2 = [["B-PER", "B-PER", "O", "B-LOC", "I-LOC"]]
    bioes = [["S-PER", "S-PER", "O", "B-LOC", "E-LOC"]]
    for gold in (iob1, iob2, bioes):
        for found in (iob1, iob2, bioes):
            metrics = entity_metrics(gold, found)
            accuracy = metrics.pop("accuracy")
            assert set(metrics.values()) == {1} and (accuracy == 1) == (gold == found)


def test_undefined_entity_scores_are_zero():
    nothing, something = [["O", "O"]], [["O", "B-PER"]]
    scores = ("precision", "recall", "f1")
    for gold, found in ((nothing, nothing), (nothing, something), (something, nothing)):
        metrics = entity_metrics(gold, found)
        assert [metrics[name] for name in scores] == [0, 0, 0]
    assert entity_metrics(nothing, nothing, ["PER"]) == {
        "precision": 0, "recall": 0, "f1": 0, "accuracy": 1, "f1_PER": 0,
    }  # fmt: skip


@functools.cache
def official_normalize(s):
    def remove_articles(text):
        regex = re.compile(r"\b(a|an|the)\b", re.UNICODE)
        return re.sub(regex, " ", text)

    def white_space_fix(text):
        return " ".join(text.split())

    def remove_punc(text):
        exclude = set(string.punctuation)
        return "".join(ch for ch in text if ch not in exclude)

    def lower(text):
        return text.lower()

    return white_space_fix(remove_articles(remove_punc(lower(s))))


def v1_f1(prediction, ground_truth):
    prediction_tokens = official_normalize(prediction).split()
    ground_truth_tokens = official_normalize(ground_truth).split()
    common = collections.Counter(prediction_tokens) & collections.Counter(ground_truth_tokens)
    num_same = sum(common.values())
    if num_same == 0:
        return 0
    precision = 1.0 * num_same / len(prediction_tokens)
    recall = 1.0 * num_same / len(ground_truth_tokens)
    return (2 * precision * recall) / (precision + recall)


def v1_exact(prediction, ground_truth):
    return official_normalize(prediction) == official_normalize(ground_truth)


def v1_max(metric, prediction, ground_truths):
    return max(metric(prediction, ground_truth) for ground_truth in ground_truths)


def v2_tokens(s):
    return official_normalize(s).split() if s else []


def v2_exact(a_gold, a_pred):
    return int(official_normalize(a_gold) == official_normalize(a_pred))


def v2_f1(a_gold, a_pred):
    gold_toks = v2_tokens(a_gold)
    pred_toks = v2_tokens(a_pred)
    common = collections.Counter(gold_toks) & collections.Counter(pred_toks)
    num_same = sum(common.values())
    if len(gold_toks) == 0 or len(pred_toks) == 0:
        return int(gold_toks == pred_toks)
    if num_same == 0:
        return 0
    precision = 1.0 * num_same / len(pred_toks)
    recall = 1.0 * num_same / len(gold_toks)
    return (2 * precision * recall) / (precision + recall)


def v2_raw(golds, preds):
    exact_scores, f1_scores = {}, {}
    for qid, answers in golds.items():
        gold_answers = [a for a in answers if official_normalize(a)]
        if not gold_answers:
            gold_answers = [""]
        exact_scores[qid] = max(v2_exact(a, preds[qid]) for a in gold_answers)
        f1_scores[qid] = max(v2_f1(a, preds[qid]) for a in gold_answers)
    return exact_scores, f1_scores


def v2_apply_threshold(scores, na_probs, qid_to_has_ans, na_prob_thresh):
    return {
        qid: float(not qid_to_has_ans[qid]) if na_probs[qid] > na_prob_thresh else s
        for qid, s in scores.items()
    }


def v2_find_best_thresh(preds, scores, na_probs, qid_to_has_ans):
    num_no_ans = sum(1 for k in qid_to_has_ans if not qid_to_has_ans[k])
    cur_score = num_no_ans
    best_score = cur_score
    best_thresh = 0.0
    qid_list = sorted(na_probs, key=lambda k: na_probs[k])
    for qid in qid_list:
        if qid not in scores:
            continue
        if qid_to_has_ans[qid]:
            diff = scores[qid]
        elif preds[qid]:
            diff = -1
        else:
            diff = 0
        cur_score += diff
        if cur_score > best_score:
            best_score = cur_score
            best_thresh = na_probs[qid]
    return 100.0 * best_score / len(scores), best_thresh


HARD = {
    "articles": ("The Beatles", ["Beatles", "a beatle"]),
    "article within words": ("theatre an anthem", ["atre them", "theatre anthem"]),
    "article between punctuation": ("rock-the-boat", ["rocktheboat", "rock boat"]),
    "article beside punctuation": ("'The' end, (a) start", ["end start"]),
    "upper-case article": ("AN APPLE", ["apple"]),
    "only articles": ("the", ["a"]),
    "only punctuation": ("...", ["?!"]),
    "article against empty": ("the", ["", "x"]),
    "punctuation": ("U.S.", ["US", "U S"]),
    "money": ("$5.3 million", ["5.3 million", "53 million"]),
    "possessive": ("Ada's notes", ["Adas notes"]),
    "hyphen": ("15-minute", ["15 minute"]),
    "en dash is no punctuation": ("1970–71", ["1970-71", "197071"]),
    "curly quotes are no punctuation": ("“Yes”", ['"Yes"', "yes"]),
    "no-break space": ("10\u00a0km", ["10 km"]),
    "zero-width space": ("10\u200bkm", ["10 km"]),
    "unicode": ("Zürich", ["zürich", "Zurich"]),
    "combining": ("Zu\u0308rich", ["Zürich"]),
    "eszett": ("STRASSE", ["Straße"]),
    "dotted capital": ("İzmir", ["izmir", "i̇zmir"]),
    "final sigma": ("ΟΔΟΣ", ["οδος", "οδοσ"]),
    "cjk": ("北京", ["北 京"]),
    "emoji": ("pizza 🍕", ["pizza", "🍕 pizza"]),
    "article next to a letter with accent": ("à la carte", ["la carte"]),
    "article before a combining mark": ("a\u0301 b", ["b", "\u0301 b"]),
    "article in digits and underscores": ("the_cat a1", ["thecat a1", "cat 1"]),
    "repeated words": ("the cat cat cat", ["cat dog cat"]),
    "order": ("dog cat", ["cat dog"]),
    "several gold answers, one exact": ("in 1066", ["1066", "in 1066", "the year 1066"]),
    "several gold answers, best overlap": ("big red dog", ["red", "big dog", "cat"]),
    "nothing in common": ("cat", ["dog"]),
    "empty answer": ("", ["dog", "cat"]),
    "white space": (" \t\n ", ["dog"]),
    "empty gold": ("cat", [""]),
    "both empty": ("", [""]),
    "gold empty when normalized": ("", ["the", "cat"]),
    "all gold empty when normalized": ("", ["the", "..."]),
    "answer to a gold that is empty": ("x", ["the"]),
}


@pytest.mark.parametrize("name", HARD)
def test_hard_cases_are_scored_as_by_the_scripts(name):
    prediction, golds = HARD[name]
    assert normalize_answer(prediction) == official_normalize(prediction)
    exact, f1 = answer_scores([prediction], [golds], no_answer=False)
    assert exact[0] == v1_max(v1_exact, prediction, golds)
    assert f1[0] == v1_max(v1_f1, prediction, golds)
    check_v2([prediction], [golds])
    check_v2([prediction], [[]])


def check_v2(predictions, golds):
    """The v2.0 script's raw scores of every question."""
    raw = v2_raw(dict(enumerate(golds)), dict(enumerate(predictions)))
    found = answer_scores(predictions, golds, no_answer=True)
    for ours, theirs in zip(found, raw, strict=True):
        assert ours.tolist() == list(theirs.values())
    return raw


def perturbed(questions, seed):
    """A prediction for every question: right, nearly right, wrong, or empty, in many ways."""
    random = np.random.default_rng(seed)
    predictions = []
    for question in questions:
        golds = [answer.text for answer in question.answers] or [question.context[:30]]
        gold = golds[random.integers(len(golds))]
        words = question.context.split()
        place = int(random.integers(max(len(words) - 8, 1)))
        ways = (
            gold,
            gold.upper(),
            f"the {gold}",
            f"“{gold}”, ({gold[:3]})",
            gold[1:],
            gold[: len(gold) // 2],
            " ".join(gold.split()[::-1]),
            f"{' '.join(words[place : place + 3])} {gold}",
            " ".join(words[place : place + int(random.integers(8))]),
            "",
            "the",
        )
        predictions.append(ways[random.integers(len(ways))])
    return predictions


@pytest.fixture(scope="module", params=["published", "made up"])
def questions(request):
    """Questions of both kinds: from the published dev set of v2.0, or a few of our own."""
    if request.param == "published":
        folder = request.getfixturevalue("shared_data")
        return read_squad(folder / "squad" / "dev-v2.0.json")[::4]
    made = []
    for index, (text, golds) in enumerate(list(HARD.values()) * 4):
        answers = tuple(Answer(gold, 0) for gold in golds) if index % 3 else ()
        made.append(Question(str(index), "?", f"{text} and the {text} of a tale", answers))
    return made


def test_dev_questions_of_v1(shared_data):
    questions = read_squad(shared_data / "squad" / "dev-v1.1.json")[::4]
    golds = [[answer.text for answer in question.answers] for question in questions]
    predictions = perturbed(questions, 0)
    exact, f1 = answer_scores(predictions, golds, no_answer=False)
    theirs = [
        (v1_max(v1_exact, each, texts), v1_max(v1_f1, each, texts))
        for each, texts in zip(predictions, golds, strict=True)
    ]
    assert exact.tolist() == [each for each, _ in theirs]
    assert f1.tolist() == [each for _, each in theirs]
    metrics = squad_metrics(predictions, golds)
    assert 100 * metrics["exact_match"] == pytest.approx(100.0 * sum(exact) / len(exact))
    assert 100 * metrics["f1"] == pytest.approx(100.0 * sum(f1) / len(f1))
    assert 0.2 < metrics["exact_match"] < metrics["f1"] < 0.8, "a test of right and wrong ones"


def test_dev_questions_of_v2(questions):
    golds = [[answer.text for answer in question.answers] for question in questions]
    predictions = perturbed(questions, 1)
    exact, f1 = check_v2(predictions, golds)
    metrics = squad_v2_metrics(predictions, predictions, np.zeros(len(questions)), golds)
    for name, has_answer in (("", None), ("has_answer_", True), ("no_answer_", False)):
        some = [i for i, texts in enumerate(golds) if has_answer in (None, bool(texts))]
        for metric, scores in (("exact_match", exact), ("f1", f1)):
            official = 100.0 * sum(scores[i] for i in some) / len(some)
            assert 100 * metrics[f"{name}{metric}"] == pytest.approx(official)


def test_the_best_thresholds(questions):
    golds = dict(enumerate([answer.text for answer in question.answers] for question in questions))
    preds = dict(enumerate(perturbed(questions, 2)))
    qid_to_has_ans = {index: bool(texts) for index, texts in golds.items()}
    has_answer = np.array(list(qid_to_has_ans.values()))
    answered = np.array([bool(text) for text in preds.values()])
    null_scores = np.random.default_rng(0).normal(size=len(golds)) + 1.5 * ~has_answer
    for scores in v2_raw(golds, preds):
        for some in (null_scores, null_scores.round(1)):
            na_probs = dict(enumerate(some.tolist()))
            official = v2_find_best_thresh(preds, scores, na_probs, qid_to_has_ans)
            raw = np.array(list(scores.values()), dtype=float)
            best, threshold = best_threshold(raw, some, has_answer, answered)
            assert (100 * best, threshold) == (pytest.approx(official[0], rel=1e-12), official[1])
            assert best > np.mean(~has_answer), "some threshold helps"
        # Where no two null scores are equal, the threshold does what it promises. (More, if an
        # answer is "the": the script takes that for an answer here, and for none when it scores.)
        best, threshold = best_threshold(raw, null_scores, has_answer, answered)
        na_probs = dict(enumerate(null_scores.tolist()))
        applied = v2_apply_threshold(scores, na_probs, qid_to_has_ans, threshold)
        assert sum(applied.values()) >= best * len(golds) - 1e-6


def test_the_best_thresholds_are_among_the_metrics():
    texts, golds = ["cat", "a big dog", "x"], [["cat"], ["dog"], []]
    null_scores = np.array([-1.0, 2.0, 3.0])
    metrics = squad_v2_metrics(["", "", ""], texts, null_scores, golds)
    assert (metrics["best_exact_match"], metrics["best_exact_match_threshold"]) == (2 / 3, -1.0)
    assert metrics["best_f1"] == pytest.approx((1 + 2 / 3 + 1) / 3)
    assert metrics["best_f1_threshold"] == 2.0
    assert metrics["exact_match"] == 1 / 3, "as decided, not as could be"


@pytest.mark.parametrize("lowest", [-5.0, 0.0, 0.25, 3.0])
def test_where_no_answer_is_best_the_threshold_is_below_all_null_scores(lowest):
    scores, null_scores = np.zeros(3), np.array([lowest, lowest + 2, lowest + 1])
    nowhere = np.zeros(3, dtype=bool)
    for has_answer, highest in ((nowhere, 1.0), (~nowhere, 0.0)):
        best, threshold = best_threshold(scores, null_scores, has_answer, ~nowhere)
        assert best == highest
        assert lowest - 2 <= threshold <= lowest - 1, "with room for what other machines round"


def test_a_threshold_divides_what_null_scores_divide():
    has_answer = np.array([True, True, False, False])
    best, threshold = best_threshold(
        np.array([1.0, 0.5, 0, 0]), np.array([-3.0, -1.0, 0.5, 4.0]), has_answer, np.ones(4, bool)
    )
    assert (best, threshold) == (3.5 / 4, -1.0)


def test_a_kind_that_does_not_occur_has_no_metric():
    only = squad_v2_metrics([""], ["x"], np.zeros(1), [[]])
    assert only["no_answer_f1"] == only["f1"] == 1.0
    assert "has_answer_f1" not in only


@pytest.mark.parametrize("seed", range(200))
def test_the_tuned_threshold_reaches_the_best_that_any_threshold_does(seed):
    """All unanswerable, none, one question, and equal null scores are among them."""
    random = np.random.default_rng(seed)
    num = int(random.integers(1, 9))
    golds = [["x"] if each else [] for each in random.random(num) < random.choice([0, 0.5, 1])]
    texts = random.choice(["x", "x", "y", ""], num).tolist()
    null_scores = random.choice([-1.5, 0.25, 2.0**60], num)

    def f1_at(threshold):
        decided = [
            "" if null > threshold else text for text, null in zip(texts, null_scores, strict=True)
        ]
        return squad_v2_metrics(decided, texts, null_scores, golds)["f1"]

    reachable = max(map(f1_at, [*null_scores, -1e9, 1e300]))
    assert f1_at(tuned_threshold(texts, null_scores, golds)) == pytest.approx(reachable)
