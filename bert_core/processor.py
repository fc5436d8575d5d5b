"""What computes: results of two machines can only be the same to the bit where this is the same."""

import platform

import torch


def processor_name(device: torch.device) -> str:
    """The name of a GPU, or of the CPU with the vector instructions that torch uses of it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    known = getattr(torch.cpu, "get_capabilities", dict)()
    name = known.get("cpu_name") or platform.machine()
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}"
