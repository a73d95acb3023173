"""The V-IPU proxy as a process of its own, with its own account, on a real API server and simulated controllers."""

import asyncio
import json
import random
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from tests.cluster.ipujob.operator_bed import Program, reviewed, started, until
from tests.plain_http import plain_http

from muster_kube.api.client import KubeClient
from muster_kube.api.config import load_config
from muster_kube.api.errors import NotFound
from muster_operator.job.names import PARKED_PREFIX, partition
from muster_operator.job.partition_api import PROXY_AUDIENCE, PartitionRequest
from muster_sandbox.controlplane.cluster import ControlPlane

OWN = "muster"
MAPS = f"/api/v1/namespaces/{OWN}/configmaps"
TRACKER, QUARANTINE = "ipu-partitions-tracker", "muster-ipu-quarantine"
LISTS = "vipu-controllers"
WAIT_S = 120.0


@dataclass
class Bed:
    """What runs; ``token``: of the operator's account."""

    control_plane: ControlPlane
    api: KubeClient
    folder: Path
    token: str
    programs: list[Program] = field(default_factory=list)

    async def simulator(self, rack: int = 1, ipus: int = 32, delay_s: float = 0.05) -> Program:
        return await self._start(
            f"simulator-{rack}",
            ("vipu-sim", "--ipus", str(ipus), "--delay", str(delay_s), "--first-rack", str(rack),
             "--state", str(self.folder / f"vipu-{rack}"), "--port", "0"),
        )  # fmt: skip

    async def proxy(self, *flags: str, kubeconfig: Path | None = None) -> Program:
        account = kubeconfig or self.control_plane.kubeconfig_for("muster-vipu-proxy", OWN)
        words = ("vipu-proxy", "--kubeconfig", str(account), "--namespace", OWN, "--backend", "sim",
                 "--host", "127.0.0.1", "--port", "0", "--log-level", "4", *flags)  # fmt: skip
        proxy = await self._start("proxy", words)
        await until(lambda: healthy(proxy), "the proxy knows the tracker")
        return proxy

    async def proxy_for(self, *simulators: Program) -> Program:
        return await self.proxy("--controllers", ",".join(map(entry, simulators)))

    async def ask(
        self, proxy: Program, method: str, name: str, body: object = None, token: str = ""
    ) -> httpx2.Response:
        headers = {"authorization": f"Bearer {token or self.token}"}
        async with plain_http(WAIT_S) as http:
            url = f"{proxy.url}/partitions/{name}"
            return await http.request(method, url, headers=headers, content=msgspec.json.encode(body))

    async def answer_to(self, proxy: Program, token: str) -> httpx2.Response:
        """What the proxy answers to a request for a partition."""
        return await reviewed(lambda: self.ask(proxy, "PUT", called(wish()), wish(), token))

    async def take(self, proxy: Program, asked: PartitionRequest) -> httpx2.Response:
        return await self.ask(proxy, "PUT", called(asked), asked)

    async def taken(self, proxy: Program, asked: PartitionRequest) -> None:
        """Until it is active."""

        async def active() -> bool:
            return (await self.take(proxy, asked)).status_code == 200

        await until(active, f"{called(asked)} is active")

    async def freed(self, proxy: Program, asked: PartitionRequest) -> None:
        async def gone() -> bool:
            path = f"{called(asked)}?job={asked.job}"
            return (await self.ask(proxy, "DELETE", path)).status_code == 200

        await until(gone, f"{called(asked)} is gone")

    async def tracked(self) -> dict[str, dict[str, Any]]:
        try:
            data = (await self.api.get(f"{MAPS}/{TRACKER}")).get("data") or {}
        except NotFound:
            return {}
        return {name: json.loads(text) for name, text in data.items()}

    async def agreed(self, *simulators: Program) -> None:
        """Tracker and V-IPU say the same, all of it active."""

        async def they_do() -> bool:
            entries = await self.tracked()
            there = {}
            for simulator in simulators:
                for each in await partitions(simulator):
                    assert each["name"] not in there, "a twin"
                    there[each["name"]] = (simulator.told["listening"], each["state"])
            return there == {name: (each["controller"], "ACTIVE") for name, each in entries.items()} and all(
                each["state"] == "active" for each in entries.values()
            )

        await until(they_do, "tracker and V-IPU agree")

    async def quarantine(self, *ipus: tuple[str, int]) -> None:
        data = {
            f"{machine}_{index}": json.dumps({"ipu": f"ipu/{machine}/{index}", "machine": machine, "index": index})
            for machine, index in ipus
        }
        with suppress(NotFound):
            await self.api.delete(f"{MAPS}/{QUARANTINE}")
        if ipus:
            await self.api.create(MAPS, {"metadata": {"name": QUARANTINE}, "data": data})

    async def _start(self, name: str, words: tuple[str, ...]) -> Program:
        program = await started(self.folder, f"{name}-{len(self.programs)}", words, ("listening",), {})
        self.programs.append(program)
        return program


