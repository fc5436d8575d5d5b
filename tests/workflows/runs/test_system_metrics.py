import os
import time

from workflows.runs.journal import METRIC_NAME
from workflows.runs.system_metrics import SystemSampler, note_throughput, parse_gpu_line


def test_a_sample_of_this_machine_has_names_mlflow_takes(tmp_path):
    sample = SystemSampler(os.getpid(), tmp_path).sample()
    assert all(METRIC_NAME.fullmatch(name) for name in sample)
    assert 0 < sample["system/system_memory_usage_percentage"] <= 100
    assert sample["system/training_process_memory_megabytes"] > 1
    assert sample["system/disk_available_megabytes"] > 0


def test_a_process_that_has_gone_leaves_its_memory_out(tmp_path):
    sample = SystemSampler(2**22 + 1, tmp_path).sample()
    assert "system/training_process_memory_megabytes" not in sample


def test_a_line_of_nvidia_smi_becomes_metrics():
    values = parse_gpu_line("1, 87, 10240, 20480, 301.5")
    assert values["system/gpu_1_utilization_percentage"] == 87
    assert values["system/gpu_1_memory_usage_percentage"] == 50
    assert values["system/gpu_1_memory_usage_megabytes"] == 10240 * 2**20 / 1e6
    assert values["system/gpu_1_power_usage_watts"] == 301.5
    assert parse_gpu_line("0, [N/A], 1, 2, 3") == {}
    assert parse_gpu_line("No devices were found") == {}


def test_the_speed_of_a_run_is_sampled_while_it_is_fresh(tmp_path):
    figures = {"step": 3, "tokens_per_second": 1234.5, "padding_share": 0.0, "mfu": 0.4}
    note_throughput(tmp_path, {"messages": []})
    assert "system/training_tokens_per_second" not in SystemSampler(os.getpid(), tmp_path).sample()
    note_throughput(tmp_path, figures)
    sample = SystemSampler(os.getpid(), tmp_path).sample()
    assert sample["system/training_tokens_per_second"] == 1234.5
    assert sample["system/training_mfu"] == 0.4
    old = time.time() - 3600
    os.utime(tmp_path / "throughput.json", (old, old))
    assert "system/training_tokens_per_second" not in SystemSampler(os.getpid(), tmp_path).sample()
