"""Reads a node's IPUs and judges them."""

import os
from collections.abc import Mapping

from muster_checks.base.counter_history import Rise, read_series
from muster_checks.base.declaration import NodeView
from muster_checks.base.vocabulary import Finding
from muster_checks.graphcore.discovery import discover_ipus
from muster_checks.graphcore.models import ipu_models
from muster_checks.graphcore.probe import IpuReading, read_attributes, read_health
from muster_checks.graphcore.settings import read_fabric
from muster_checks.ipu import IpuParameters
from muster_checks.ipu.judge import IpuLimits, counters, judge, judge_health, judge_unlisted

WINDOW_S = 3600.0
TOOL_TIMEOUT_S = 15.0


async def probe(
    node: NodeView, parameters: IpuParameters, environment: Mapping[str, str] = os.environ
) -> list[Finding]:
    limits = IpuLimits(ipu_models(parameters.expected), parameters.max_link_errors_per_hour)
    fabric = read_fabric(parameters, environment)
    found = await discover_ipus(node, fabric, parameters.all_partitions, TOOL_TIMEOUT_S)
    latest: list[IpuReading] = []

    async def read() -> dict[str, float]:
        latest[:] = await read_attributes(node, fabric, found.devices, TOOL_TIMEOUT_S)
        return {
            f"{reading.device.component} {name}": value
            for reading in latest
            if reading.attributes is not None
            for name, value in counters(reading.attributes).items()
        }

    series = await read_series(node.history, "ipu", read, parameters.first_interval_s)
    rises: dict[str, dict[str, Rise]] = {}
    for key, values in series.items():
        component, _, name = key.rpartition(" ")
        rises.setdefault(component, {})[name] = values.rise(WINDOW_S)
    health = await read_health(node, fabric, parameters.all_partitions, TOOL_TIMEOUT_S)
    components = {device.device_id: device.component for device in found.devices}
    findings = judge_health(health, components)
    failed = {finding.component for finding in findings}
    # an IPU that the library reports as unhealthy gets no PASS, whatever its attributes are
    sound = [
        finding
        for finding in judge(latest, rises, limits)
        if finding.reason != "Healthy" or finding.component not in failed
    ]
    return findings + sound + judge_unlisted(found.unlisted)
