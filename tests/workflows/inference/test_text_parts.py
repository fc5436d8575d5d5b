"""Work on parts of text; all of it on Ray is in test_extract.py and test_predict.py."""

from workflows.inference.text_parts import worker_device


def test_outside_of_ray_the_cpu_works():
    assert worker_device().type == "cpu"
