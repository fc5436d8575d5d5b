import pytest
from pydantic import ValidationError

from bert_core.text.settings import BatchSettings, RowSettings


def test_defaults_are_the_papers():
    rows, batch = RowSettings(), BatchSettings()
    assert rows.objective == "mlm_nsp" and not rows.whole_word and rows.static_masks is None
    shares = rows.masked_share, rows.mask_token_share, rows.random_token_share
    assert shares == (0.15, 0.8, 0.1)
    assert rows.short_row_share == 0.1
    assert batch.global_batch_size == 256 and not batch.packed


@pytest.mark.parametrize("settings", [RowSettings, BatchSettings])
def test_every_field_says_what_it_is_and_no_other_is_taken(settings):
    assert all(field.description for field in settings.model_fields.values())
    with pytest.raises(ValidationError, match="shares"):
        settings(shares=0.5)


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        (RowSettings, {"masked_share": 0}),
        (RowSettings, {"masked_share": 1}),
        (RowSettings, {"objective": "nsp"}),
        (RowSettings, {"input_format": "pairs"}),
        (RowSettings, {"static_masks": 0}),
        (BatchSettings, {"global_batch_size": 0}),
        (BatchSettings, {"micro_batch_size": 0}),
    ],
)
def test_what_gives_no_rows_is_refused(settings, wrong):
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        settings(**wrong)


@pytest.mark.parametrize("mask, random, same", [(1, 0, 0), (0.8, 0, 0.2), (0.8, 0.2, 0), (0, 0, 1)])
def test_the_shares_of_masks_make_one(mask, random, same):
    """The paper's table 8, and what its rows leave."""
    rows = RowSettings(mask_token_share=mask, random_token_share=random)
    assert rows.same_token_share == pytest.approx(same, abs=1e-12)


def test_more_than_all_of_the_masks_is_refused():
    said = "mask_token_share 0.9 and random_token_share 0.2 are more than 1 together"
    with pytest.raises(ValidationError, match=said):
        RowSettings(mask_token_share=0.9, random_token_share=0.2)


def test_what_does_not_go_together_is_refused():
    with pytest.raises(
        ValidationError, match="mlm_nsp needs pairs of segments, not full_sentences"
    ):
        RowSettings(input_format="full_sentences")
    RowSettings(input_format="full_sentences", objective="left_to_right")
    for name, value in (("masked_share", 0.3), ("mask_token_share", 0.5), ("whole_word", True)):
        with pytest.raises(ValidationError, match=f"left_to_right masks nothing: leave out {name}"):
            RowSettings(**{"objective": "left_to_right", name: value})
