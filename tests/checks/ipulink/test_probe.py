"""The check ``ipulink`` as it is run: each test by itself, and what one that cannot run leaves behind."""

import pytest
from tests.checks.graphcore.sample import sample

from muster_checks.base.commands import Output
from muster_checks.base.declaration import Cost
from muster_checks.base.execution import run_probe
from muster_checks.base.vocabulary import Verdict
from muster_checks.ipulink import IPULINK, IpuLinkParameters
from muster_checks.ipulink.probe import probe
from muster_checks.testing.recorded import failed, hung, lay_out, node

ROW = b"-+- Id: [%d], target: [Fabric], IPU-M host: [10.1.5.10], IPU#: [%d]\n"
LISTED = b"Partition: p1 [active]\n" + b"".join(ROW % (number, 3 - number) for number in range(4))
TRAFFIC = sample("gc_iputraffictest.json")
TOOLS = {
    "gc-info -l": LISTED,
    "gc-info -d": sample("gc_info_device_m2000.txt"),
    "gc-links": sample("gc_links_pod.json"),
    "gc-iputraffictest": TRAFFIC,
    "gc-hostsynclatencytest": sample("gc_hostsynclatencytest.json"),
    "vipu": sample("vipu_list_partitions.txt"),
}
CONTROLLER = {"IPUOF_VIPU_API_HOST": "10.1.5.1", "IPUOF_VIPU_API_PARTITION_ID": "train-16"}


async def _findings(root, answers=(), parameters=None, environment=None):
    view = node(root, {**TOOLS, **dict(answers)})
    return view, await probe(view, parameters or IpuLinkParameters(), environment or {})


def _verdicts(findings):
    return {(finding.component, finding.reason): finding.verdict for finding in findings}


def _without(tool):
    return {key: answer for key, answer in TOOLS.items() if key.split()[0] != tool}


async def test_sound_links_pass_each_test(tmp_path):
    view, findings = await _findings(tmp_path, environment=CONTROLLER)
    assert _verdicts(findings) == {
        ("ipu/partition:train-16", "PartitionActive"): Verdict.PASS,
        ("ipu/unnamed", "LinksTrained"): Verdict.PASS,
        ("ipu/10.1.5.10/1", "IpuTraffic"): Verdict.PASS,
        **{(f"ipu/10.1.5.10/{index}", "HostSync"): Verdict.PASS for index in range(4)},
    }
    lines = [" ".join(argv) for argv, _ in view.commands.calls]
    assert lines == [
        "gc-info -l",
        "gc-info -d 0 --device-info",
        "vipu list partitions --api-host 10.1.5.1 --api-port 8090",
        "gc-links -j",
        "gc-iputraffictest --all-links -j",
        *(f"gc-hostsynclatencytest -d {number} -j" for number in range(4)),
    ]


async def test_a_host_without_a_controller_asks_none(tmp_path):
    view, _ = await _findings(tmp_path)
    assert "vipu" not in {argv[0] for argv, _ in view.commands.calls}


async def test_a_single_ipu_has_no_links_to_test(tmp_path):
    view, findings = await _findings(tmp_path, {"gc-info -l": ROW % (0, 3)})
    assert _verdicts(findings) == {("ipu/10.1.5.10/3", "HostSync"): Verdict.PASS}
    assert not {"gc-links", "gc-iputraffictest"} & {argv[0] for argv, _ in view.commands.calls}


@pytest.mark.parametrize(
    ("tool", "reason", "said"),
    [
        ("gc-links", "LinksNotTested", "Poplar SDK"),
        ("gc-iputraffictest", "TrafficNotTested", "Poplar SDK"),
        ("gc-hostsynclatencytest", "SyncNotTested", "Poplar SDK"),
        ("vipu", "PartitionsNotRead", "V-IPU"),
    ],
)
async def test_one_missing_tool_leaves_the_others_judged(tmp_path, tool, reason, said):
    findings = await probe(node(tmp_path, _without(tool)), IpuLinkParameters(), CONTROLLER)
    unknown = [finding for finding in findings if finding.verdict is Verdict.UNKNOWN]
    assert [(finding.component, finding.reason) for finding in unknown] == [("host", reason)]
    assert unknown[0].message.startswith(f"{tool}: ")
    assert said in unknown[0].message
    assert sum(finding.verdict is Verdict.PASS for finding in findings) >= 3


