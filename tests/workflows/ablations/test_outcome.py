from made_up_ablations import made_up_sweep, made_up_variants, objective

from workflows.ablations.outcome import by_variant


def test_the_reference_is_the_papers_choice():
    assert objective().reference.name == "mlm_nsp"


def test_a_sweep_over_runs_becomes_one_over_variants():
    variants = made_up_variants("objective")
    runs = {each.run: each.name for each in variants}
    sweep = made_up_sweep("docs_library", variants, {}, seeds=2)
    by_run = {name: run for run, name in runs.items()}
    trials = [each.__class__(**{**vars(each), "point": {"model": by_run[each.point["variant"]]}})
              for each in reversed(sweep.trials)]  # fmt: skip
    renamed = by_variant(sweep.__class__(**{**vars(sweep), "trials": tuple(trials)}), runs)
    assert renamed.axes == ("variant",)
    assert [each.point["variant"] for each in renamed.trials] == [
        "mlm_nsp", "mlm_nsp", "mlm", "mlm", "left_to_right", "left_to_right"
    ]  # fmt: skip
    assert sorted(each.name for each in renamed.trials) == sorted(each.name for each in trials)
