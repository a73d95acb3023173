"""The operator's metrics: who may read them, and that each event is counted once."""

import httpx2
from tests.cluster.ipujob.operator_bed import (
    WAIT_S,
    Bed,
    bed_fixture,  # noqa: F401 - the fixture
    inference,
    reviewed,
    training,
    until,
)

from muster_operator.job.status import NOT_READY


def value(text: str, name: str) -> float:
    [found] = [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(f"{name} ")]
    return float(found)


async def test_54_metrics_need_a_token_with_the_right_and_count_each_event_once(bed: Bed) -> None:
    await bed.start()
    assert bed.operator is not None
    url = f"https://{bed.operator.told['metrics']}/metrics"
    async with httpx2.AsyncClient(trust_env=False, timeout=WAIT_S, verify=False) as http:

        async def answer_to(token: str) -> httpx2.Response:
            return await reviewed(lambda: http.get(url, headers={"Authorization": f"Bearer {token}"}))

        nobody = await http.get(url)
        assert (nobody.status_code, nobody.headers["www-authenticate"]) == (401, "Bearer")
        assert (await answer_to("made-up")).status_code == 401
        somebody = await answer_to(bed.token_for("somebody"))
        assert somebody.status_code == 403
        assert "/metrics" in somebody.text
        posted = await http.post(url)
        assert posted.status_code == 405

    good = await bed.submit("good", training(ipus=4))
    bad = await bed.submit("bad", training())
    serve = await bed.submit("serve", inference())
    for job in (good, bad, serve):
        await job.until_running()
    assert value(await bed.metrics(), "muster_operator_ipus_used") == 7
    good.finish("good-launcher")
    bad.finish("bad-launcher", 1)
    await good.until("is completed", lambda status: status["launcherStatus"] == "Completed")
    await bad.until("has failed", lambda status: status["launcherStatus"] == "Failed")

    async def counted() -> str:
        text = await bed.metrics()
        ended = value(text, "muster_operator_jobs_succeeded_total") + value(text, "muster_operator_jobs_failed_total")
        return text if ended == 2 and value(text, "muster_operator_leader") == 1 else ""

    text = await until(counted, "both ends are counted, by a leader")
    assert value(text, "muster_operator_jobs_created_total") == 3
    assert value(text, "muster_operator_jobs_succeeded_total") == 1
    assert value(text, "muster_operator_jobs_failed_total") == 1
    assert value(text, 'muster_operator_job_restarts_total{cause="exit"}') == 0
    assert value(text, "muster_operator_job_queue_seconds_count") == 3
    assert value(text, "muster_operator_job_first_running_seconds_count") == 3
    assert value(text, "muster_operator_ipu_seconds_used_total") >= 0
    assert 'muster_operator_ipu_seconds_lost_total{cause="exit"}' in text
    assert value(text, 'muster_operator_jobs{status="Running"}') == 1
    assert value(text, 'muster_operator_jobs{status="Completed"}') == 1
    assert value(text, 'muster_operator_proxy_calls_total{call="take"}') >= 3
    assert "muster_operator_reconcile_seconds_count" in text
    # what is looked at again is not counted again
    await bed.api.patch(good.path, {"metadata": {"labels": {"a": "b"}}})
    await bed.api.patch(bad.path, {"metadata": {"labels": {"a": "b"}}})
    before = value(text, "muster_operator_reconcile_seconds_count")

    async def looked() -> bool:
        return value(await bed.metrics(), "muster_operator_reconcile_seconds_count") >= before + 2

    await until(looked, "both were looked at again")
    text = await bed.metrics()
    assert value(text, "muster_operator_jobs_succeeded_total") == 1
    assert value(text, "muster_operator_jobs_failed_total") == 1


async def test_54_v_ipu_errors_are_counted(bed: Bed) -> None:
    await bed.start()
    await bed.fault(down=True)
    job = await bed.submit("serve", inference())
    await job.until_says(NOT_READY)

    async def counted() -> bool:
        return 'muster_operator_proxy_errors_total{call="take",reason="' in await bed.metrics()

    await until(counted, "the refusal is counted")