@pytest.mark.parametrize("tool", ["gc-links", "gc-iputraffictest", "gc-hostsynclatencytest", "vipu"])
@pytest.mark.parametrize("how", ["exit 1", "exit 127", "killed", "hung", "garbage", "truncated", "cut"])
async def test_a_tool_that_breaks_is_never_a_failure(tmp_path, tool, how):
    whole = TOOLS[tool]
    bad = {
        "exit 1": failed(tool, 1, b"device busy", whole),
        "exit 127": failed(tool, 127),
        "killed": failed(tool, -9, stdout=whole),
        "hung": hung(tool),
        "garbage": b"Segmentation fault (core dumped)\n",
        "truncated": Output(argv=(tool,), exit_code=0, stdout=whole, truncated=True),
        "cut": whole[: len(whole) // 2] if tool != "vipu" else whole[:20],
    }
    _, findings = await _findings(tmp_path, {tool: bad[how]}, environment=CONTROLLER)
    assert {finding.verdict for finding in findings} == {Verdict.PASS, Verdict.UNKNOWN}


async def test_a_failed_channel_counts_though_the_tool_ended_badly(tmp_path):
    text = sample("gc_links_failed_1.0.x.json").replace(b'"13"', b'"3"').replace(b'"12"', b'"2"')
    _, findings = await _findings(tmp_path, {"gc-links": failed("gc-links", 1, b"training failed", text)})
    assert _verdicts(findings)["ipu/10.1.5.10/0", "IpuLinkFailed:NLC_E_1B"] is Verdict.FAIL
    assert ("host", "LinksNotTested") not in _verdicts(findings)


@pytest.mark.parametrize("exit_code", [-9, -11])
async def test_what_a_tool_said_before_it_was_killed_proves_nothing(tmp_path, exit_code):
    killed = failed("gc-links", exit_code, stdout=sample("gc_links_failed_1.0.x.json"))
    _, findings = await _findings(tmp_path, {"gc-links": killed})
    assert _verdicts(findings)["host", "LinksNotTested"] is Verdict.UNKNOWN
    assert Verdict.FAIL not in {finding.verdict for finding in findings}


async def test_a_degraded_channel_of_a_run_that_ended_badly_is_not_the_whole_story(tmp_path):
    channel = '{"from": "%s", "to": "A", "status": "passed", "gen": "4", "lanes": "%d"}'
    channels = ",".join([channel % (name, 8) for name in "ABC"] + [channel % ("D", 4)])
    text = f'{{"from_pcie_id": "3", "to_pcie_id": "2", "channels": [{channels}]}}'.encode()
    _, findings = await _findings(tmp_path, {"gc-links": failed("gc-links", 1, b"lost contact", text)})
    assert _verdicts(findings)["ipu/10.1.5.10/0", "IpuLinkDegraded:D"] is Verdict.WARN
    assert _verdicts(findings)["host", "LinksNotTested"] is Verdict.UNKNOWN


async def test_poplars_own_word_counts_and_the_test_stays_unfinished(tmp_path):
    error = b"recoverable_runtime_error: [Recovery action: PARTITION_RESET] CIUERRVR.NMLINKDN0 error on IPU 2\n"
    _, findings = await _findings(tmp_path, {"gc-iputraffictest": failed("gc-iputraffictest", 1, error)})
    assert _verdicts(findings)["ipu/10.1.5.10/1", "Ciuerrvr:NMLINKDN0"] is Verdict.FAIL
    assert _verdicts(findings)["host", "TrafficNotTested"] is Verdict.UNKNOWN


async def test_an_operators_minimum_is_found_by_the_board_of_the_first_ipu(tmp_path):
    own = tmp_path / "mine.yaml"
    own.write_text("- {model: M2000, min_ipu_traffic_gbit_per_s: 450}\n")
    _, findings = await _findings(tmp_path, parameters=IpuLinkParameters(expected=own))
    assert _verdicts(findings)["ipu/10.1.5.10/1", "IpuTrafficSlow:3"] is Verdict.FAIL


async def test_ipus_that_hang_do_not_take_the_time_of_all(tmp_path):
    slow = hung("gc-hostsynclatencytest", after_s=60.0)
    parameters = IpuLinkParameters(sync_timeout_s=100.0)
    view, findings = await _findings(tmp_path, {"gc-hostsynclatencytest": slow}, parameters)
    times = [timeout_s for argv, timeout_s in view.commands.calls if argv[0] == "gc-hostsynclatencytest"]
    assert times == [60.0, 40.0]
    unknown = {finding.component for finding in findings if finding.verdict is Verdict.UNKNOWN}
    assert {"ipu/10.1.5.10/1", "ipu/10.1.5.10/0"} <= unknown


async def test_each_test_has_its_own_time_out(tmp_path):
    view, _ = await _findings(tmp_path, parameters=IpuLinkParameters(links_timeout_s=11, traffic_timeout_s=12))
    times = {argv[0]: timeout_s for argv, timeout_s in view.commands.calls}
    assert (times["gc-links"], times["gc-iputraffictest"]) == (11, 12)


async def test_a_card_that_is_not_listed_is_not_tested(tmp_path):
    card = {"vendor": "0x1d95", "device": "0x0001", "class": "0x120000"}
    lay_out(tmp_path, {f"/sys/bus/pci/devices/0000:1a:00.0/{name}": value for name, value in card.items()})
    _, findings = await _findings(tmp_path)
    assert _verdicts(findings)["ipu/0000:1a:00.0", "NotListed"] is Verdict.UNKNOWN


async def test_the_run_fits_its_time_even_when_every_tool_hangs(tmp_path, monkeypatch):
    longest = IpuLinkParameters(links_timeout_s=200, traffic_timeout_s=400, sync_timeout_s=240)
    assert longest.links_timeout_s + longest.traffic_timeout_s + longest.sync_timeout_s + 3 * 20 <= IPULINK.timeout_s
    assert IPULINK.cost is Cost.HEAVY
    monkeypatch.delenv("IPUOF_VIPU_API_HOST", raising=False)
    monkeypatch.delenv("IPUOF_CONFIG_PATH", raising=False)
    assert (await run_probe(IPULINK, node(tmp_path), longest)).verdict is Verdict.SKIP
