import pytest
from pydantic import ValidationError

from bert_core.text.rows.settings import BatchSettings, RowSettings


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
        (RowSettings, {"static_masks": 0}),
        (BatchSettings, {"global_batch_size": 0}),
        (BatchSettings, {"micro_batch_size": 0}),
    ],
)
def test_what_gives_no_rows_is_refused(settings, wrong):
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        settings(**wrong)
