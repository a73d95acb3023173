"""One pair from this node: what is run, by which NIC, and what hinders it."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest
from pydantic import ValidationError
from tests.checks.bad_input import NO_VALUES, TEXTS

from muster_checks.base.commands import OUTPUT_LIMIT_BYTES, Output
from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import CannotTell, ToolMissing, run_probe
from muster_checks.base.vocabulary import Result, Verdict
from muster_checks.iperf import IPERF, IperfParameters
from muster_checks.iperf.link import find_device_towards, link_gbit_per_s, nic_name
from muster_checks.iperf.server import run_server
from muster_checks.registry import SHIPPED
from muster_checks.testing.recorded import Answer, RecordedCommands, failed, hung, lay_out, node

SAMPLES = Path(__file__).parent / "samples"
TCP = (SAMPLES / "tcp.json").read_bytes()
CONNECT = ("--connect-timeout", "3000")
ROUTE = b'[{"dst":"10.77.0.2","dev":"eth7","prefsrc":"10.77.0.1","flags":[],"uid":0,"cache":[]}]\n'


def nic(name: str, speed: object, infiniband: str = "") -> dict[str, str | int]:
    files: dict[str, str | int] = {
        f"/sys/class/net/{name}/speed": str(speed),
        f"/sys/class/net/{name}/device/vendor": 0,
    }
    if infiniband:
        files[f"/sys/class/net/{name}/device/infiniband/{infiniband}/node_type"] = 1
    return files


async def run(root: Path, answers: Mapping[str, Answer], **values: object) -> tuple[Result, RecordedCommands]:
    view = node(root, answers)
    assert isinstance(view.commands, RecordedCommands)
    result = await run_probe(IPERF, view, IperfParameters.model_validate({"server": "10.77.0.2", **values}))
    return result, view.commands


def test_it_is_shipped():
    assert SHIPPED["iperf"] == "muster_checks.iperf:IPERF"


async def test_the_link_of_the_nic_that_leads_there_is_what_counts(tmp_path: Path):
    lay_out(tmp_path, {**nic("eth7", 10_000, "mlx5_3"), **nic("eth0", 100_000)})
    result, commands = await run(tmp_path, {"iperf3": TCP, "ip": ROUTE})
    assert result.verdict is Verdict.PASS
    (finding,) = result.findings
    assert finding.component == "nic/mlx5_3"
    assert [(m.name, round(m.value, 2), m.threshold) for m in finding.measurements] == [
        ("bandwidth", 14.0, 7.0),
        ("retransmits", 1.13, 1000.0),
    ]
    assert [argv for argv, _ in commands.calls] == [
        ("ip", "-j", "route", "get", "10.77.0.2"),
        (
            *[
                "iperf3",
                "-J",
                "-c",
                "10.77.0.2",
                "-p",
                "5201",
                "-t",
                "5",
                "-O",
                "1",
                "-P",
                "8",
                "-Z",
                "--connect-timeout",
                "3000",
            ],
        ),
    ]


async def test_a_pair_below_the_links_share_warns_about_the_pair(tmp_path: Path):
    lay_out(tmp_path, nic("eth7", 25_000))
    result, _ = await run(tmp_path, {"iperf3": TCP, "ip": ROUTE})
    assert (result.verdict, result.reason, result.findings[0].component) == (
        Verdict.WARN,
        "SlowPair",
        "peer/10.77.0.2",
    )


async def test_a_named_link_counts_more_than_the_nics(tmp_path: Path):
    lay_out(tmp_path, nic("eth7", 25_000))
    result, _ = await run(tmp_path, {"iperf3": TCP, "ip": ROUTE}, link_gbit_per_s=10)
    assert result.verdict is Verdict.PASS


async def test_without_ip_there_is_no_link_and_the_figures_still_come(tmp_path: Path):
    result, _ = await run(tmp_path, {"iperf3": TCP})
    assert result.verdict is Verdict.PASS
    assert result.findings[0].component == "host"
    assert result.findings[0].measurements[0].threshold is None


async def test_the_longest_test_fits_into_the_checks_time(tmp_path: Path):
    _, commands = await run(tmp_path, {"iperf3": TCP}, seconds=60, omit_seconds=10)
    assert commands.calls[-1][1] + 10 < IPERF.timeout_s


async def test_without_a_server_there_is_nothing_to_measure(tmp_path: Path):
    for nobody in (None, ""):
        result, commands = await run(tmp_path, {"iperf3": TCP}, server=nobody)
        assert (result.verdict, result.reason) == (Verdict.SKIP, "NoServer")
        assert not commands.calls


async def test_a_missing_iperf3_names_its_package(tmp_path: Path):
    result, _ = await run(tmp_path, {"ip": ROUTE})
    assert (result.verdict, result.reason) == (Verdict.UNKNOWN, "ToolMissing")


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (failed("iperf3", 1, stdout=(SAMPLES / "refused.json").read_bytes()), "Connection refused"),
        (Output(argv=("iperf3",), exit_code=0, stdout=(SAMPLES / "busy.json").read_bytes()), "busy"),
        (failed("iperf3", 1, b"iperf3: parameter error - bogus\n"), "parameter error"),
        (failed("iperf3", 127, b"libiperf.so.0: cannot open shared object file"), "libiperf"),
        (failed("iperf3", -11, stdout=TCP), "SIGSEGV"),
        (hung("iperf3", 24.0), "24 s"),
        (Output(argv=("iperf3",), exit_code=0, stdout=TCP, truncated=True), "MiB"),
        (Output(argv=("iperf3",), missing="not found"), "not found"),
        (Output(argv=("iperf3",), exit_code=0), "empty"),
    ],
)
async def test_a_test_that_does_not_work_is_unknown(tmp_path: Path, output: Output, said: str):
    result, _ = await run(tmp_path, {"iperf3": output})
    assert result.verdict is Verdict.UNKNOWN
    assert said in result.message


@pytest.mark.parametrize("address", ["-h", "node-7", "10.0.0.1 -R", "$(id)", 7.5])
def test_a_server_that_is_no_address_is_refused(address: object):
    with pytest.raises(ValidationError):
        IperfParameters.model_validate({"server": address})


@pytest.mark.parametrize("text", [*TEXTS, b"[7]", b'[{"dev": 7}]', b'[{"dev": "../../x"}]', b'[{"dev": ".."}]'])
async def test_a_route_that_cannot_be_read_names_no_device(tmp_path: Path, text: bytes):
    assert await find_device_towards(node(tmp_path, {"ip": text}), "10.0.0.1") == ""


async def test_a_route_that_there_is_not_names_no_device(tmp_path: Path):
    unreachable = failed("ip", 2, b"RTNETLINK answers: Network is unreachable\n")
    assert await find_device_towards(node(tmp_path, {"ip": unreachable}), "10.0.0.1") == ""


@pytest.mark.parametrize("speed", [-1, 4294967295, 0, *map(str, NO_VALUES[:4])])
def test_a_speed_that_a_nic_does_not_know_is_none(tmp_path: Path, speed: object):
    assert link_gbit_per_s(node(lay_out(tmp_path, nic("eth0", speed))), "eth0") is None


def test_a_device_without_hardware_is_not_believed(tmp_path: Path):
    lay_out(tmp_path, {"/sys/class/net/veth0/speed": 10_000})
    assert link_gbit_per_s(node(tmp_path), "veth0") is None


def test_of_a_vlan_on_a_bond_one_port_counts(tmp_path: Path):
    files = {**nic("p0", 25_000), **nic("p1", 25_000), "/sys/class/net/bond0/speed": 50_000}
    files |= {"/sys/class/net/bond0/lower_p0/x": 0, "/sys/class/net/bond0/lower_p1/x": 0}
    files |= {"/sys/class/net/bond0.7/lower_bond0/x": 0, "/sys/class/net/bond0.7/speed": 50_000}
    assert link_gbit_per_s(node(lay_out(tmp_path, files)), "bond0.7") == 25.0


def test_devices_that_lie_on_each_other_in_a_circle_end(tmp_path: Path):
    lay_out(tmp_path, {"/sys/class/net/a/lower_b/x": 0, "/sys/class/net/b/lower_a/x": 0})
    assert link_gbit_per_s(node(tmp_path), "a") is None


def test_a_nic_is_named_by_its_infiniband_device(tmp_path: Path):
    view = node(lay_out(tmp_path, {**nic("eth0", 1, "mlx5_0"), **nic("eth1", 1)}))
    assert [nic_name(view, name) for name in ("eth0", "eth1", "")] == ["mlx5_0", "eth1", ""]


HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
ROW = (
    "   0: 0100007F:1451 00000000:0000 {state} 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0"
)


class Serving(RecordedCommands):
    """Runs until cancelled, or ends with what was recorded; ``listening`` lays out the kernel's table."""

    def __init__(self, root: Path, listening: bool, output: Output | None = None) -> None:
        super().__init__({"iperf3": b""})
        self.root, self.listening, self.output, self.ended = root, listening, output, False

    async def run(
        self,
        argv: object,
        *,
        timeout_s: float,
        environment: Mapping[str, str] | None = None,
        limit_bytes: int = OUTPUT_LIMIT_BYTES,
    ) -> Output:
        if self.listening:
            lay_out(self.root, {"/proc/net/tcp6": HEAD + ROW.format(state="0A")})
        try:
            if self.output is not None:
                return self.output
            await asyncio.Event().wait()
        finally:
            self.ended = True
        raise AssertionError


