"""The tainter as a process of its own, with its own account, on a real API server."""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from tests.machine import needs
from tests.part_processes import PartProcess
from tests.plain_http import plain_http
from tests.polling import pause_s

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, NotFound
from muster_sandbox.simulation.nodes import NodeShape
from muster_tainter.faults.taint_drift import SETTLED_S
from muster_tainter.policy.file import default_policy_text

HEALTHS = "/apis/muster.dev/v1alpha1/nodehealths"
FAULTY = {"key": "muster.dev/faulty", "value": "true", "effect": "NoSchedule"}
TAINT = "muster.dev/faulty=true:NoSchedule"  # as the log and Events have it
LEASE = "/apis/coordination.k8s.io/v1/namespaces/muster/leases/muster-tainter"
LAST_LINES = 40
WAIT_S = 120.0  # far more than anything takes: what hangs fails, what is slow does not


async def until(ask: Callable[[], Awaitable[Any]], what: str, timeout_s: float = WAIT_S) -> Any:
    """What ``ask`` returns once that is true; an error of the server counts as not yet."""
    begun = time.monotonic()
    last: object = None
    while time.monotonic() < begun + timeout_s:
        try:
            last = await ask()
        except ApiError as error:
            last = error
        if last and not isinstance(last, Exception):
            return last
        await asyncio.sleep(pause_s(begun))
    raise AssertionError(f"not within {timeout_s} s: {what}; last: {last!r}")


@dataclass
class Replica:
    """One running tainter. ``url``: of its HTTP side."""

    process: PartProcess
    url: str
    log: Path

    async def get(self, path: str) -> httpx2.Response:
        async with plain_http(WAIT_S) as http:
            return await http.get(self.url + path)

    async def leads(self) -> bool:
        return "muster_tainter_leader 1.0" in (await self.get("/metrics")).text

    async def ready(self) -> bool:
        return (await self.get("/readyz")).status_code == 200

    def lines(self) -> str:
        return self.log.read_text()

    def logged(self, *facts: str) -> int:
        """How many lines of its log hold all of them."""
        return sum(all(fact in line for fact in facts) for line in self.lines().splitlines())

    async def until_logged(self, *facts: str) -> None:
        """The API server shows a write before the tainter has its answer and logs it."""

        async def found() -> bool:
            return self.logged(*facts) > 0

        await until(found, f"logged: {facts}")

    async def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        self.process.send_signal(signal.SIGCONT)  # a test may have failed while it was stopped
        ended = await asyncio.to_thread(self.process.wait, WAIT_S)
        self.process.stdout.close()
        return ended

    async def next_address(self) -> str:
        """``HOST:PORT`` of the next line that it prints."""
        try:
            line = await asyncio.wait_for(asyncio.to_thread(self.process.stdout.readline), WAIT_S)
        except TimeoutError:
            self.process.kill()
            raise
        assert b" on " in line, f"{line!r}\n{self.lines()}"
        return line.decode().split()[-1]


async def leader_of(replicas: Iterable[Replica]) -> Replica:
    async def who() -> list[Replica]:
        leading = [each for each in replicas if await each.leads()]
        return leading if len(leading) == 1 else []  # two: asked one after the other, as the lease changed hands

    found: list[Replica] = await until(who, "one of them leads")
    return found[0]


def without_budgets(folder: Path) -> Path:
    """The built-in policy for a cluster that other tests leave nodes in, tainted or not."""
    file = folder / "built-in-without-budgets.yaml"
    policy = yaml.safe_load(default_policy_text())
    file.write_text(yaml.safe_dump(policy | {"pools": []}, sort_keys=False))
    return file


@dataclass
class Tainters:
    kubeconfig: Path
    folder: Path
    replicas: list[Replica] = field(default_factory=list)

    async def start(self, *flags: str, wait: bool = True) -> Replica:
        log = self.folder / f"tainter-{len(self.replicas)}.log"
        if "--policy" not in flags:
            flags = (*flags, "--policy", str(without_budgets(self.folder)))
        words = ["--kubeconfig", str(self.kubeconfig), "--namespace", "muster", "--host", "127.0.0.1", "--port", "0"]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MUSTER_TAINTER_")}
        replica = Replica(PartProcess("muster_tainter", [*words, *flags], environment, log), "", log)
        self.replicas.append(replica)
        replica.url = f"http://{await replica.next_address()}"
        await until(replica.ready, "the replica is ready")
        if wait and "--dry-run" not in flags:
            await until(replica.leads, "the replica leads")
        return replica


