"""`muster replay` with the ResourceSlices of a real API server, as kubectl prints them."""

from pathlib import Path

import pytest
from tests.cluster.devices import stand_in
from tests.cluster.devices.test_device_quarantine import POLICY, publish
from tests.docs.command_list import commands_of_test
from tests.docs.command_runner import CommandRunner
from tests.tainter.devices.device_world import gpu

from muster_cli.__main__ import main
from muster_kube.api.client import KubeClient

device_api = stand_in.device_api  # fixture

KERNEL = (
    "2027-01-15T06:00:00,000000+00:00 Linux version 6.1.0\n"
    "2027-01-15T07:00:00,000000+00:00 NVRM: Xid (PCI:0000:23:00): 95, pid=7, name=python, Uncontained\n"
    "2027-01-15T09:00:00,000000+00:00 an ordinary line\n"
)


async def test_what_kubectl_prints_names_the_devices_of_a_replay(
    device_api: KubeClient, kubeconfig: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await publish(device_api, "node-1")
    runner = CommandRunner(commands_of_test(__file__), {}, {"KUBECONFIG": str(kubeconfig)}, tmp_path)
    (tmp_path / "slices.json").write_text(runner.type("kubectl get resourceslices -o json"))
    (tmp_path / "node-1.log").write_text(KERNEL)
    (tmp_path / "policy.yaml").write_text(POLICY)
    words = [str(tmp_path / "policy.yaml"), "--log", str(tmp_path / "node-1.log")]
    assert main(["replay", *words, "--slices", str(tmp_path / "slices.json")]) == 0
    shown = capsys.readouterr().out
    assert gpu(1) in shown
    assert "0 of 1 node tainted" in shown
    assert not runner.left
