"""The devices, links and prices that `benchmarks.scaling` reckons with, each with its source.

Bandwidths are in one direction, per device. Nothing here was measured by this project, except
where a source says so.
"""

from dataclasses import dataclass

LOOKED_UP = "November 2026"
"""When the sources below were read; prices change."""


@dataclass(frozen=True)
class Fabric:
    """How devices reach each other: domains of fast links, and a network between domains.

    `hop_seconds` is the latency of one hop between domains; an all-reduce within one costs
    `start_seconds` besides its bytes.
    """

    devices_per_domain: int
    link_bytes_per_second: float
    network_bytes_per_second: float
    start_seconds: float
    hop_seconds: float


@dataclass(frozen=True)
class Device:
    """One accelerator; `peak_flops_per_second` is what MFU is told against here."""

    name: str
    peak_flops_per_second: float
    memory_bytes: float
    memory_bytes_per_second: float
    fabric: Fabric
    dollars_per_hour: float


NVLINK = Fabric(
    devices_per_domain=8,
    link_bytes_per_second=370e9,
    network_bytes_per_second=45e9,
    start_seconds=20e-6,
    hop_seconds=5e-6,
)

H200 = Device("H200", 788e12, 141e9, 4.3e12, NVLINK, 3.50)
H100 = Device("H100", 788e12, 80e9, 3.0e12, NVLINK, 3.50)
"""For the check against MLPerf alone: the chip of an H200 with slower memory; no price is used."""

V5E = Device(
    "TPU v5e",
    197e12,
    16e9,
    0.9 * 819e9,
    Fabric(256, 0.9 * 200e9, 0.9 * 3.125e9, 20e-6, 50e-6),
    1.20,
)
V6E = Device(
    "TPU v6e",
    918e12,
    32e9,
    0.9 * 1638e9,
    Fabric(256, 0.9 * 400e9, 0.9 * 3.125e9, 20e-6, 50e-6),
    2.70,
)

SOURCES = (
    (
        "H200: 788 TFLOP/s bf16 (matrix product of 8192), 4.3 TB/s copy",
        "measured on one H200 for this project; the data sheet says 989 TFLOP/s and 4.8 TB/s",
    ),
    ("H200: 141 GB HBM3e", "NVIDIA's data sheet"),
    (
        "NVLink: 370 GB/s in each direction for a ring",
        "the data sheet's 900 GB/s are both directions; an NCCL maintainer in nccl-tests issue 212 "
        "(May 2024): 450 is the line, about 370 what NCCL reaches without NVLink SHARP",
    ),
    (
        "network: one 400 Gb/s NDR port for each GPU, 90 % of it used",
        "the systems of MLPerf's rows (8 ConnectX-7 a node); the 90 % are assumed",
    ),
    ("latency: 20 us to start an all-reduce, 5 us a hop, as a tree", "assumed"),
    (
        "v5e: 197 TFLOP/s bf16, 16 GB, 819 GB/s; ICI 400 GB/s in both directions; "
        "6.4 Tb/s of network for 256 chips",
        "Google's page on TPU v5e",
    ),
    (
        "v6e: 918 TFLOP/s bf16, 32 GB, 1,638 GB/s; ICI 800 GB/s in both directions",
        "Google's page on TPU v6e; of its network between slices it says nothing, so v5e's is "
        "assumed, and 50 us a hop on both",
    ),
    ("H200: 3.50 dollars an hour", "list price with processor and memory, docs.nebius.com, 2025"),
    (
        "v5e 1.20, v6e 2.70 dollars a chip hour",
        "list prices on demand in the US as commonly quoted; **not looked up at Google**",
    ),
)
"""What is taken for granted about hardware, and where it is from."""
