"""What IPUs say of themselves, and where it leads: an agent that replays Graphcore's tools, the tainter, the V-IPU
proxy and a simulated V-IPU controller, each a process of its own, on a real API server."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.checks.graphcore.sample import sample
from tests.cluster.agent.ipu_host import BAD, IPU, MACHINE, IpuHost, component
from tests.cluster.ipujob.operator_bed import Program
from tests.cluster.ipujob_api.test_vipu_proxy import MAPS, QUARANTINE, Bed, called, partitions, wish
from tests.cluster.ipujob_api.test_vipu_proxy import bed as proxy_bed
from tests.cluster.tainter.test_end_to_end import HEALTHS, Tainters, until

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import NotFound
from muster_operator.job.names import PARKED_PREFIX
from muster_sandbox.controlplane.cluster import ControlPlane
from muster_sandbox.simulation.nodes import NodeShape, SimulatedNodes

bed = proxy_bed  # the fixture

POLICY = """
rules:
  - name: ipus
    match: {component: "ipu/*", class: quarantine}
    action: quarantine
    proof: {passes: 3, interval: 0s, retry: 1s}
    holdDown: 1s
quarantine: {ipus: 16, share: 13%, fleet: 16}
testing: {atOnce: 100}
"""
ATTACHED = sample("gc_monitor_no_card_info.txt").decode()


class Host:
    """A node and its agent. Each look of a check is asked for, as a person does."""

    def __init__(self, api: KubeClient, name: str, agent: IpuHost) -> None:
        self._api, self.name, self.agent = api, name, agent
        self._asked = 0

    async def health(self) -> dict[str, Any]:
        return await self._api.get(f"{HEALTHS}/{self.name}")

    async def look(self, check: str, **more: str) -> dict[str, Any]:
        """The answer."""
        self._asked += 1
        name = f"ann-{self._asked}"
        body = {"apiVersion": "muster.dev/v1alpha1", "kind": "NodeHealth", "metadata": {"name": self.name}}
        asked = {"id": name, "checks": [check], "by": "ann"} | more
        await self._api.apply(f"{HEALTHS}/{self.name}", body | {"spec": {"requests": [asked]}}, field_manager="ann")

        async def answered() -> dict[str, Any] | None:
            answers = (await self.health()).get("status", {}).get("answers", [])  # its creation comes first
            return next((each for each in answers if each["id"] == name), None)

        return dict(await until(answered, f"{check} is answered"))

    async def findings(self) -> dict[tuple[str, str], str]:
        """Verdicts, by component and reason."""
        checks = (await self.health())["status"].get("checks", [])
        return {
            (found["component"], found["reason"]): found["verdict"]
            for check in checks
            for found in check.get("findings", [])
        }

    async def tried(self) -> list[str]:
        """What came of the proofs that failed last."""
        text = (await self.health())["metadata"].get("annotations", {}).get("muster.dev/proofs", "{}")
        return [each["said"] for each in json.loads(text).values()]

    async def until_tried(self, word: str) -> None:
        async def said() -> bool:
            return any(word in each for each in await self.tried())

        await until(said, f"a proof has failed with {word}")


@pytest.fixture
async def tainters(control_plane: ControlPlane, api: KubeClient, tmp_path: Path) -> AsyncIterator[Tainters]:
    made = Tainters(control_plane.kubeconfig_for("muster-tainter", "muster"), tmp_path)
    yield made
    for replica in made.replicas:
        await replica.stop()
    with suppress(NotFound):
        await api.delete(f"{MAPS}/{QUARANTINE}")


@pytest.fixture
def agents() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
async def host(
    control_plane: ControlPlane,
    fleet: SimulatedNodes,
    api: KubeClient,
    agents: ExitStack,
    tainters: Tainters,
    tmp_path: Path,
) -> Host:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    await tainters.start("--policy", str(policy))
    [name] = await fleet.create(1, prefix="poplar", shape=NodeShape(gpus=0))
    folder = tmp_path / name
    folder.mkdir()
    agent = IpuHost(folder, name, control_plane.kubeconfig_for("muster-agent", "muster"))
    agents.callback(agent.close)
    made = Host(api, name, agent)
    await until(made.health, "its NodeHealth is made")
    agent.start()
    return made


async def quarantined(api: KubeClient) -> set[str]:
    try:
        return set((await api.get(f"{MAPS}/{QUARANTINE}")).get("data") or {})
    except NotFound:
        return set()


async def until_quarantined(api: KubeClient, proxy: Program, *numbers: int) -> None:
    """By the tainter, and known to the proxy."""
    wanted = {f"{MACHINE}_{number}" for number in numbers}

    async def so() -> bool:
        known = f"muster_vipu_proxy_quarantined_ipus {float(len(wanted))}"
        return await quarantined(api) == wanted and known in (await proxy.get("/metrics")).text

    await until(so, f"{wanted} are quarantined")


async def until_available(proxy: Program, ipus: int) -> None:
    async def so() -> bool:
        return bool((await proxy.get("/stats")).json()["total"]["available"] == ipus)

    await until(so, f"{ipus} IPUs are available")


async def lie_on(simulator: Program) -> dict[str, set[tuple[str, int]]]:
    return {
        each["name"]: {(ipu["machine"], ipu["index"]) for ipu in each["ipus"]} for each in await partitions(simulator)
    }


def parks(there: dict[str, set[tuple[str, int]]]) -> list[set[tuple[str, int]]]:
    return [ipus for name, ipus in there.items() if name.startswith(PARKED_PREFIX)]


async def test_61_62_what_is_degraded_is_told_and_what_is_bad_is_kept_out_of_partitions(
    bed: Bed, host: Host, api: KubeClient
) -> None:
    agent = host.agent
    simulator = await bed.simulator(ipus=16, delay_s=0.0)
    proxy = await bed.proxy_for(simulator)
    await until_available(proxy, 16)

    # 62: each has 41,207 corrected errors behind it, which is sound
    assert (await host.look("ipu"))["verdict"] == "PASS"
    agent.says("ipu-1", IPU.replace("41207", "42207"))
    agent.says("ipu-2", IPU.replace("link width: 8", "link width: 4"))
    agent.says("ipu-3", IPU.replace("link speed: 16 GT/s", "link speed: 8 GT/s"))
    assert (await host.look("ipu"))["verdict"] == "WARN"
    assert await host.findings() == {
        (component(1), "HostLinkErrors"): "WARN",
        (component(2), "LinkDegraded"): "WARN",
        (component(3), "LinkDegraded"): "WARN",
    }
    assert await quarantined(api) == set()

    # 61: the IPU's own word, and the library's: both are out of use, and the host is left alone
    agent.says("ipu-2", BAD)
    await host.look("ipu")
    await until_quarantined(api, proxy, 2)
    agent.unhealthy(0)
    await host.look("ipu")
    await until_quarantined(api, proxy, 0, 2)
    await until_available(proxy, 14)
    assert (await proxy.post("/query", {"size": 4})).json()["numOfPartitions"] == 3
    node = await api.get(f"/api/v1/nodes/{host.name}")
    assert not [each for each in node["spec"].get("taints", []) if each["key"].startswith("muster.dev/")]

    # 64: no test takes the IPUs from somebody's application
    agent.says("links", sample("gc_links_failed_latest.json").decode().replace('"13"', '"1"').replace('"12"', '"0"'))
    agent.says("monitor", ATTACHED)
    code, text = agent.get("/status?check=ipulink&format=json")
    assert (code, "busy" in text) == (200, True), text
    agent.says("monitor", "")
    await host.look("ipulink")
    assert (component(1), "IpuLinkFailed:NLC_E_2B") in await host.findings()

    # never more than the share
    async def withheld() -> bool:
        found = await api.get("/api/v1/events", params={"fieldSelector": f"involvedObject.name={host.name}"})
        return any(each["reason"] == "QuarantineWithheld" for each in found["items"])

    await until(withheld, "the third is told to have no room")
    await until_quarantined(api, proxy, 0, 2)

    # V-IPU chooses the IPUs, and would choose these: they alone are taken out of its hands
    asked = wish(size=4)
    await bed.taken(proxy, asked)

    async def parked() -> bool:
        return sorted(map(sorted, parks(await lie_on(simulator)))) == [[(MACHINE, 0)], [(MACHINE, 2)]]

    await until(parked, "a park lies on each of the two alone")
    assert not (await lie_on(simulator))[called(asked)] & {(MACHINE, 0), (MACHINE, 2)}
    await until_available(proxy, 10)


async def test_64_an_ipu_returns_when_good_looks_in_a_row_have_seen_it(bed: Bed, host: Host, api: KubeClient) -> None:
    agent = host.agent
    simulator = await bed.simulator(ipus=16, delay_s=0.0)
    proxy = await bed.proxy_for(simulator)
    agent.says("ipu-2", BAD)
    agent.unhealthy(0)  # stays so: what is bad beside it holds up no proof
    await host.look("ipu")
    await until_quarantined(api, proxy, 0, 2)
    asked = wish(size=4)
    await bed.taken(proxy, asked)
    agent.lists(0, 1, 3)  # with its partition it has gone from the host's sight
    await host.until_tried("NotSeen")
    agent.says("ipu-2", IPU)
    agent.says("fails-once-2", "")  # it comes and goes
    agent.lists(0, 1, 2, 3)
    await until_quarantined(api, proxy, 0)
    looks = (agent.tools / "looks-2").read_text().splitlines()
    assert len(looks[looks.index("failed") + 1 :]) >= 3, looks

    async def parked() -> bool:
        return parks(await lie_on(simulator)) == [{(MACHINE, 0)}]

    await until(parked, "it is let go")
    await until_available(proxy, 11)
    healths = await host.health()
    assert healths["status"]["verdict"] == "FAIL"
    await bed.freed(proxy, asked)