@pytest.fixture
async def bed(control_plane: ControlPlane, api: KubeClient, tmp_path: Path) -> AsyncIterator[Bed]:
    made = Bed(control_plane, api, tmp_path, token_of(control_plane, "muster-operator"))
    yield made
    for program in made.programs:
        await program.stop(signal.SIGKILL)
    for name in (TRACKER, QUARANTINE, LISTS):
        with suppress(NotFound):
            await api.delete(f"{MAPS}/{name}")


def token_of(control_plane: ControlPlane, account: str) -> str:
    return control_plane.token_file_for(account, OWN, PROXY_AUDIENCE).read_text()


def entry(simulator: Program) -> str:
    return f"{simulator.told['listening']}:ipunode=rack1"


async def healthy(proxy: Program) -> bool:
    return (await proxy.get("/health")).status_code == 200


async def partitions(simulator: Program) -> list[dict[str, Any]]:
    return list((await simulator.get("/partitions")).json())


async def names(simulator: Program) -> set[str]:
    return {each["name"] for each in await partitions(simulator)}


async def fault(simulator: Program, **asked: object) -> None:
    assert (await simulator.post("/faults", asked)).status_code == 200


def wish(number: int = 0, *, attempt: int = 0, size: int = 4) -> PartitionRequest:
    return PartitionRequest(
        job=f"uid-{number}", namespace="default", name=f"job{number}", instance=0, attempt=attempt, size=size, gcds=1
    )


def called(asked: PartitionRequest) -> str:
    return partition(asked.namespace, asked.name, asked.instance)


async def test_30_32_52_53_a_partition_over_its_life(bed: Bed) -> None:
    simulator = await bed.simulator()
    proxy = await bed.proxy_for(simulator)
    asked = wish()
    await bed.taken(proxy, asked)
    [(name, tracked)] = (await bed.tracked()).items()
    assert name == "p-job0-default-0"
    assert {key: tracked[key] for key in ("job", "attempt", "state", "controller", "selector")} == {
        "job": "uid-0", "attempt": 0, "state": "active", "controller": simulator.told["listening"],
        "selector": "ipunode=rack1",
    }  # fmt: skip
    line = {"used": 4, "available": 28}
    assert (await proxy.get("/stats")).json() == {"default": line, "total": line}
    assert (await proxy.post("/query", {"size": 2})).json() == {"available": True, "numOfPartitions": 14, "message": ""}
    assert (await proxy.post("/query", {"size": 64})).json() == {"available": True, "numOfPartitions": 0, "message": ""}
    assert (await proxy.post("/query", {"size": 3})).status_code == 400
    assert (await proxy.get("/query")).status_code == 405
    await bed.taken(proxy, wish(attempt=1))
    assert (await bed.take(proxy, asked)).json()["why"] == "OldAttempt"
    other = msgspec.structs.replace(asked, job="uid-9")
    assert (await bed.take(proxy, other)).json()["why"] == "NotOurs"
    assert 'muster_vipu_proxy_intents_total{intent="reset"} 1.0' in (await proxy.get("/metrics")).text
    await bed.freed(proxy, asked)
    assert await bed.tracked() == {}
    assert await partitions(simulator) == []


async def test_only_the_operators_token_for_the_proxy_opens_partitions(bed: Bed) -> None:
    simulator = await bed.simulator()
    proxy = await bed.proxy_for(simulator)
    assert (await bed.answer_to(proxy, "made-up")).status_code == 401
    account = load_config(bed.control_plane.kubeconfig_for("muster-operator", OWN))
    for_the_api_server = (await account.credentials.header() or "").removeprefix("Bearer ")
    assert for_the_api_server
    assert (await bed.answer_to(proxy, for_the_api_server)).status_code == 401
    refused = await bed.answer_to(proxy, token_of(bed.control_plane, "stranger"))
    assert (refused.status_code, refused.json()["why"]) == (403, "Denied")
    assert "allowed: muster/muster-operator" in refused.json()["message"]
    assert await bed.tracked() == {}
    await bed.taken(proxy, wish())


