"""The 27 files that node-problem-detector ships: each becomes a check, rules of dmesg, or is refused with a reason."""

import pytest

from muster_checks.plugins.folder import load_folder, read_folder

CHECKS = {
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
KERNEL_RULES = ("kernel-monitor.json", "readonly-monitor.json")
STATS = "a system-stats monitor"
WINDOWS = "a path of Windows"
LOG_COUNTER = '"/home/kubernetes/bin/log-counter": does not exist'
HEALTH_CHECKER = '"/home/kubernetes/bin/health-checker": does not exist'
REFUSED = {
    "docker-monitor-counter.json": LOG_COUNTER,
    "health-checker-containerd.json": HEALTH_CHECKER,
    "health-checker-docker.json": HEALTH_CHECKER,
    "health-checker-kubelet.json": HEALTH_CHECKER,
    "kernel-monitor-counter.json": LOG_COUNTER,
    "known-modules.json": "a list: expected the configuration of a monitor",
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


@pytest.fixture
def shipped(samples, tmp_path):
    """Its layout: ``config/*.json`` with ``config/plugin/*.sh`` beside them."""
    folder = tmp_path / "config"
    (folder / "plugin").mkdir(parents=True)
    for sample in (samples / "npd").iterdir():
        (folder / sample.name).write_bytes(sample.read_bytes())
    for name in ("check_ntp", "iptables_mode", "network_problem", "dns_problem"):
        script = folder / f"plugin/{name}.sh"
        script.write_text(f"#!/bin/sh\necho {name} is fine\n")
        script.chmod(0o755)
    return folder


def test_each_shipped_file_is_accounted_for(shipped):
    broken: dict[str, str] = {}
    found = read_folder(shipped, broken)
    names = {file.name for file in shipped.glob("*.json")}
    assert len(names) == 27
    assert {file.removeprefix(f"{shipped}/"): check.name for file, check in found.checks.items()} == CHECKS
    assert {row.source for row in found.kernel_rules} == {f"node-problem-detector {file}" for file in KERNEL_RULES}
    assert {file.removeprefix(f"{shipped}/") for file in broken} == REFUSED.keys()
    assert REFUSED.keys() | CHECKS.keys() | set(KERNEL_RULES) == names


@pytest.mark.parametrize("file", REFUSED)
def test_what_cannot_work_here_is_refused_with_its_reason(file, shipped):
    broken: dict[str, str] = {}
    load_folder(shipped, broken)
    assert REFUSED[file] in broken[str(shipped / file)]


async def test_a_shipped_file_runs_its_own_executable(shipped, bench):
    (check,) = [check for check in load_folder(shipped) if check.name == "ntpcustompluginmonitor"]
    assert check.probe is not None
    (finding,) = await check.probe(bench.node, check.parameters())
    assert (finding.verdict, finding.reason) == ("PASS", "NTPIsDown")
    assert (check.period_s, check.timeout_s) == (30.0, 6.0)


def test_without_its_executables_a_file_says_where_it_looked(samples):
    broken: dict[str, str] = {}
    load_folder(samples / "npd", broken)
    told = broken[str(samples / "npd/custom-plugin-monitor.json")]
    assert told == (
        f'rules[0].path: "./config/plugin/check_ntp.sh": does not exist; looked for '
        f"{samples}/npd/config/plugin/check_ntp.sh and {samples}/config/plugin/check_ntp.sh"
    )
