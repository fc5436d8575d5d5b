from dataclasses import replace

import pytest
from made_up_ablations import (
    OUTCOMES,
    half_way,
    made_up_ablation,
    masking,
    not_begun,
    objective,
    rates,
    single_seed,
    size,
    without_effect,
)

from workflows.ablations.findings import ablation_findings
from workflows.ablations.words import (
    costs,
    counts,
    described,
    difference_table,
    difference_words,
    method,
    pretraining_table,
    pretraining_words,
    signed,
    troubles,
    verdict,
)


def test_the_verdict_names_what_is_told_apart_and_what_is_not():
    assert verdict(ablation_findings(objective())) == (
        "Against MLM + NSP, left to right is worse on docs_parameters (−6.34) and docs_answers "
        "(−9.27). In the other 4 of 6 comparisons these figures do not tell them apart."
    )
    said = verdict(ablation_findings(masking()))
    assert "100/0/0 is worse on NER, fine-tuned" in said
    assert "0/0/100 is better on NER, features (+" in said and "of 15" in said
    both = made_up_ablation("objective", {"mrpc": {"mlm": -9}, "sst2": {"mlm": 9}})
    assert "MLM only is worse on MRPC (" in verdict(ablation_findings(both))
    assert " and better on SST-2 (" in verdict(ablation_findings(both))


def test_the_verdict_claims_nothing_that_seeds_may_explain():
    nothing = verdict(ablation_findings(without_effect()))
    assert nothing.startswith("These figures do not tell any variant from MLM + NSP")
    single = verdict(ablation_findings(single_seed()))
    assert single.startswith("One seed of each does not say") and "--seeds 3" in single
    assert "worse" not in single
    assert verdict(ablation_findings(not_begun())) == (
        "No variant can be compared with another yet."
    )


def test_where_all_is_told_apart_nothing_is_left_open():
    assert "do not tell" not in verdict(ablation_findings(size()))


def test_the_state_is_told():
    assert counts(ablation_findings(objective())) == (
        "3 of 3 encoders pre-trained, 27 of 27 fine-tunings finished (3 tasks, 3 seeds)"
    )
    assert counts(ablation_findings(half_way())) == (
        "2 of 3 encoders pre-trained, 7 of 27 fine-tunings finished (3 tasks, 3 seeds), 2 failed"
    )
    outcome = replace(objective(), text="/srv/someone/wiki.txt")
    assert described(ablation_findings(outcome)).endswith("Pre-training on …/wiki.txt.")


def test_a_difference_is_bold_where_it_is_told_apart():
    heads, rows = difference_table(ablation_findings(objective()))
    assert heads == ["less MLM + NSP", "docs_library", "docs_parameters", "docs_answers"]
    mlm, left_to_right = rows
    assert [is_told for _, is_told in left_to_right] == [False, False, True, True]
    assert mlm[1][0].startswith("+0.06 ± ") and left_to_right[0][0] == "left to right"
    heads, rows = difference_table(ablation_findings(masking()))
    assert heads[:3] == ["less 80/10/10", "MNLI", "the paper's"]
    assert rows[0][2] == ("+0.1", False) and rows[-1][2] == ("−0.6", False)
    _, rows = difference_table(ablation_findings(half_way()))
    assert rows[1][1] == ("–", False)
    assert "no intervals" in difference_words(ablation_findings(single_seed()))[0]
    assert "Dunnett" in difference_words(ablation_findings(objective()))[0]


def test_losses_compare_only_where_the_same_is_predicted():
    said = " ".join(pretraining_words(ablation_findings(objective())))
    assert "next tokens: left to right" in said
    assert "predicted best by MLM + NSP (loss 5.030) and worst by MLM only (5.100)" in said
    sizes = " ".join(pretraining_words(ablation_findings(size())))
    assert "compare only" not in sizes and "worst by 4/192/3" in sizes


def test_the_pre_trainings_have_their_perplexity_beside_the_papers():
    heads, rows = pretraining_table(ablation_findings(size()))
    assert heads[:5] == ["variant", "parameters", "loss", "perplexity", "the paper's"]
    assert [row[4] for row in rows] == ["4.68", "5.24", "3.99", "3.54", "3.23"]
    heads, rows = pretraining_table(ablation_findings(objective()))
    assert heads[1] == "L/H/A" and "the paper's" not in heads
    next_sentence = heads.index("next sentence")
    assert [row[next_sentence] for row in rows] == ["67.0%", "–", "–"]
    assert rows[2][heads.index("loss")] == "4.770", "of next tokens"
    assert all(len(row) == len(heads) for row in rows)


def test_what_has_to_be_known_is_said():
    said = " ".join(method(ablation_findings(objective())))
    for part in (
        "All encoders see the same text.", "pre-trained once", "BiLSTM", "3.3 billion words",
        "F1 of docs_parameters, docs_answers and SQuAD",
    ):  # fmt: skip
        assert part in said
    assert "3.3 billion" not in " ".join(method(ablation_findings(rates())))


def test_costs_and_troubles():
    assert dict(costs(ablation_findings(objective()))) == {
        "pre-training": "0.33 core-hours, about 0.0033 kWh (assuming 10 W per core)",
        "fine-tuning": "0.38 core-hours, about 0.00378 kWh (assuming 10 W per core)",
        "a fine-tuning": "50 s on average",
        "wall time": "40 min 00 s, up to 2 runs at once",
    }
    assert troubles(ablation_findings(objective())) == []
    found = troubles(ablation_findings(half_way()))
    assert found[0][1:] == ("pre-training, left to right", "not finite at …/run step 7")
    assert found[1][1:] == ("docs_answers, MLM + NSP, seed 0", "<b>out</b> of memory | lower")
    assert [why for *_, why in found[2:]] == ["missing"] * 4


def test_a_difference_has_its_sign():
    assert [signed(1.0), signed(-1.234), signed(-0.6, 1)] == ["+1.00", "−1.23", "−0.6"]


@pytest.mark.parametrize("name", OUTCOMES)
def test_there_are_words_for_every_state(name):
    findings = ablation_findings(OUTCOMES[name]())
    for said in (verdict(findings), counts(findings), *method(findings)):
        assert said and "nan" not in said and "None" not in said
