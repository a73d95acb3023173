"""Expected values of each NVIDIA GPU model: models.yaml, by the name that the driver reports."""

from pathlib import Path

import msgspec

from muster_checks.hardware.expected_values import ModelTable, load_table


class GpuModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Expected values of one model; None if no public source gives one.

    model:            glob over the driver's product name, case ignored
    pcie_generation, pcie_width:  of the GPU's own interface; a slot or a virtual machine may offer less
    h2d_gb_per_s, d2h_gb_per_s:   host to device and back, pinned memory, as public fleets expect them (1e9 bytes/s);
                      a lower bound, not a peak
    memory_gb_per_s:  peak in the datasheet
    memory_gib:       nominal; the driver reports up to 8 % less (ECC and its own share)
    fp64_tflops, fp64_tensor_tflops:  peaks in the datasheet, dense
    nvlinks:          number of links in use on NVIDIA's own boards; None if bridges are optional, 0 for none
    nvlink_gb_per_s:  of one link in one direction
    source:           source of the row; ``measured``: source of h2d and d2h
    """

    model: str
    pcie_generation: int | None = None
    pcie_width: int | None = None
    h2d_gb_per_s: float | None = None
    d2h_gb_per_s: float | None = None
    memory_gb_per_s: float | None = None
    memory_gib: float | None = None
    fp64_tflops: float | None = None
    fp64_tensor_tflops: float | None = None
    nvlinks: int | None = None
    nvlink_gb_per_s: float | None = None
    source: str = ""
    measured: str = ""


def gpu_models(own: Path | None = None) -> ModelTable[GpuModel]:
    """The shipped table, overridden by the operator's file ``own``. Raises CannotTell if that file cannot be used."""
    return load_table(GpuModel, "nvidia/models.yaml", own)
