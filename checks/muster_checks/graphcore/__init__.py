"""How a node's IPUs are found, and parsers for Graphcore's tools (one file per tool).

Components: an IPU of an IPU-Machine is ``ipu/<address of the IPU-Machine>/<board index>``, with the address that
gc-info prints as "IPU-M host" and the index that the tools print as "IPU#" or "board ipu index". An IPU on a PCIe card
is ``ipu/<PCI address>``. Recorded output often has only a device id, which is unique only within its machine and
partition: ``ipu/<id>``. Output that names no IPU is on ``ipu/unnamed``, the state of a V-IPU partition on
``ipu/partition:<name>``. No IPU finding taints a host (class ``quarantine``): the IPUs of an IPU-Machine can serve
other hosts.

Formats: Graphcore's public documentation (docs.graphcore.ai, projects command-line-tools, gcipuinfo, vipu-user and
poplar-api). All values are strings and may be "N/A". These are not public, so no claim is made about them: the texts of
error states other than "no errors", the JSON of `gc-iputraffictest --all-links` (read as one or more of the documented
objects), partition states other than ACTIVE, and gc-monitor's table for PCIe cards (columns are found by heading).
"""

from muster_checks.hardware.pci import normal_address

UNNAMED = "ipu/unnamed"
SDK = "Graphcore's Poplar SDK (its gc- tools on PATH: source the SDK's enable.sh)"


def component_of(host: str, index: str, pci: str, device_id: str) -> str:
    """The component of an IPU, from whichever of these values its tool prints."""
    if host and index:
        return f"ipu/{host}/{index}"
    if ":" in pci:  # for an IPU-Machine this value is only the number of the IPU, 0 to 3
        return f"ipu/{normal_address(pci)}"
    return f"ipu/{device_id}" if device_id else UNNAMED
