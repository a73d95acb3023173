"""A trial that is called off, whatever it is doing just then; and its outcome as JSON."""

import asyncio
from typing import Any, get_args

import msgspec
import pytest

from muster_checks.pvc import judge
from muster_kube.api.list_decoder import ListPage
from muster_kube.volume_trial import Stage, VolumeTrial, VolumeTrialRunner


class SlowApi:
    """Stands in for the client: makes what it is asked to when ``may_make`` is set, whether or not the caller is still
    there, as a server does."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.may_make = asyncio.Event()

    async def list_page(self, path: str, type: Any, **_: Any) -> ListPage[Any]:
        return ListPage([], "1")

    async def create(self, path: str, body: dict[str, Any], *, type: Any) -> Any:
        kind = path.rsplit("/", 1)[1]
        self.log.append(f"asked for {kind}")
        await self.may_make.wait()
        self.log.append(f"made {kind}")
        return msgspec.convert({"metadata": body["metadata"]}, type)

    async def delete(self, path: str, options: object) -> None:
        self.log.append(f"deleted {path.split('/')[-2]}")


async def test_what_is_being_made_when_a_trial_is_called_off_is_there_before_it_is_deleted():
    api = SlowApi()
    trial = asyncio.create_task(
        VolumeTrialRunner(api, "n").try_claim(  # type: ignore[arg-type] # stands in for the client
            "node-7", storage_class="fast", size_mib=8, image="busybox", bind_timeout_s=60, write_timeout_s=60
        )
    )
    while not api.log:  # noqa: ASYNC110 - a list has no event of its own
        await asyncio.sleep(0)
    trial.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    api.may_make.set()
    with pytest.raises(asyncio.CancelledError):
        await trial
    assert api.log == [
        "asked for persistentvolumeclaims",
        "made persistentvolumeclaims",
        "deleted pods",
        "deleted persistentvolumeclaims",
    ]


class PodFirst(SlowApi):
    """The pod has written before anybody has seen that its claim is bound: two watches are in no order."""

    async def create(self, path: str, body: dict[str, Any], *, type: Any) -> Any:
        status = {"phase": "Succeeded" if path.endswith("/pods") else "Pending"}
        return msgspec.convert({"metadata": body["metadata"], "status": status}, type)


async def test_a_pod_that_has_written_proves_that_its_claim_is_bound():
    trial = await VolumeTrialRunner(PodFirst(), "n").try_claim(  # type: ignore[arg-type] # stands in for the client
        "node-7", storage_class="fast", size_mib=8, image="busybox", bind_timeout_s=60, write_timeout_s=60
    )
    assert (trial.stage, trial.bound_after_s) == ("written", trial.written_after_s)


def test_the_stages_of_a_trial_are_those_that_its_check_judges():
    assert set(get_args(Stage)) == set(judge.TrialStage)


def test_a_trial_survives_the_way_over_json():
    trial = VolumeTrial(stage="unbound", storage_class="fast", said="no volume")
    assert msgspec.json.decode(msgspec.json.encode(trial), type=VolumeTrial) == trial
    assert b'"boundAfterSeconds":null' in msgspec.json.encode(trial)


@pytest.mark.parametrize("raw", [b"{}", b'{"stage":"fine"}', b'{"stage":"written","boundAfterSeconds":-1}', b"[]"])
def test_what_is_no_trial_is_not_taken_for_one(raw: bytes):
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(raw, type=VolumeTrial)
