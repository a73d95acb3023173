"""`ibstat` says what the ports are; its form is that of ibstat.c, the values are ours."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checks.bad_input import TEXTS, mangled

from muster_checks.base.execution import run_recorded
from muster_checks.base.vocabulary import Verdict
from muster_checks.ib import IB, IbParameters
from muster_checks.ib.ibstat import parse_ibstat

PORT = """\
CA '{device}'
\tCA type: MT4129
\tNumber of ports: 1
\tFirmware version: 28.39.1002
\tHardware version: 0
\tNode GUID: 0x0000000000000001
\tSystem image GUID: 0x0000000000000001
\tPort 1:
\t\tState: {state}
\t\tPhysical state: {physical}
\t\tRate: {rate}
\t\tBase lid: 12
\t\tLMC: 0
\t\tSM lid: 1
\t\tCapability mask: 0xa651e848
\t\tPort GUID: 0x0000000000000002
\t\tLink layer: {layer}
"""


def port(device: str, state: str = "Active", rate: object = 400, layer: str = "InfiniBand") -> str:
    physical = "LinkUp" if state != "Down" else "Disabled"
    return PORT.format(device=device, state=state, physical=physical, rate=rate, layer=layer)


def judged(*ports: str, **parameters: object) -> list[tuple[str, str, Verdict]]:
    result = run_recorded(IB, "".join(ports).encode(), IbParameters(**parameters))
    assert result is not None
    return sorted((finding.component, finding.reason, finding.verdict) for finding in result.findings)


EIGHT = [port(f"mlx5_{number}") for number in range(8)]


def test_eight_active_ports_pass() -> None:
    assert judged(*EIGHT) == [(f"nic/mlx5_{number}", "Ok", Verdict.PASS) for number in range(8)]


def test_a_port_that_is_down_among_its_equals_is_found() -> None:
    found = judged(*EIGHT[:7], port("mlx5_7", "Down", 10))
    assert ("nic/mlx5_7", "PortDown") in [entry[:2] for entry in found]


def test_a_port_that_the_subnet_manager_did_not_activate_is_found() -> None:
    found = judged(*EIGHT[:7], port("mlx5_7", "Initializing"))
    assert ("nic/mlx5_7", "PortDown") in [entry[:2] for entry in found]


def test_a_port_slower_than_its_equals_is_found() -> None:
    assert ("nic/mlx5_7", "LowRate", Verdict.WARN) in judged(*EIGHT[:7], port("mlx5_7", rate=200))


def test_an_ethernet_port_that_is_down_is_left_to_the_check_nic() -> None:
    found = judged(*EIGHT, port("mlx5_8", "Down", 40, "Ethernet"))
    assert not [entry for entry in found if entry[0] == "nic/mlx5_8"]


def test_parameters_hold_for_it_too() -> None:
    assert judged(*EIGHT, ports="mlx5_[01]", expected_ports=3)[0] == ("host", "FewerPorts", Verdict.FAIL)
    assert parse_ibstat(EIGHT[0].encode(), "hfi1_*") == []


@pytest.mark.parametrize("rate", ["56 (FDR10)", "2.5"])
def test_the_odd_rates_are_read(rate: str) -> None:
    (one,) = parse_ibstat(port("mlx4_0", rate=rate).encode(), "*") or ()
    assert one.rate_gb_per_s == float(rate.split()[0])


def test_two_ports_of_one_adapter_are_told_apart() -> None:
    second = port("mlx4_0").split("\tPort 1:")[1]
    ports = parse_ibstat((port("mlx4_0") + "\tPort 2:" + second).encode(), "*") or []
    assert [one.component for one in ports] == ["nic/mlx4_0/1", "nic/mlx4_0/2"]


def test_a_state_of_another_name_is_unknown() -> None:
    assert judged(port("mlx5_0", state="???")) == [("nic/mlx5_0", "NotReadable", Verdict.UNKNOWN)]


@pytest.mark.parametrize("text", [*TEXTS, *mangled("".join(EIGHT).encode())])
def test_a_sample_cut_short_never_fails(text: bytes) -> None:
    result = run_recorded(IB, text, IbParameters())
    assert result is None or result.verdict is not Verdict.FAIL


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from([*PORT.splitlines(), "CA 'x'", "\tPort 2:"]) | st.text(max_size=40)))
def test_any_lines_are_read_or_refused(lines: list[str]) -> None:
    parse_ibstat("\n".join(lines).encode("utf-8", "replace"), "*")