@pytest.fixture
async def tainters(control_plane: Any, tmp_path: Path) -> AsyncIterator[Tainters]:
    made = Tainters(control_plane.kubeconfig_for("muster-tainter", "muster"), tmp_path)
    yield made
    for replica in made.replicas:
        await replica.stop()
        print("\n".join(replica.lines().splitlines()[-LAST_LINES:]))  # pytest shows it where a test fails


def finding(reason: str = "Xid79", occurrence: int = 1, **fields: Any) -> dict[str, Any]:
    return {
        "component": "gpu/0000:3b:00.0", "reason": reason, "verdict": "FAIL", "class": "reboot", "count": 1,
        "occurrence": occurrence, "message": "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
        "firstSeen": "2026-01-01T00:00:00.000Z",
    } | fields  # fmt: skip


@dataclass
class Cluster:
    api: KubeClient
    _probes: Iterator[int] = field(default_factory=itertools.count)

    async def report(
        self, node: str, *findings: dict[str, Any], boot: str = "boot-1", cleared: tuple[dict[str, Any], ...] = ()
    ) -> None:
        """As the agent writes it."""
        verdict = min((f["verdict"] for f in findings), key=["FAIL", "WARN", "UNKNOWN"].index, default="PASS")
        check = {"name": "dmesg", "verdict": verdict, "findings": list(findings), "cleared": list(cleared)}
        status = {"verdict": verdict, "bootID": boot, "checks": [check], "observedAt": "2026-01-01T00:00:01.000Z"}

        async def written() -> bool:
            await self.api.patch(f"{HEALTHS}/{node}/status", {"status": status})
            return True

        await until(written, f"the NodeHealth of {node} takes a status")

    async def node(self, name: str) -> dict[str, Any]:
        return await self.api.get(f"/api/v1/nodes/{name}")

    async def taints(self, name: str) -> list[dict[str, Any]]:
        return (await self.node(name))["spec"].get("taints", [])

    async def faulty(self, name: str) -> bool:
        return FAULTY in await self.taints(name)

    async def labelled(self, name: str) -> bool:
        return (await self.node(name))["metadata"]["labels"].get("muster.dev/faulty") == "true"

    async def until_faulty(self, name: str) -> None:
        try:
            await until(lambda: self.faulty(name), f"{name} is tainted")
        except AssertionError as error:
            error.add_note(f"its condition: {await self.condition(name)}")  # which names what withholds a taint
            raise
        assert await self.labelled(name)

    async def until_free(self, name: str) -> None:
        async def free() -> bool:
            return not await self.faulty(name) and not await self.labelled(name)

        await until(free, f"{name} is free")

    async def settled(self, name: str, health: str) -> None:
        async def labelled() -> bool:
            return (await self.node(name))["metadata"]["labels"].get("muster.dev/health") == health

        await until(labelled, f"{name} is labelled {health}")

    async def condition(self, name: str) -> dict[str, Any] | None:
        conditions = (await self.node(name))["status"]["conditions"]
        return next((c for c in conditions if c["type"] == "muster.dev/Healthy"), None)

    async def scheduler_shuns(self, name: str, namespace: str) -> None:
        """Until the scheduler has heard of the taint: it sees the API server's changes a moment later."""
        begun = time.monotonic()
        for number in self._probes:
            assert time.monotonic() < begun + WAIT_S, f"{name} is tainted, and gets pods after {WAIT_S} s"
            pod = await self.place(f"probe-{number}", namespace, name)

            async def tried(pod: str = pod) -> str:
                try:
                    found = await self.api.get(pod)
                except NotFound:
                    return "drained from the node"
                said = [c.get("message", "") for c in found["status"].get("conditions", [])]
                refused = any("taint" in message for message in said)  # newer schedulers do not name the taint
                return "refused" if refused else found["spec"].get("nodeName", "")

            answer = await until(tried, f"the scheduler has tried {pod}")
            with contextlib.suppress(NotFound):
                await self.api.delete(pod, {"gracePeriodSeconds": 0})
            if answer == "refused":
                return

    async def place(self, pod: str, namespace: str, *nodes: str) -> str:
        """A pod for one of these nodes."""
        term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": nodes}]}
        wanted = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
        spec = {"containers": [{"name": "c", "image": "x"}], "affinity": wanted}
        pods = f"/api/v1/namespaces/{namespace}/pods"
        await self.api.create(pods, {"metadata": {"name": pod}, "spec": spec})
        return f"{pods}/{pod}"

    async def placed(self, pod: str) -> str:
        """The node it was bound to."""

        async def node() -> str:
            return str((await self.api.get(pod))["spec"].get("nodeName", ""))

        return str(await until(node, f"{pod} is bound"))

    async def events(self, name: str) -> dict[str, dict[str, Any]]:
        events = await self.api.get("/api/v1/namespaces/default/events")
        return {e["reason"]: e for e in events["items"] if e["involvedObject"]["name"] == name}