async def test_32_killed_at_any_time_it_leaves_no_orphan_and_no_twin(bed: Bed) -> None:
    rng = random.Random(32)
    one, two = await bed.simulator(1, 16), await bed.simulator(2, 16)
    proxy = await bed.proxy_for(one, two)
    attempts = [0] * 5  # a job's attempt never goes back, whatever became of the partition
    wanted: set[int] = set()
    for _ in range(6):
        asked = []
        for number in rng.sample(range(5), 3):
            if number in wanted and rng.random() < 0.4:
                wanted.remove(number)
                asked.append(bed.ask(proxy, "DELETE", f"{called(wish(number))}?job=uid-{number}"))
            else:
                wanted.add(number)
                attempts[number] += rng.randint(0, 1)
                asked.append(bed.take(proxy, wish(number, attempt=attempts[number])))
        asking = asyncio.gather(*asked, return_exceptions=True)
        await asyncio.sleep(rng.uniform(0.0, 0.2))
        await proxy.stop(signal.SIGKILL)
        await asking
        proxy = await bed.proxy_for(one, two)
    for number in wanted:
        await bed.taken(proxy, wish(number, attempt=attempts[number]))
    for number in set(range(5)) - wanted:
        await bed.freed(proxy, wish(number))
    await bed.agreed(one, two)
    assert set(await bed.tracked()) == {called(wish(number)) for number in wanted}


async def test_33_another_release_picks_up_the_tracker(bed: Bed) -> None:
    simulator = await bed.simulator()
    proxy = await bed.proxy_for(simulator)
    await bed.taken(proxy, wish())
    assert await proxy.stop(signal.SIGTERM) == 0
    before = await bed.api.get(f"{MAPS}/{TRACKER}")
    proxy = await bed.proxy_for(simulator)
    assert (await bed.take(proxy, wish())).status_code == 200
    assert (await bed.api.get(f"{MAPS}/{TRACKER}"))["metadata"]["resourceVersion"] == before["metadata"][
        "resourceVersion"
    ]
    await bed.freed(proxy, wish())


async def test_34_35_v_ipu_down_keeps_the_entry_with_the_reason_until_it_is_back(bed: Bed) -> None:
    simulator = await bed.simulator()
    proxy = await bed.proxy_for(simulator)
    await bed.taken(proxy, wish())
    await fault(simulator, down=True)
    left = await bed.ask(proxy, "DELETE", f"{called(wish())}?job=uid-0")
    assert left.status_code == 202

    async def told() -> bool:
        tracked = (await bed.tracked())[called(wish())]
        return tracked["state"] == "deleting" and bool(tracked.get("message"))

    await until(told, "the tracker says why")
    assert (await proxy.post("/query", {"size": 2})).json()["available"] is False
    refused = await bed.take(proxy, wish(1))
    assert (refused.status_code, refused.json()["why"]) == (503, "Unreachable")
    await fault(simulator, down=False)
    await bed.freed(proxy, wish())
    assert await partitions(simulator) == []


async def test_a_partition_that_v_ipu_loses_is_made_again_and_told(bed: Bed) -> None:
    simulator = await bed.simulator()
    proxy = await bed.proxy_for(simulator)
    await bed.taken(proxy, wish())
    await fault(simulator, vanish=called(wish()))

    async def made_again() -> bool:
        await proxy.get("/stats")  # each time: one may join a count that began before
        tracked = (await bed.tracked())[called(wish())]
        return bool(tracked["state"] == "active" and tracked.get("message"))

    await until(made_again, "it is there again, and the tracker says so")
    await bed.agreed(simulator)
    assert any("ERROR" in line and called(wish()) in line for line in proxy.lines().splitlines())


async def test_a_slow_v_ipu_is_waited_for_and_holds_up_nobody(bed: Bed) -> None:
    slow, quick = await bed.simulator(1, 4), await bed.simulator(2, 16)
    proxy = await bed.proxy_for(slow, quick)
    await bed.taken(proxy, wish())
    await fault(slow, slow=600)
    freeing = await bed.ask(proxy, "DELETE", f"{called(wish())}?job=uid-0")
    assert freeing.status_code == 202
    assert (await bed.take(proxy, wish(1))).status_code in (200, 202)
    await bed.taken(proxy, wish(1))
    await fault(slow, slow=0)
    await bed.freed(proxy, wish())
    await bed.agreed(slow, quick)


