"""Configurations of node-problem-detector, ours and the 27 that it ships.

Each becomes a check, rules of dmesg, or is refused with a reason.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from muster_checks.plugins.folder import load_folder, read_folder

CHECKS = {
    "clock-plugin.json": "clockplugin",
    "containerd-file.json": "containerdfilerules",
    "containerd.json": "containerdrules",
    "disk-file.json": "diskrules",
    "kernel-file.json": "kernelfilerules",
    "routes-plugin.json": "routesplugin",
    "systemd.json": "systemdrules",
}
KERNEL_RULES = ("kernel.json", "read-only.json")
REFUSED = {
    "kubelet-health.json": '"/opt/npd/health-checker": ',
    "modules.json": "a list: ",
    "net-stats.json": "system-stats",
    "restarts-counter.json": '"/opt/npd/log-counter": ',
    "system-stats.json": "system-stats",
    "windows-file.json": "Windows",
    "windows-plugin.json": "Windows",
}
SHIPPED_CHECKS = {
    "abrt-adaptor.json": "abrtadaptor",
    "custom-plugin-monitor.json": "ntpcustompluginmonitor",
    "disk-log-message-filelog.json": "diskmonitor",
    "docker-monitor-filelog.json": "dockermonitorfilelog",
    "docker-monitor.json": "dockermonitor",
    "iptables-mode-monitor.json": "iptablesmodemonitor",
    "kernel-monitor-filelog.json": "kernelmonitorfilelog",
    "network-problem-monitor.json": "networkcustompluginmonitor",
    "systemd-monitor.json": "systemdmonitor",
}
SHIPPED_KERNEL_RULES = ("kernel-monitor.json", "readonly-monitor.json")
STATS = "system-stats"
WINDOWS = "Windows"
LOG_COUNTER = '"/home/kubernetes/bin/log-counter": '
HEALTH_CHECKER = '"/home/kubernetes/bin/health-checker": '
SHIPPED_REFUSED = {
    "docker-monitor-counter.json": LOG_COUNTER,
    "health-checker-containerd.json": HEALTH_CHECKER,
    "health-checker-docker.json": HEALTH_CHECKER,
    "health-checker-kubelet.json": HEALTH_CHECKER,
    "kernel-monitor-counter.json": LOG_COUNTER,
    "known-modules.json": "a list: ",
    "net-cgroup-system-stats-monitor.json": STATS,
    "system-stats-monitor.json": STATS,
    "systemd-monitor-counter.json": LOG_COUNTER,
    "windows-containerd-monitor-filelog.json": WINDOWS,
    "windows-defender-monitor.json": WINDOWS,
    "windows-health-checker-containerd.json": WINDOWS,
    "windows-health-checker-docker.json": WINDOWS,
    "windows-health-checker-kubelet.json": WINDOWS,
    "windows-health-checker-kubeproxy.json": WINDOWS,
    "windows-system-stats-monitor.json": STATS,
}


def installed(files: Path, folder: Path, executables: Collection[str]) -> Path:
    """Its layout: ``*.json`` with ``plugin/*.sh`` beside them."""
    (folder / "plugin").mkdir(parents=True)
    for file in files.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    for name in executables:
        script = folder / f"plugin/{name}.sh"
        script.write_text(f"#!/bin/sh\necho {name} is fine\n")
        script.chmod(0o755)
    return folder


@pytest.fixture
def config(samples, tmp_path):
    return installed(samples / "npd", tmp_path / "config", ("check_clock", "check_routes"))


@pytest.fixture
def shipped(shared_data, tmp_path):
    executables = ("check_ntp", "iptables_mode", "network_problem", "dns_problem")
    return installed(shared_data.folder / "npd/config", tmp_path / "config", executables)


def assert_accounted_for(
    folder: Path, checks: Mapping[str, str], kernel_rules: Collection[str], refused: Mapping[str, str]
) -> None:
    broken: dict[str, str] = {}
    found = read_folder(folder, broken)
    names = {file.name for file in folder.glob("*.json")}
    assert {file.removeprefix(f"{folder}/"): check.name for file, check in found.checks.items()} == checks
    assert {row.source for row in found.kernel_rules} == {f"node-problem-detector {file}" for file in kernel_rules}
    assert {file.removeprefix(f"{folder}/") for file in broken} == refused.keys()
    assert refused.keys() | checks.keys() | set(kernel_rules) == names
    for file, reason in refused.items():
        assert reason in broken[str(folder / file)]


def test_each_file_is_accounted_for(config):
    assert_accounted_for(config, CHECKS, KERNEL_RULES, REFUSED)


def test_each_shipped_file_is_accounted_for(shipped):
    assert len(list(shipped.glob("*.json"))) == 27
    assert_accounted_for(shipped, SHIPPED_CHECKS, SHIPPED_KERNEL_RULES, SHIPPED_REFUSED)


async def test_a_file_runs_its_own_executable(config, bench):
    (check,) = [check for check in load_folder(config) if check.name == "clockplugin"]
    assert check.probe is not None
    (finding,) = await check.probe(bench.node, check.parameters())
    assert (finding.verdict, finding.reason) == ("PASS", "ClockOff")
    assert (check.period_s, check.timeout_s) == (45.0, 7.0)


def test_without_its_executables_a_file_names_the_places_where_it_looked(samples):
    broken: dict[str, str] = {}
    load_folder(samples / "npd", broken)
    told = broken[str(samples / "npd/clock-plugin.json")]
    assert told.startswith('rules[0].path: "./plugin/check_clock.sh": ')
    assert [str(place / "plugin/check_clock.sh") in told for place in (samples / "npd", samples)] == [True, True]
