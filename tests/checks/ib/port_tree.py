"""A /sys/class/infiniband of our own: eight ConnectX-7 on InfiniBand and a BlueField-3 bond on Ethernet, all sound.

Files and their forms: Documentation/ABI/stable/sysfs-class-infiniband of the kernel; hw_counters: those of mlx5.
"""

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

from muster_checks.testing.recorded import lay_out

COUNTERS = (
    "VL15_dropped",
    "excessive_buffer_overrun_errors",
    "link_downed",
    "link_error_recovery",
    "local_link_integrity_errors",
    "multicast_rcv_packets",
    "multicast_xmit_packets",
    "port_rcv_constraint_errors",
    "port_rcv_data",
    "port_rcv_errors",
    "port_rcv_packets",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_constraint_errors",
    "port_xmit_data",
    "port_xmit_discards",
    "port_xmit_packets",
    "port_xmit_wait",
    "symbol_error",
    "unicast_rcv_packets",
    "unicast_xmit_packets",
)
HW_COUNTERS = (
    "duplicate_request",
    "implied_nak_seq_err",
    "local_ack_timeout_err",
    "out_of_buffer",
    "out_of_sequence",
    "packet_seq_err",
    "req_cqe_error",
    "req_cqe_flush_error",
    "req_remote_access_errors",
    "req_remote_invalid_request",
    "resp_cqe_error",
    "resp_local_length_error",
    "resp_remote_access_errors",
    "rnr_nak_retry_err",
    "roce_adp_retrans",
    "rx_atomic_requests",
    "rx_icrc_encapsulated",
    "rx_read_requests",
    "rx_write_requests",
)
COMPUTE = tuple(f"mlx5_{number}" for number in range(2, 10))
BOND = "mlx5_bond_0"
Files = Mapping[str, "str | int"]


def device(hca_type: str, board_id: str, firmware: str, rate: str, layer: str, **counters: int) -> Files:
    """A device with one port, by file name. ``counters``: those that are not 0."""
    port = {"link_layer": layer, "phys_state": "5: LinkUp", "rate": rate, "state": "4: ACTIVE"}
    zero = {f"counters/{name}": 0 for name in COUNTERS} | {f"hw_counters/{name}": 0 for name in HW_COUNTERS}
    counted = {f"{'counters' if name in COUNTERS else 'hw_counters'}/{name}": value for name, value in counters.items()}
    of_port = {f"ports/1/{name}": value for name, value in {**port, **zero, **counted}.items()}
    return {"hca_type": hca_type, "board_id": board_id, "fw_ver": firmware, **of_port}


def _traffic(place: int) -> dict[str, int]:
    """Of days of work. One counter stands where it is full: 4 bits wide."""
    packets = 48_112_000_000 + 1_733 * place
    return {
        "port_rcv_packets": packets,
        "unicast_rcv_packets": packets,
        "port_rcv_data": 36_900_150_000_000 + 977 * place,
        "port_xmit_packets": packets - 5_021,
        "unicast_xmit_packets": packets - 5_021,
        "port_xmit_data": 36_899_870_000_000 + 331 * place,
        "port_xmit_wait": 88_420_117,
        "excessive_buffer_overrun_errors": 15,
        "port_rcv_errors": 3,
        "rx_read_requests": 712_009 + place,
        "rx_write_requests": 90_441_873 + place,
        "roce_adp_retrans": 1,
    }


H100_PORTS: Mapping[str, Files] = {
    name: device("MT4129", "MT_0000000838", "28.43.2026", "400 Gb/sec (4X NDR)", "InfiniBand", **_traffic(place))
    for place, name in enumerate(COMPUTE)
} | {BOND: device("MT41692", "MT_0000000884", "32.43.2026", "200 Gb/sec (2X NDR)", "Ethernet", **_traffic(9))}


def lay_out_ports(folder: Path, devices: Mapping[str, Files]) -> Path:
    """As /sys/class/infiniband. Returns ``folder``."""
    for name, files in devices.items():
        lay_out(folder, {f"{name}/{file}": content for file, content in files.items()})
    return folder


def pack(folder: Path, name: str = "sys/class/infiniband") -> bytes:
    """A tar file, compressed with xz, as `muster check ib --sample` takes it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:xz") as archive:
        archive.add(folder, arcname=name)
    return out.getvalue()
