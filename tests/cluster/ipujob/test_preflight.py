"""Pre-flight checks of jobs, on the real API server with the real proxy and operator; agents answer as a test says."""

import signal

from tests.cluster.agent.agent_stubs import AnsweringAgents
from tests.cluster.ipujob.operator_bed import (
    Bed,
    Job,
    Object,
    bed_fixture,  # noqa: F401 - the fixture
    training,
    until,
)

HEALTHS = "/apis/muster.dev/v1alpha1/nodehealths"
LABEL = "muster.dev/ipujob-checks"
ANN = {"id": "ann-1", "checks": ["pciebw"], "by": "ann"}


def checked(**policy: object) -> Object:
    return training(healthPolicy={"preFlight": {"checks": ["pciebw"], **policy}})


async def is_clean(bed: Bed) -> bool:
    """No NodeHealth bears a request of a job's, or the label."""
    healths = [await bed.api.get(f"{HEALTHS}/{name}") for name in bed.nodes]
    requests = [each for health in healths for each in health.get("spec", {}).get("requests") or []]
    labels = {key for health in healths for key in health["metadata"].get("labels", {})}
    return LABEL not in labels and not [each for each in requests if each["id"].startswith("ipujob-")]


async def asked_nodes(agents: AnsweringAgents, job: Job) -> list[str]:
    """Nodes that its workers are on, once each is asked."""

    uid = await job.uid()

    async def ask() -> list[str] | None:
        pods = await job.pods()
        nodes = sorted({pod["spec"].get("nodeName", "") for pod in pods.values()})
        asked = [node for node in nodes if any(uid in name for name in agents.of_jobs(node))]
        return nodes if len(pods) == 2 and nodes == asked else None

    return list(await until(ask, f"{job.name}'s nodes are asked"))


async def test_a_launcher_waits_for_its_nodes_and_a_job_leaves_those_that_fail(bed: Bed) -> None:
    await bed.start(nodes=3)
    agents = AnsweringAgents(bed.api)
    async with agents.at_work(bed.nodes):
        ann = {"apiVersion": "muster.dev/v1alpha1", "kind": "NodeHealth", "metadata": {"name": bed.nodes[0]}}
        await bed.api.apply(f"{HEALTHS}/{bed.nodes[0]}", ann | {"spec": {"requests": [ANN]}}, field_manager="ann")
        for node in bed.nodes:
            agents.say(node, "")
        good = await bed.submit("good", checked())
        nodes = await asked_nodes(agents, good)
        await good.until_says("pciebw", *nodes)
        await good.until_pods("good-worker-0", "good-worker-1")
        for node in bed.nodes:
            agents.say(node, "PASS")
        status = await good.until_running()
        assert (status["preFlight"]["state"], status.get("moves", 0)) == ("Passed", 0)
        await until(lambda: is_clean(bed), "nothing is asked any more")
        assert (await bed.api.get(f"{HEALTHS}/{bed.nodes[0]}"))["spec"]["requests"] == [ANN]
        assert "pciebw" in await good.until_event("PreFlightPassed")

        # a node that fails, and that no tainter taints
        for node in bed.nodes:
            agents.say(node, "")
        bad = await bed.submit("bad", checked())
        first = (await asked_nodes(agents, bad))[0]
        for node in bed.nodes:
            agents.say(node, "FAIL" if node == first else "PASS")
        status = await bad.until(
            "has moved and runs", lambda s: (s.get("moves"), s["launcherStatus"]) == (1, "Running")
        )
        assert (status["restartCount"], status["lastMove"]["nodes"]) == (0, [first])
        assert first not in {pod["spec"]["nodeName"] for pod in (await bad.pods()).values()}
        told = await bad.until_event("PreFlightFailed")
        for fact in (first, "pciebw", "FAIL: LowBandwidth: 3 GB/s"):
            assert fact in told
        assert "taints" not in (await bed.api.get(f"/api/v1/nodes/{first}"))["spec"]

        # agents that say nothing hold up nothing
        for node in bed.nodes:
            agents.say(node, "")
        late = await bed.submit("late", checked(timeoutSeconds=10))
        await late.until_running()
        assert "10 s" in await late.until_event("PreFlightUnknown")
        await until(lambda: is_clean(bed), "nothing is asked any more")
        assert set(agents.ran.values()) == {1}


async def test_60_after_a_full_reset_agents_are_asked_and_their_word_is_told(bed: Bed) -> None:
    await bed.start(nodes=1)
    [node] = bed.nodes
    agents = AnsweringAgents(bed.api)
    async with agents.at_work(bed.nodes):
        agents.say(node, "FAIL")
        job = await bed.submit("train", training())
        await job.until_running()
        await job.fail_launcher("unrecoverable_runtime_error: [Recovery action: FULL_RESET] IPU 0")
        assert "FULL_RESET" in await job.until_event("PoplarFullReset")
        found = await job.until_event("FullResetChecked")
        for fact in ("check ipu", node, "LowBandwidth: 3 GB/s"):
            assert fact in found
        assert (await job.status())["launcherStatus"] == "Failed"
        assert list(agents.ran.values()) == [1]
        await job.delete()
        await until(lambda: is_clean(bed), "it goes with the job")


async def test_whoever_leads_next_goes_on_with_what_was_asked(bed: Bed) -> None:
    await bed.start(nodes=2)
    agents = AnsweringAgents(bed.api)
    async with agents.at_work(bed.nodes):
        for node in bed.nodes:
            agents.say(node, "")
        job, gone = await bed.submit("train", checked()), await bed.submit("gone", checked())
        nodes = await asked_nodes(agents, job)
        await asked_nodes(agents, gone)
        assert bed.operator is not None
        await bed.operator.stop(signal.SIGKILL)
        await bed.api.patch(gone.path, {"metadata": {"finalizers": []}})
        await gone.delete()
        await gone.until_gone()
        for node in bed.nodes:
            agents.say(node, "PASS")
        await bed.start_operator()
        status = await job.until_running()
        assert (status["preFlight"]["state"], status["attempt"]) == ("Passed", 0)
        uid = await job.uid()
        ran = {name: number for name, number in agents.ran.items() if uid in name[1]}
        assert (sorted(node for node, _ in ran), set(ran.values())) == (nodes, {1})
        await until(lambda: is_clean(bed), "what nobody waits for any more is withdrawn")

        # suspended while it is asked
        agents.say(bed.nodes[0], "")
        agents.say(bed.nodes[1], "")
        held = await bed.submit("held", checked())
        await asked_nodes(agents, held)
        await bed.api.patch(held.path, {"spec": {"suspend": True}})
        await until(lambda: is_clean(bed), "it is withdrawn")
