"""Expected values of IPU boards: models.yaml, and an operator's own file on top of it."""

from pathlib import Path

import msgspec

from muster_checks.hardware.expected_values import ModelTable, load_table


class IpuModel(msgspec.Struct, frozen=True, kw_only=True):
    """One row, for gc-info's "board type". Values that are None are not judged.

    link_…:      the IPU's link to its host or gateway
    ipu_link_…:  one channel of an IPU-Link (gc-links)
    min_ipu_traffic_gbit_per_s:  between two IPUs, both directions together (gc-iputraffictest). It depends on how many
                 links connect the two, so no shipped row has it; below an operator's own value is a FAIL
    max_…:       no limits are public; above an operator's own value is a WARN
    """

    model: str
    link_gt_per_s: float | None = None
    link_width: float | None = None
    ipu_link_gen: float | None = None
    ipu_link_lanes: float | None = None
    min_ipu_traffic_gbit_per_s: float | None = None
    max_die_temp_c: float | None = None
    max_board_temp_c: float | None = None
    max_board_power_w: float | None = None
    source: str = ""


NOTHING_EXPECTED: ModelTable[IpuModel] = ModelTable([])


def ipu_models(own: Path | None) -> ModelTable[IpuModel]:
    """Raises CannotTell if ``own`` cannot be used."""
    return load_table(IpuModel, "graphcore/models.yaml", own)
