from workflows.paper.table7 import plot_f1_by_layer, plot_layer_weights


def test_pictures_are_written_and_the_same_again(tmp_path):
    scores = {0: [70.0, 71.0], 1: [80.0, 81.0], 2: [79.0, 82.0]}
    shares = {"weighted_sum_all": {1: [0.4, 0.5], 2: [0.6, 0.5]}, "other": {1: [1.0, 1.0]}}
    for name in ("a", "b"):
        plot_f1_by_layer(scores, {"Fine-tuning": 90.0}, tmp_path / f"{name}.png", title="tiny")
        plot_layer_weights(shares, tmp_path / f"{name}-shares.png", title="tiny")
    for kind in ("", "-shares"):
        first, second = ((tmp_path / f"{name}{kind}.png").read_bytes() for name in "ab")
        assert first.startswith(b"\x89PNG")
        assert first == second
