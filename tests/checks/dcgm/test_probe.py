"""The check ``dcgm`` as it is run, on recorded tools."""

import platform
import shutil
from pathlib import Path

import pytest
from tests.checks.bad_input import TEXTS

from muster_checks.base.commands import LocalCommands
from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import CannotTell, run_probe
from muster_checks.base.vocabulary import Result, Verdict
from muster_checks.dcgm import DCGM, DcgmParameters
from muster_checks.dcgm.probe import LEVEL_TIMEOUT_S, diagnose
from muster_checks.dcgm.program import find_dcgmi
from muster_checks.registry import load_registry
from muster_checks.testing.recorded import Answer, RecordedCommands, failed, hung, lay_out, node

SAMPLES = Path(__file__).parent / "samples"
DISCOVERY = (SAMPLES / "discovery.txt").read_bytes()
SIXTH_FAILS = (SAMPLES / "dcgm4-sixth-fails.json").read_bytes()


def gpu_node(root: Path, diag: Answer, **answers: Answer) -> NodeView:
    entry = "/sys/bus/pci/devices/0000:18:00.0"
    lay_out(root, {f"{entry}/vendor": "0x10de", f"{entry}/device": "0x2330", f"{entry}/class": "0x030200"})
    return node(root, {"dcgmi discovery": DISCOVERY, "dcgmi diag": diag, **answers})


async def run(view: NodeView, **parameters: object) -> Result:
    return await run_probe(DCGM, view, DcgmParameters.model_validate(parameters))


def calls(view: NodeView) -> list[tuple[tuple[str, ...], float]]:
    assert isinstance(view.commands, RecordedCommands)
    return view.commands.calls


async def test_the_sixth_of_eight_gpus_is_named_by_its_address(tmp_path: Path) -> None:
    # a failed test has exit code 226 (DCGM_ST_NVVS_ERROR), with the whole document
    view = gpu_node(tmp_path, failed("dcgmi", 226, stdout=SIXTH_FAILS))
    result = await run(view)
    assert [one.component for one in result.findings if one.verdict is Verdict.FAIL] == ["gpu/0000:bd:00.0"]
    assert calls(view)[-1] == (("dcgmi", "diag", "-r", "1", "-j"), 180.0)


async def test_the_host_engine_may_be_elsewhere_but_only_the_configuration_says_where(tmp_path: Path) -> None:
    view = gpu_node(tmp_path, SIXTH_FAILS)
    await run(view, host="unix:///host/run/dcgm.sock")
    lines = [line for line, _ in calls(view)]
    assert [line[-2:] for line in lines] == [("--host", "unix:///host/run/dcgm.sock")] * 2
    assert DcgmParameters.configured == {"host"}


@pytest.mark.parametrize("host", ["-r", "--host", "a b", "unix://run/x", "unix:///run/a b", "$(id)", "a\n"])
def test_what_is_no_address_of_a_host_engine(host: str) -> None:
    with pytest.raises(ValueError, match="host"):
        DcgmParameters.model_validate({"host": host})


@pytest.mark.parametrize("host", ["", "localhost", "10.0.0.1:5555", "[::1]:5555", "nvidia-dcgm.gpu-operator.svc"])
def test_what_is_an_address_of_a_host_engine(host: str) -> None:
    assert DcgmParameters.model_validate({"host": host}).host == host