async def test_56_an_edited_list_is_used_and_a_removed_controller_still_released(bed: Bed, tmp_path: Path) -> None:
    one, two = await bed.simulator(1, 4), await bed.simulator(2, 4)
    config = tmp_path / "proxy.yaml"
    config.write_text(f"controllers_map: {LISTS}\nallowed: [{OWN}/muster-operator]\n")
    await bed.api.create(MAPS, {"metadata": {"name": LISTS}, "data": {"controllers.yaml": entry(one)}})
    proxy = await bed.proxy("--config", str(config), kubeconfig=bed.control_plane.kubeconfig)
    await bed.taken(proxy, wish())
    assert (await bed.take(proxy, wish(1))).json()["why"] == "NoRoom"
    await bed.api.patch(f"{MAPS}/{LISTS}", {"data": {"controllers.yaml": f"nonsense,{entry(two)}"}})
    await bed.taken(proxy, wish(1))
    assert "entry 1, 'nonsense': port: ''" in proxy.lines()
    assert await names(two) == {called(wish(1))}
    await bed.freed(proxy, wish())
    assert await names(one) == set()


async def test_56_an_edited_file_is_used_without_a_restart(bed: Bed, tmp_path: Path) -> None:
    one, two = await bed.simulator(1, 4), await bed.simulator(2, 4)
    file = tmp_path / "controllers.yaml"
    file.write_text(entry(one))
    proxy = await bed.proxy("--controllers-file", str(file))
    await bed.taken(proxy, wish())
    file.write_text(f"{entry(one)},{entry(two)}")
    await bed.taken(proxy, wish(1))
    assert await names(two) == {called(wish(1))}


async def test_a_quarantined_ipu_is_left_out_and_avoided_until_it_is_proven(bed: Bed) -> None:
    simulator = await bed.simulator(1, 16)
    proxy = await bed.proxy_for(simulator)
    await bed.quarantine(("10.1.1.1", 2))

    async def left_out() -> bool:
        return bool((await proxy.get("/stats")).json()["total"]["available"] == 15)

    await until(left_out, "the IPU is left out of /stats")
    assert (await proxy.post("/query", {"size": 4})).json()["numOfPartitions"] == 3
    await bed.taken(proxy, wish())
    [mine] = [each for each in await partitions(simulator) if each["name"] == called(wish())]
    assert {"machine": "10.1.1.1", "index": 2} not in mine["ipus"]

    async def alone() -> bool:
        there = {each["name"]: each["ipus"] for each in await partitions(simulator)}
        parked = [ipus for name, ipus in there.items() if name.startswith(PARKED_PREFIX)]
        return parked == [[{"machine": "10.1.1.1", "index": 2}]] and len(there) == 2

    await until(alone, "it is parked, and no other with it")
    await bed.agreed(simulator)

    async def counted() -> bool:
        return bool((await proxy.get("/stats")).json()["default"] == {"used": 4, "available": 11})

    await until(counted, "what is parked counts for nobody")
    await bed.quarantine()

    async def released() -> bool:
        return await names(simulator) == {called(wish())}

    await until(released, "the parked partition is released")
    await bed.agreed(simulator)


async def test_nothing_is_written_and_v_ipu_is_not_asked_while_all_is_settled(bed: Bed) -> None:
    simulator = await bed.simulator()
    proxy = await bed.proxy_for(simulator)
    await bed.taken(proxy, wish())

    async def calls() -> list[str]:
        text = (await proxy.get("/metrics")).text
        seen = ("vipu_seconds_count", "tracker_writes_total", 'ipus{state="available"}')
        return [line for line in text.splitlines() if any(each in line for each in seen)]

    async def settled() -> bool:
        before = await calls()
        if 'muster_vipu_proxy_ipus{state="available"} 28.0' not in before:
            return False  # what is free is counted a second after the last change
        await asyncio.sleep(3.0)
        return await calls() == before

    await until(settled, "what follows a change has been asked")
    before = await calls()
    await asyncio.sleep(1.0)
    assert await calls() == before
