"""Runs the tests in sequence, since each needs exclusive use of the IPUs. If one cannot run, the others still count."""

import os
import time
from collections.abc import Callable, Mapping

import msgspec

from muster_checks.base.bounded_read import Unreadable
from muster_checks.base.commands import Output
from muster_checks.base.declaration import NodeView
from muster_checks.base.vocabulary import Finding, Verdict
from muster_checks.graphcore import SDK
from muster_checks.graphcore.discovery import discover_ipus
from muster_checks.graphcore.models import IpuModel, ipu_models
from muster_checks.graphcore.probe import read_attributes
from muster_checks.graphcore.settings import IpuFabric, read_fabric
from muster_checks.graphcore.tools import host_sync, ipu_traffic, links, partitions, poplar
from muster_checks.graphcore.tools.device_list import IpuDevice
from muster_checks.ipulink import IpuLinkParameters
from muster_checks.ipulink.judge import judge_links, judge_partitions, judge_sync, judge_traffic, name_component

TOOL_TIMEOUT_S = 20.0
SYNC_TIMEOUT_S = 60.0
VIPU = "Graphcore's V-IPU command line (vipu)"


class _IpuLinkBench(msgspec.Struct, frozen=True):
    """What every test needs. ``components``: device id -> component."""

    node: NodeView
    fabric: IpuFabric
    devices: tuple[IpuDevice, ...]
    components: dict[str, str]
    expected: IpuModel | None
    parameters: IpuLinkParameters

    async def run(self, argv: list[str], timeout_s: float) -> Output:
        return await self.node.commands.run(argv, timeout_s=timeout_s, environment=self.fabric.variables)

    def judge_output(
        self, output: Output, where: str, reason: str, install: str, judge: Callable[[bytes], list[Finding]]
    ) -> list[Finding]:
        """Judge the output. If the tool failed because it found a fault, that fault counts, but nothing that it
        reported as good. Truncated output is not judged. ``where``: the component to use if the tool did not run."""
        if output.missing:
            return [_not_tested("host", reason, f"{output.argv[0]}: not found on this node; install {install}")]
        if output.timed_out or output.truncated or output.exit_code is None or output.exit_code < 0:
            return [_not_tested(where, reason, output.trouble)]
        errors = poplar.parse(output.stdout + b"\n" + output.stderr)
        findings = [poplar.judge(error, name_component(self.components, error.device_id)) for error in errors]
        try:
            findings += judge(output.stdout)
        except Unreadable as error:
            return [*findings, _not_tested(where, reason, output.trouble or str(error))]
        if not output.trouble:
            return findings
        bad = [finding for finding in findings if finding.verdict is not Verdict.PASS]
        if not any(finding.verdict is Verdict.FAIL for finding in bad):
            bad.append(_not_tested(where, reason, output.trouble))
        return bad


async def probe(
    node: NodeView, parameters: IpuLinkParameters, environment: Mapping[str, str] = os.environ
) -> list[Finding]:
    table = ipu_models(parameters.expected)
    fabric = read_fabric(parameters, environment)
    found = await discover_ipus(node, fabric, parameters.all_partitions, TOOL_TIMEOUT_S)
    boards = await read_attributes(node, fabric, found.devices[:1], TOOL_TIMEOUT_S)
    board = next((reading.attributes.board for reading in boards if reading.attributes), "")
    components = {device.device_id: device.component for device in found.devices}
    bench = _IpuLinkBench(node, fabric, found.devices, components, table.of(board), parameters)
    findings = await _partitions(bench)
    if len(found.devices) > 1:  # traffic needs at least two IPUs
        findings += await _links(bench)
        findings += await _traffic(bench)
    findings += await _sync(bench)
    message = "on the PCI bus, but not listed by gc-info"
    return findings + [_not_tested(one, "NotListed", message) for one in found.unlisted]


async def _links(bench: _IpuLinkBench) -> list[Finding]:
    output = await bench.run(["gc-links", "-j"], bench.parameters.links_timeout_s)
    return bench.judge_output(
        output,
        "host",
        "LinksNotTested",
        SDK,
        lambda text: judge_links(links.parse(text), bench.expected, bench.components),
    )


async def _traffic(bench: _IpuLinkBench) -> list[Finding]:
    output = await bench.run(["gc-iputraffictest", "--all-links", "-j"], bench.parameters.traffic_timeout_s)
    share = bench.parameters.min_share_of_siblings
    return bench.judge_output(
        output,
        "host",
        "TrafficNotTested",
        SDK,
        lambda text: judge_traffic(ipu_traffic.parse(text), bench.expected, share, bench.components),
    )


async def _sync(bench: _IpuLinkBench) -> list[Finding]:
    findings: list[Finding] = []
    left_s = bench.parameters.sync_timeout_s
    for device in bench.devices:
        if left_s <= 0:
            findings.append(_not_tested(device.component, "SyncNotTested", "sync_timeout_s ran out before its turn"))
            continue
        argv = ["gc-hostsynclatencytest", "-d", device.device_id, "-j"]
        begun = time.monotonic()
        output = await bench.run(argv, min(SYNC_TIMEOUT_S, left_s))
        left_s -= max(output.duration_s, time.monotonic() - begun)  # to kill it takes time as well
        findings += _judge_sync(bench, device.component, output)
        if output.missing:
            break
    return findings


def _judge_sync(bench: _IpuLinkBench, ipu: str, output: Output) -> list[Finding]:
    return bench.judge_output(output, ipu, "SyncNotTested", SDK, lambda text: [judge_sync(host_sync.parse(text), ipu)])


async def _partitions(bench: _IpuLinkBench) -> list[Finding]:
    if not bench.fabric.host:
        return []
    argv = ["vipu", "list", "partitions", "--api-host", bench.fabric.host, "--api-port", str(bench.fabric.port)]
    output = await bench.run(argv, TOOL_TIMEOUT_S)
    return bench.judge_output(
        output,
        "host",
        "PartitionsNotRead",
        VIPU,
        lambda text: judge_partitions(partitions.parse(text), bench.fabric.partition),
    )


def _not_tested(where: str, reason: str, message: str) -> Finding:
    # on the host it covers all IPUs: a test that did not run must not close any IPU's findings
    return Finding(component=where, verdict=Verdict.UNKNOWN, reason=reason, message=message)