def installed_on_the_node(root: Path) -> None:
    """A dcgmi below ``root`` that prints its arguments, with the loader and the C library of this machine."""
    machine = platform.machine()
    loader = Path("/lib64/ld-linux-x86-64.so.2" if machine == "x86_64" else "/lib/ld-linux-aarch64.so.1")
    library = Path(f"/lib/{machine}-linux-gnu/libc.so.6")
    for source, target in ((Path("/bin/echo"), Path("/usr/bin/dcgmi")), (loader, loader), (library, library)):
        (root / str(target)[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, root / str(target)[1:])


async def test_an_agent_in_a_container_runs_the_nodes_dcgmi_with_the_nodes_libraries(tmp_path: Path) -> None:
    installed_on_the_node(tmp_path)
    program = find_dcgmi(NodeView(tmp_path))
    assert program is not None
    output = await LocalCommands().run([*program, "diag", "-r", "1"], timeout_s=10.0)
    assert output.stdout == b"diag -r 1\n"
    maps = await LocalCommands().run([*program[:3], "--list", program[3]], timeout_s=10.0)
    assert str(tmp_path).encode() in maps.stdout, "not the container's libraries"
    view = gpu_node(tmp_path, SIXTH_FAILS)
    assert isinstance(view.commands, RecordedCommands)
    view.commands.answers = {program[0]: DISCOVERY, f"timeout -k 30 180 {program[0]}": SIXTH_FAILS, "timeout": b""}
    assert (await run(view)).findings[0].component == "gpu/0000:bd:00.0"


async def test_links_of_the_node_are_followed_on_the_node(tmp_path: Path) -> None:
    """As on Debian and Ubuntu, where /lib64/ld-linux-x86-64.so.2 is an absolute link."""
    installed_on_the_node(tmp_path)
    program = find_dcgmi(NodeView(tmp_path))
    assert program is not None
    loader = Path(program[0])
    (tmp_path / "lib").rename(tmp_path / "usr/lib")
    (tmp_path / "lib").symlink_to("/usr/lib")
    own = f"{platform.machine()}-linux-gnu/ld-of-the-node.so"
    loader = tmp_path / "usr" / loader.relative_to(tmp_path) if "lib64" not in loader.parts else loader
    loader.rename(tmp_path / "usr/lib" / own)
    loader.symlink_to(f"/lib/{own}")
    (tmp_path / "opt").mkdir()
    (tmp_path / "usr/bin/dcgmi").rename(tmp_path / "opt/dcgmi-of-the-node")
    (tmp_path / "usr/bin/dcgmi").symlink_to("/opt/dcgmi-of-the-node")
    found = find_dcgmi(NodeView(tmp_path))
    assert found is not None
    folders = found[2].split(":")
    assert (found[0], found[3]) == (str(tmp_path / "usr/lib" / own), str(tmp_path / "opt/dcgmi-of-the-node"))
    assert [folder for folder in folders if not Path(folder).resolve().is_relative_to(tmp_path)] == []
    output = await LocalCommands().run([*found, "diag", "-r", "1"], timeout_s=10.0)
    assert output.stdout == b"diag -r 1\n"
    maps = await LocalCommands().run([*found[:3], "--list", found[3]], timeout_s=10.0)
    assert f"{tmp_path}/usr/lib" in maps.stdout.decode()


@pytest.mark.parametrize("lacks", ["/usr/bin/dcgmi", "/lib64/ld-linux-x86-64.so.2"])
async def test_without_a_dcgmi_that_can_run_nothing_of_the_node_is_run(tmp_path: Path, lacks: str) -> None:
    if lacks != "/usr/bin/dcgmi" and platform.machine() != "x86_64":
        lacks = "/lib/ld-linux-aarch64.so.1"
    installed_on_the_node(tmp_path)
    (tmp_path / lacks[1:]).unlink()
    view = gpu_node(tmp_path, SIXTH_FAILS)
    assert isinstance(view.commands, RecordedCommands)
    view.commands.answers = {}
    result = await run(view)
    assert (result.verdict, result.reason) == (Verdict.UNKNOWN, "ToolMissing")
    assert calls(view) == []


async def test_a_gpu_that_the_diagnostic_passed_over_is_unknown(tmp_path: Path) -> None:
    lost = "/sys/bus/pci/devices/0000:f0:00.0"
    lay_out(tmp_path, {f"{lost}/vendor": "0x10de", f"{lost}/device": "0x2330", f"{lost}/class": "0x030200"})
    result = await run(gpu_node(tmp_path, SIXTH_FAILS))
    unknown = [(one.component, one.reason) for one in result.findings if one.verdict is Verdict.UNKNOWN]
    assert unknown == [("gpu/0000:f0:00.0", "NotTested")]


async def test_without_discovery_gpus_have_dcgms_numbers(tmp_path: Path) -> None:
    view = gpu_node(tmp_path, SIXTH_FAILS, **{"dcgmi discovery": failed("dcgmi", 1)})
    assert (await run(view)).findings[0].component == "gpu/5"


async def test_a_gpu_keeps_its_address_where_a_later_discovery_fails(tmp_path: Path) -> None:
    answers = iter([DISCOVERY, failed("dcgmi", 1)])
    view = gpu_node(tmp_path, SIXTH_FAILS, **{"dcgmi discovery": lambda _: next(answers)})
    first, second = [(await run(view)).findings[0].component for _ in range(2)]
    assert first.startswith("gpu/0000:")
    assert second == first


@pytest.mark.parametrize("level", [1, 2, 3, 4])
async def test_each_level_has_its_time(tmp_path: Path, level: int) -> None:
    view = gpu_node(tmp_path, SIXTH_FAILS)
    await run(view, r=level)
    assert calls(view)[-1] == (("dcgmi", "diag", "-r", str(level), "-j"), LEVEL_TIMEOUT_S[level])
    assert LEVEL_TIMEOUT_S[level] + 2 * 30 < DCGM.timeout_s


@pytest.mark.parametrize("level", [0, 5, "long"])
def test_other_levels_are_refused(level: object) -> None:
    with pytest.raises(ValueError, match="r"):
        DcgmParameters.model_validate({"r": level})


async def test_a_diagnostic_that_takes_too_long_is_asked_to_stop(tmp_path: Path) -> None:
    view = gpu_node(tmp_path, SIXTH_FAILS, **{"timeout -k 30 180 dcgmi diag": failed("timeout", 124)})
    result = await run(view)
    assert (result.verdict, result.reason) == (Verdict.UNKNOWN, "Timeout")
    assert calls(view)[-1][1] == 240.0  # after timeout(1) had its turn


async def test_a_dcgmi_out_of_time_can_tell_its_host_engine_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "dcgmi"
    program.write_text(f"#!/bin/sh\ntrap 'echo stopped > {tmp_path}/told; exit 0' TERM\nwhile :; do sleep 0.05; done\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(CannotTell, match=r"\b5 s\b"):
        await diagnose(NodeView(), ("-r", "1", "-j"), 5.0)
    assert (tmp_path / "told").read_text() == "stopped\n"


@pytest.mark.parametrize(
    ("answer", "reason", "advice"),
    [
        (hung("dcgmi diag", 180.0), "Timeout", "180 s"),
        (
            failed(
                "dcgmi diag",
                1,
                stdout=b"Error: unable to establish a connection to the specified host: localhost\n"
                b"Error: Unable to connect to host engine. Host engine connection invalid/disconnected.\n",
            ),
            "NoHostEngine",
            "systemctl start nvidia-dcgm",
        ),
        (
            b'{"DCGM Diagnostic": {"runtime_error": "Error: Unable to complete diagnostic for group 2147483647. '
            b'Return: (-39) : A diag instance is already running, cannot run a new one until it finishes."}}',
            "Busy",
            "already running",
        ),
        (
            b'{"DCGM GPU Diagnostic": {"runtime_error": "Error: Diagnostic could not be run because the Tesla '
            b'recommended driver is not being used."}}',
            "DriverMissing",
            "nvidia-smi",
        ),
        (
            b'{"DCGM Diagnostic": {"runtime_error": "Error: The NVVS binary was not found in the specified location"}}',
            "ToolMissing",
            "datacenter-gpu-manager-4-cuda12",
        ),
        (
            b'{"DCGM Diagnostic": {"runtime_error": "Error: Diagnostic can only be performed on a homogeneous group of '
            b'GPUs."}}',
            "DiagNotRun",
            "homogeneous group",
        ),
        (failed("dcgmi diag", 127, b"libdcgm.so.4: cannot open"), "DiagNotRun", "libdcgm.so.4"),
        (
            failed(
                "dcgmi diag",
                127,
                b"/host/usr/bin/dcgmi: error while loading shared libraries: libdcgm.so.4: cannot open shared object "
                b"file: No such file or directory",
            ),
            "ToolMissing",
            "libdcgm.so.4",
        ),
        (
            failed("dcgmi diag", 1, b"dcgmi: libc.so.6: version `GLIBC_2.38' not found (required by dcgmi)"),
            "ToolMissing",
            "GLIBC_2.38",
        ),
        (
            failed("dcgmi diag", 127, b"dcgmi: symbol lookup error: libc.so.6: undefined symbol: _dl_x, GLIBC_PRIVATE"),
            "ToolMissing",
            "_dl_x",
        ),
        (failed("dcgmi diag", -9), "DiagNotRun", "SIGKILL"),
        (failed("dcgmi diag", 255, stdout=b"Error: PARSE ERROR"), "DiagNotRun", "255"),
        *[(text, "DiagNotRun", "") for text in TEXTS],
    ],
)
async def test_a_diagnostic_that_did_not_run_is_unknown_and_says_what_to_do(
    tmp_path: Path, answer: Answer, reason: str, advice: str
) -> None:
    result = await run(gpu_node(tmp_path, answer))
    assert (result.verdict, result.reason, result.findings) == (Verdict.UNKNOWN, reason, ())
    assert advice in result.message


async def test_without_dcgmi_it_says_what_to_install(tmp_path: Path) -> None:
    view = gpu_node(tmp_path, b"")
    assert isinstance(view.commands, RecordedCommands)
    view.commands.answers.clear()
    result = await run(view)
    assert (result.verdict, result.reason) == (Verdict.UNKNOWN, "ToolMissing")
    assert "datacenter-gpu-manager-4-core" in result.message


async def test_a_dcgmi_that_vanishes_is_missing(tmp_path: Path) -> None:
    view = gpu_node(tmp_path, b"")
    assert isinstance(view.commands, RecordedCommands)
    del view.commands.answers["dcgmi diag"]
    assert (await run(view)).reason == "ToolMissing"


async def test_a_node_without_gpus_is_left_out(tmp_path: Path) -> None:
    assert (await run(node(tmp_path, {"dcgmi": b""}))).verdict is Verdict.SKIP


def test_the_check_is_shipped() -> None:
    assert load_registry(())["dcgm"] is DCGM