@pytest.fixture
def cluster(api: KubeClient) -> Cluster:
    return Cluster(api)


async def test_a_failure_taints_labels_explains_and_is_told(tainters: Any, fleet: Any, cluster: Any) -> None:
    replica = await tainters.start()
    [good, bad] = await fleet.create(2, prefix="e2e")
    await cluster.report(good)
    await cluster.report(bad, finding())
    await cluster.until_faulty(bad)

    async def explained() -> bool:
        condition = await cluster.condition(bad)
        return bool(condition and condition["status"] == "False" and "fallen off the bus" in condition["message"])

    await until(explained, "the condition")

    async def told() -> bool:
        return {"NodeFaultOpened", "NodeTainted"} <= (await cluster.events(bad)).keys()

    await until(told, "the events")
    event = (await cluster.events(bad))["NodeTainted"]
    assert (event["source"]["component"], event["type"]) == ("muster-tainter", "Warning")
    assert not await cluster.faulty(good)
    await replica.until_logged("WARNING", bad, TAINT, "hardware")
    seen = [json.loads(line) for line in replica.lines().splitlines() if line.startswith("{")]
    assert any(line["node"] == bad and line["event"] == "finding" and line["to"] == "FAIL" for line in seen)
    [fault] = [f for f in (await replica.get("/api/faults")).json() if f["node"] == bad]
    assert fault["reason"] == "Xid79"
    assert 'muster_tainter_faults_open{class="reboot",rule="hardware"} 1.0' in (await replica.get("/metrics")).text
    assert bad in (await replica.get("/api/fleet")).text


async def test_pods_go_elsewhere(tainters: Any, fleet: Any, cluster: Any, namespace: str, kubelets: Any) -> None:
    await tainters.start()
    [good, bad] = await fleet.create(2, prefix="sched")
    await cluster.report(bad, finding())
    await cluster.until_faulty(bad)
    await cluster.scheduler_shuns(bad, namespace)
    jobs = [await cluster.place(f"job-{n}", namespace, good, bad) for n in range(6)]
    assert {await cluster.placed(job) for job in jobs} == {good}


async def test_every_node_has_a_health_of_its_own_again_when_deleted_and_gone_with_it(
    tainters: Any, fleet: Any, cluster: Any
) -> None:
    await tainters.start()
    [name] = await fleet.create(1, prefix="owned")
    made = await until(lambda: cluster.api.get(f"{HEALTHS}/{name}"), "the NodeHealth is made")
    [owner] = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Node", (await cluster.node(name))["metadata"]["uid"])
    await cluster.api.delete(f"{HEALTHS}/{name}")

    async def another() -> bool:
        return bool((await cluster.api.get(f"{HEALTHS}/{name}"))["metadata"]["uid"] != made["metadata"]["uid"])

    await until(another, "it is made again")
    await cluster.api.delete(f"/api/v1/nodes/{name}")

    async def gone() -> bool:
        try:
            await cluster.api.get(f"{HEALTHS}/{name}")
        except NotFound:
            return True
        return False

    await until(gone, "it is collected", 240)  # the collector looks for new kinds of objects every 30 s


async def test_a_health_made_anew_knows_the_highest_number_that_was_closed(
    tainters: Any, fleet: Any, cluster: Any
) -> None:
    await tainters.start()
    [name] = await fleet.create(1, prefix="again")
    await cluster.report(name, finding(occurrence=3))
    await cluster.until_faulty(name)
    await cluster.report(name, boot="boot-2")
    await cluster.until_free(name)
    await cluster.api.delete(f"{HEALTHS}/{name}")

    async def numbers() -> list[int]:
        made = await cluster.api.get(f"{HEALTHS}/{name}")
        return [clear["occurrence"] for clear in made.get("spec", {}).get("clear", [])]

    closed = await until(numbers, "it is made again, and knows")
    assert closed == [3]


