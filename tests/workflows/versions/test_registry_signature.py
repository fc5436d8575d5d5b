import pytest

from workflows.versions.registry_signature import signature_and_example


@pytest.mark.parametrize(
    ("model", "columns", "outputs"),
    [
        ("encoder", None, None),
        ("sentiment", None, ["label", "scores"]),
        ("paraphrase", ["text", "text_pair"], ["label", "scores"]),
        ("topics", None, ["labels", "scores"]),
        ("grade", None, ["value"]),
        ("entities", None, ["entities"]),
        ("answers", ["question", "context"], ["answers", "null_score"]),
    ],
)
def test_a_signature_names_what_goes_in_and_what_comes_out(small_models, model, columns, outputs):
    signature, example = signature_and_example(small_models[model])
    named = signature.inputs.input_names() if signature.inputs.has_input_names() else None
    assert named == columns
    assert columns is None or list(example[0]) == columns
    found = signature.outputs and signature.outputs.input_names()
    assert found == (outputs and [*outputs, "n_tokens", "truncated"])