async def test_a_server_that_listens_is_ended_with_the_block(tmp_path: Path):
    commands = Serving(tmp_path, listening=True)
    async with run_server(NodeView(tmp_path, commands), "127.0.0.1", 5201):
        assert not commands.ended
    assert commands.ended


async def test_a_server_that_never_listens_is_ended_and_told(tmp_path: Path):
    commands = Serving(tmp_path, listening=False)
    with pytest.raises(CannotTell, match=r"\b5201\b"):
        async with run_server(NodeView(tmp_path, commands), "127.0.0.1", 5201, start_s=0.05):
            raise AssertionError
    assert commands.ended


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (failed("iperf3", 1, b"unable to start listener"), "listener"),
        (Output(argv=("iperf3",), exit_code=0), "at once"),
    ],
)
async def test_a_server_that_ends_at_once_is_told(tmp_path: Path, output: Output, said: str):
    with pytest.raises(CannotTell, match=said):
        async with run_server(NodeView(tmp_path, Serving(tmp_path, False, output)), "127.0.0.1", 5201):
            raise AssertionError


async def test_a_port_that_is_taken_is_not_served_by_a_stranger(tmp_path: Path):
    lay_out(tmp_path, {"/proc/net/tcp": HEAD + ROW.format(state="0A")})
    with pytest.raises(CannotTell, match="5201"):
        async with run_server(NodeView(tmp_path, Serving(tmp_path, True)), "127.0.0.1", 5201):
            raise AssertionError


async def test_a_connection_on_the_port_is_no_listener(tmp_path: Path):
    lay_out(tmp_path, {"/proc/net/tcp": HEAD + ROW.format(state="01") + "\nrubbish\n"})
    async with run_server(NodeView(tmp_path, Serving(tmp_path, True)), "127.0.0.1", 5201):
        pass


async def test_no_server_without_iperf3(tmp_path: Path):
    with pytest.raises(ToolMissing):
        async with run_server(node(tmp_path), "127.0.0.1", 5201):
            raise AssertionError