async def test_clear_reboot_and_driver_release(tainters: Any, fleet: Any, cluster: Any) -> None:
    await tainters.start()
    cleared, rebooted, reset = await fleet.create(3, prefix="rel")
    for name in (cleared, rebooted, reset):
        await cluster.report(name, finding(occurrence=3))
        await cluster.until_faulty(name)
    clear = [{"check": "dmesg", "component": "*", "occurrence": 3, "by": "ada"}]
    await cluster.api.patch(f"{HEALTHS}/{cleared}", {"spec": {"clear": clear}})
    await cluster.until_free(cleared)
    await cluster.report(rebooted, boot="boot-2")
    await cluster.until_free(rebooted)
    over = {
        "component": "gpu/0000:3b:00.0",
        "reason": "Xid79",
        "occurrence": 3,
        "how": "driver",
        "at": "2026-01-01T00:00:02Z",
    }
    await cluster.report(reset, cleared=(over,))
    await cluster.until_free(reset)
    memory = json.loads((await cluster.node(cleared))["metadata"]["annotations"]["muster.dev/faults"])
    assert [(c["how"], c["by"]) for c in memory["closed"]] == [("person", "ada")]


@needs("kubectl")
async def test_kubectl_taint_of_a_person_counts_as_cleared(
    tainters: Any, fleet: Any, cluster: Any, kubeconfig: Path
) -> None:
    replica = await tainters.start()
    alone, beside = await fleet.create(2, prefix="hand")

    async def tainted(name: str) -> bool:
        return replica.logged("WARNING", name, TAINT) > 0

    await cluster.api.patch(f"/api/v1/nodes/{beside}", {"spec": {"taints": [{"key": "x", "effect": "NoSchedule"}]}})
    for name in (alone, beside):
        await cluster.report(name, finding())
        await until(partial(tainted, name), "the tainter has heard of its taint")
        await asyncio.sleep(SETTLED_S + 0.5)  # the list of taints has to have rested for so long
        kubectl = await asyncio.create_subprocess_exec(
            "kubectl", "--kubeconfig", str(kubeconfig), "taint", "node", name, "muster.dev/faulty-",
            stdout=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        assert await kubectl.wait() == 0
        await cluster.until_free(name)

        async def noted(name: str = name) -> bool:
            return '"closed"' in (await cluster.node(name))["metadata"]["annotations"].get("muster.dev/faults", "")

        await until(noted, "it is remembered as closed")
        assert FAULTY not in await cluster.taints(name)
    assert [t["key"] for t in await cluster.taints(beside)] == ["x"]


async def test_a_writer_with_a_stale_copy_frees_no_node(tainters: Any, fleet: Any, cluster: Any) -> None:
    await tainters.start()
    [name] = await fleet.create(1, prefix="stale")
    await cluster.report(name, finding())
    await cluster.until_faulty(name)
    theirs = {"key": "node.example.com/pressure", "effect": "NoSchedule"}
    for manager in ("kube-controller-manager", "some-script"):
        for taints in ([theirs], []):  # each from a copy of before
            await cluster.api.patch(
                f"/api/v1/nodes/{name}", {"spec": {"taints": taints}}, params={"fieldManager": manager}
            )
            await cluster.until_faulty(name)
            assert [t for t in await cluster.taints(name) if t != FAULTY] == taints

    async def told() -> bool:
        return "TaintPutBack" in await cluster.events(name)

    await until(told, "TaintPutBack")


async def test_a_taint_of_another_controller_in_the_same_instant_survives(
    tainters: Any, fleet: Any, cluster: Any
) -> None:
    await tainters.start()
    names = await fleet.create(12, prefix="race")
    for name in names:
        await cluster.settled(name, "unknown")

    async def add_theirs(name: str) -> None:
        # as a careful controller does it: read, add, write with the version that was read
        theirs = {"key": "example.com/theirs", "effect": "NoSchedule"}

        async def added() -> bool:
            node = await cluster.node(name)
            taints = [*node["spec"].get("taints", []), theirs]
            version = node["metadata"]["resourceVersion"]
            await cluster.api.patch(
                f"/api/v1/nodes/{name}", {"metadata": {"resourceVersion": version}, "spec": {"taints": taints}}
            )
            return True

        await until(added, "their taint")

    await asyncio.gather(*(cluster.report(n, finding()) for n in names), *(add_theirs(n) for n in names))
    for name in names:
        await cluster.until_faulty(name)
        assert {t["key"] for t in await cluster.taints(name)} == {"muster.dev/faulty", "example.com/theirs"}


async def test_nonsense_in_a_health_moves_nothing(tainters: Any, fleet: Any, cluster: Any) -> None:
    await tainters.start()
    bad, good = await fleet.create(2, prefix="nons")
    await cluster.report(bad, finding())
    await cluster.until_faulty(bad)
    await cluster.report(good)
    await cluster.settled(good, "pass")
    for name in (bad, good):
        await cluster.report(name, finding("Xid95", occurrence=0), boot="boot-2")
        await cluster.settled(name, "unknown")
    assert await cluster.faulty(bad)
    assert not await cluster.faulty(good)


async def test_unmanaged_takes_everything_off_and_stays_away(tainters: Any, fleet: Any, cluster: Any) -> None:
    await tainters.start()
    [name] = await fleet.create(1, prefix="unman")
    await cluster.report(name, finding())
    await cluster.until_faulty(name)
    await until(lambda: cluster.condition(name), "the condition is there")
    await cluster.api.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {"muster.dev/managed": "false"}}})
    await cluster.until_free(name)

    async def bare() -> bool:
        node = await cluster.node(name)
        ours = [
            k for k in {**node["metadata"]["labels"], **node["metadata"].get("annotations", {})} if "muster.dev/" in k
        ]
        ours = [k for k in ours if k.startswith("muster.dev/")]
        return ours == ["muster.dev/managed"] and await cluster.condition(name) is None

    await until(bare, "nothing of ours is left")

    async def told() -> bool:
        return "NodeUntainted" in await cluster.events(name)

    await until(told, "an Event of it")
    assert (await cluster.events(name))["NodeUntainted"]["type"] == "Normal"
    await cluster.report(name, finding(occurrence=9))
    await cluster.api.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {"muster.dev/managed": None}}})
    await cluster.until_faulty(name)


