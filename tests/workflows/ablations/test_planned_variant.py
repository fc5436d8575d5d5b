import io

import pytest
from ablation_runs import ablation_settings, write_inputs
from pretraining_runs import Run, train_here

from workflows.ablations.ablation import opened_ablation, variant_row
from workflows.runs.storage import open_storage
from workflows.sweeps.live_table import SweepTable


@pytest.fixture(scope="module")
def ablation(tmp_path_factory):
    """The objectives' ablation: masked tokens alone and next tokens are trained to their end."""
    storage = tmp_path_factory.mktemp("storage")
    write_inputs(storage)
    settings = ablation_settings(storage, storage)
    with opened_ablation(settings, open_storage(str(storage))) as ablation:
        for planned in ablation.variants[1:]:
            options = {"rows.objective": planned.variant.name, "evaluation.every_steps": 3}
            train_here(Run(storage, planned.name, storage / "corpus", 8, options))
            (planned.job.folder.path / "artifacts").mkdir()
            planned.finish()
        yield ablation


def test_what_a_finished_one_came_to(ablation):
    _, masked, next_tokens = (each.outcome for each in ablation.variants)
    assert masked.is_finished and masked.name == "mlm" and masked.paper_row == "No NSP"
    assert [step for step, _ in masked.curve] == [3, 6, 8]
    assert masked.curve[-1][1] == masked.figures["heldout/masked_token_loss"]
    assert next_tokens.curve[-1][1] == next_tokens.figures["heldout/next_token_loss"]
    assert "heldout/masked_token_loss" not in next_tokens.figures
    assert masked.question != next_tokens.question
    assert masked.num_tokens > 8 * 8 and masked.seconds > 0 and masked.device == "cpu"
    assert masked.device_hours == pytest.approx(masked.seconds / 3600)


def test_what_is_planned_has_no_figures(ablation):
    planned = ablation.variants[0]
    planned.failure = "no luck"
    outcome = planned.outcome
    planned.failure = None
    assert not outcome.is_finished and outcome.failure == "no luck" and outcome.is_reference
    assert outcome.shape == "1/128/2" and outcome.curve == ()
    # The same masks on the same rows: the losses of the two compare.
    assert outcome.question == ablation.variants[1].outcome.question
    # Word pieces, 32 places, 2 segments and a layer norm; one layer.
    embeddings = (ablation.shards.vocab_size + 32 + 2 + 2) * 128
    layer = 12 * 128**2 + (4 + 4 + 1) * 128 + 4 * 128
    assert outcome.num_parameters == embeddings + layer


def test_longer_rows_more_layers_and_more_predictions_cost_more(ablation):
    masked, next_tokens = ablation.variants[1].cost, ablation.variants[2].cost
    assert 0 < masked < next_tokens


def test_a_row_of_the_table_says_how_far_it_is(ablation):
    planned, _, trained = ablation.variants
    planned.news = {"state": "running"}
    assert variant_row(planned).cells == {
        "variant": "MLM + NSP", "state": "starting", "held-out loss": ""
    }  # fmt: skip
    planned.news |= {"step": 4, "total_steps": 8, "heldout/masked_token_loss": 4.25}
    row = variant_row(planned)
    assert list(row.cells.values()) == ["MLM + NSP", "step 4 of 8", "4.250"]
    assert row.state == "running" and row.score is None
    stream = io.StringIO()
    trained.news = {"state": "trained", "heldout/next_token_loss": 3.5}
    with SweepTable(ablation.variants, stream, row=variant_row, called="pre-trainings") as table:
        table.show()
        table._logged -= 61
        table.show()
    ended, summary = stream.getvalue().splitlines()
    assert ended.startswith("left to right  pre-trained, ") and ended.endswith("loss 3.500")
    assert summary == "2 of 3 pre-trainings done  1 running  ETA …"
    planned.news, trained.news = {}, {}
