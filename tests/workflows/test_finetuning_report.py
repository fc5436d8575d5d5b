"""What a fine-tuning run leaves behind."""


def test_the_summary_says_what_it_came_to_and_where_it_lies(finetuning_job):
    results = finetuning_job.write_results()
    text = "\n".join(results.lines)
    assert "36 steps, 270 examples" in text
    assert f"accuracy {results.figures['dev/accuracy']:.3f} after epoch" in text
    assert text.count("0 examples truncated") == 2, "train and dev"
    for path in (finetuning_job.folder.model, finetuning_job.folder.settings):
        assert str(path) in text