async def test_a_policy_edit_takes_effect_and_a_bad_one_does_not(
    tainters: Any, fleet: Any, cluster: Any, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("rules: [{name: all, action: event}]\n")
    replica = await tainters.start("--policy", str(policy))
    [name] = await fleet.create(1, prefix="pol")
    await cluster.report(name, finding())
    await cluster.settled(name, "fail")
    assert not await cluster.faulty(name)
    (tmp_path / "new").write_text("rules: [{name: all, action: tain}]\n")
    (tmp_path / "new").rename(policy)

    async def said_bad() -> bool:
        return "muster_tainter_policy_good 0.0" in (await replica.get("/metrics")).text

    await until(said_bad, "the bad edit is told")
    await replica.until_logged('policy.yaml: rules[0].action: "tain":')

    async def event_of_it() -> bool:
        events = (await cluster.api.get("/api/v1/namespaces/muster/events"))["items"]
        return any(e["reason"] == "PolicyRejected" and "rules[0].action" in e["message"] for e in events)

    await until(event_of_it, "PolicyRejected")
    (tmp_path / "new").write_text("rules: [{name: all, action: taint}]\n")
    (tmp_path / "new").rename(policy)
    await cluster.until_faulty(name)


async def test_dry_run_writes_nothing_on_nodes(tainters: Any, fleet: Any, cluster: Any, control_plane: Any) -> None:
    replica = await tainters.start("--dry-run")
    [name] = await fleet.create(1, prefix="dry")
    since = control_plane.audit.mark()
    await cluster.report(name, finding())

    async def told() -> bool:
        return replica.logged("WARNING", name, TAINT) > 0

    await until(told, "it says what it would do")
    writes = [r for r in control_plane.audit.requests(since) if r.writes and "muster-tainter" in r.user]
    assert {r.resource for r in writes} <= {"nodehealths"}
    assert await cluster.taints(name) == []
    assert "muster_tainter_dry_run 1.0" in (await replica.get("/metrics")).text


async def test_only_the_leader_writes_and_another_takes_over(
    tainters: Any, fleet: Any, cluster: Any, control_plane: Any
) -> None:
    replicas = [await tainters.start(), await tainters.start(wait=False)]
    one, two, three = await fleet.create(3, prefix="lead")
    await cluster.report(one, finding())
    await cluster.until_faulty(one)
    first = await leader_of(replicas)  # the one that started later, if the other was starved for as long as the lease
    [second] = [each for each in replicas if each is not first]
    assert not second.logged(TAINT)

    async def lease() -> dict[str, Any]:
        return dict((await cluster.api.get(LEASE))["spec"])

    before = await lease()

    async def renewed() -> bool:
        return bool((await lease())["renewTime"] != before["renewTime"])

    await until(renewed, "the lease is renewed")  # one that is about to run out is not given back
    assert await first.stop() == 0
    assert (await lease())["holderIdentity"] != before["holderIdentity"], "a leader that stops gives its lease back"
    await until(second.leads, "the second leads")
    await cluster.report(two, finding())
    await cluster.until_faulty(two)
    third = await tainters.start(wait=False)
    await second.stop(signal.SIGKILL)
    await cluster.report(three, finding())
    await until(third.leads, "the third leads once the lease has run out")
    await cluster.until_faulty(three)
    assert [t["key"] for t in await cluster.taints(one)] == ["muster.dev/faulty"]


async def test_an_outage_of_the_api_server_loses_nothing(
    tainters: Any, fleet: Any, cluster: Any, control_plane: Any
) -> None:
    replica = await tainters.start()
    one, two = await fleet.create(2, prefix="out")
    await cluster.report(one, finding())
    await cluster.until_faulty(one)
    control_plane.kill_apiserver()

    async def not_ready() -> bool:
        return not await replica.ready()

    await until(not_ready, "it says that its watches are down")
    control_plane.restart_apiserver()
    await cluster.report(two, finding())
    await until(lambda: cluster.faulty(two), "the fault after the outage taints")
    assert await cluster.faulty(one)
    assert replica.process.returncode is None


async def test_a_failure_does_not_wait_for_a_fleet_that_is_being_taken_in(
    tainters: Any, fleet: Any, cluster: Any, control_plane: Any
) -> None:
    theirs = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    names = await fleet.create(400, prefix="take", shape=NodeShape(taints=[theirs]))
    last = names[-1]
    kind = {"apiVersion": "muster.dev/v1alpha1", "kind": "NodeHealth"}
    await cluster.api.create(HEALTHS, kind | {"metadata": {"name": last}})
    since = control_plane.audit.mark()
    tainter = (await tainters.start(wait=False)).process

    async def begun() -> bool:
        # it runs for a moment at a time: however slow this process is, the failure comes early
        tainter.send_signal(signal.SIGCONT)
        await asyncio.sleep(0.2)
        tainter.send_signal(signal.SIGSTOP)
        made = {health["metadata"]["name"] for health in (await cluster.api.get(HEALTHS))["items"]}
        return len(made & set(names)) > 1

    await until(begun, "it has begun")
    await cluster.report(last, finding())
    tainter.send_signal(signal.SIGCONT)
    await cluster.until_faulty(last)

    async def written() -> list[str]:
        asked = [r for r in control_plane.audit.requests(since) if "muster-tainter" in r.user and r.verb == "patch"]
        order = [r.name for r in asked if r.resource == "nodes"]
        return order if set(order) >= set(names) else []

    order = await until(written, "all are taken in")
    after_it = order[len(order) - order[::-1].index(last) :]
    assert len(set(after_it)) > 50, "the failure waited for the fleet, or came when all of it had been taken in"


async def test_at_rest_nothing_is_listed_and_nothing_but_the_lease_is_written(
    tainters: Any, fleet: Any, cluster: Any, control_plane: Any
) -> None:
    await tainters.start()
    good, bad = await fleet.create(2, prefix="rest")
    await cluster.report(good)
    await cluster.report(bad, finding())
    await cluster.until_faulty(bad)
    await cluster.settled(good, "pass")

    async def told() -> bool:
        conditions = [await cluster.condition(name) for name in (good, bad)]
        return all(conditions) and {"NodeFaultOpened", "NodeTainted"} <= (await cluster.events(bad)).keys()

    await until(told, "Events and conditions, which go behind")
    asked: set[str] = set()

    async def rests() -> bool:
        since = control_plane.audit.mark()
        await asyncio.sleep(5.0)
        asked.clear()
        asked.update(r.resource for r in control_plane.audit.requests(since) if "muster-tainter" in r.user)
        return asked == {"leases"}  # and not even those: then the log proves nothing

    with contextlib.suppress(AssertionError):
        await until(rests, "it rests")
    assert asked == {"leases"}
