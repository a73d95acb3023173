"""What an IPU board should do: models.yaml, and an operator's own file over it."""

from pathlib import Path

import msgspec

from muster_checks.hardware.expected_values import ModelTable, load_table


class IpuModel(msgspec.Struct, frozen=True, kw_only=True):
    """One row, by gc-info's "board type". What is None is not judged.

    link_…:      the IPU's way to its host or gateway
    ipu_link_…:  one channel of an IPU-Link (gc-links)
    min_ipu_traffic_gbit_per_s:  between two IPUs, both directions together (gc-iputraffictest). It hangs on how many
                 links lie between the two, so no row is shipped with it; below an operator's own is a FAIL
    max_…:       no limits are public; above an operator's own is a WARN
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
    """Raises CannotTell when ``own`` cannot be used."""
    return load_table(IpuModel, "graphcore/models.yaml", own)
