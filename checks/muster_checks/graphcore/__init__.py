"""What Graphcore's tools say of IPUs. Pure parsers, one file for each tool, and how a node's IPUs are found.

Components: an IPU of an IPU-Machine is ``ipu/<address of the IPU-Machine>/<board index>``, the address as gc-info
prints it ("IPU-M host") and the index the tools' "IPU#" or "board ipu index"; an IPU on a PCIe card is
``ipu/<PCI address>``. Recorded output often has only a device id, which means nothing beyond its machine and
partition: ``ipu/<id>``. What names no IPU at all is on ``ipu/unnamed``, the state of a V-IPU partition on
``ipu/partition:<name>``. None of these taints a host (class ``quarantine``): the IPUs of an IPU-Machine serve other
hosts just as well.

Formats: Graphcore's public documentation (docs.graphcore.ai, projects command-line-tools, gcipuinfo, vipu-user and
poplar-api). All values are strings and may be "N/A". Not public, and so not claimed here: the texts of an error state
other than "no errors", the JSON of `gc-iputraffictest --all-links` (read as one or more of the documented objects),
partition states other than ACTIVE, and gc-monitor's table for PCIe cards (columns are found by their heading).
"""

from muster_checks.hardware.pci import normal_address

UNNAMED = "ipu/unnamed"
SDK = "Graphcore's Poplar SDK (its gc- tools on PATH: source the SDK's enable.sh)"


def component_of(host: str, index: str, pci: str, device_id: str) -> str:
    """The component of an IPU from whatever its tool says of it."""
    if host and index:
        return f"ipu/{host}/{index}"
    if ":" in pci:  # an IPU-Machine counts its IPUs 0 to 3 under this name
        return f"ipu/{normal_address(pci)}"
    return f"ipu/{device_id}" if device_id else UNNAMED
