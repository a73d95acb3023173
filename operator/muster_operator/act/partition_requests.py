"""Requests partitions of jobs from the proxy and releases them. Responses update the cache before the tracker's watch
does. Before a partition is released or reset, the API server is asked for pods that the decision did not know
(:mod:`muster_operator.act.unseen_pods`).

Instances that start together get all of their partitions or none (behaviour 49): the operator queries the capacity
first, and releases what it took if the capacity shrinks meanwhile.
"""

import logging

import msgspec

from muster_operator.act.gang_reservations import GangReservations
from muster_operator.act.proxy_client import ProxyClient
from muster_operator.act.refusal_cache import FREEING, TAKING, UNSUITABLE, RefusalCache
from muster_operator.act.unseen_pods import UnseenPods
from muster_operator.job import names
from muster_operator.job.partition_api import PartitionEntry, PartitionRefusal, PartitionRequest
from muster_operator.job.snapshot import ActionResult, TakePartitions
from muster_operator.job.types import IPUJob
from muster_operator.observe.cluster import ClusterCache

log = logging.getLogger(__name__)

AT_ONCE = 16  # partitions taken before the job is looked at again, if it can start with some of them


class PartitionRequester:
    def __init__(self, proxy: ProxyClient, cluster: ClusterCache, refusals: RefusalCache) -> None:
        self._proxy = proxy
        self._cluster = cluster
        self._refusals = refusals
        self._reservations = GangReservations()

    async def take(self, job: IPUJob, take: TakePartitions, unseen: UnseenPods) -> ActionResult:
        uid = job.metadata.uid
        wished = [
            (names.partition(job.metadata.namespace, job.metadata.name, instance), _make_request(job, take, instance))
            for instance in take.instances
        ]
        early = [
            name for name, _ in wished if any(self._refusals.waits(uid, (why, name)) for why in (TAKING, UNSUITABLE))
        ]
        if early and (take.together or len(early) == len(wished)):
            return ActionResult.WAITS
        wished = [(name, wish) for name, wish in wished if name not in early]
        held = self._cluster.tracker.of_job(uid)  # partitions that the job has are only reset
        new = sum(name not in held for name, _ in wished)
        if not (take.together and new):
            return await self._take_each(job, wished, unseen, together=take.together)
        if (refusal := await self._no_room_for(uid, new, take.size)) is not None:
            return self._note_refused(uid, wished, refusal)
        with self._reservations.hold(uid, new, take.size):
            return await self._take_each(job, wished, unseen, together=True)

    async def _take_each(
        self, job: IPUJob, wished: list[tuple[str, PartitionRequest]], unseen: UnseenPods, *, together: bool
    ) -> ActionResult:
        uid = job.metadata.uid
        held = self._cluster.tracker.of_job(uid)
        taken: list[str] = []
        did = ActionResult.DONE
        for number, (name, wish) in enumerate(wished):
            if number and self._is_given_up(job):
                return ActionResult.REFUSED  # each may take V-IPU seconds: release what was taken
            entry = held.get(name)
            if wish.attempt > (entry.attempt if entry is not None else 0):  # it would be reset, if it exists
                await unseen.look_for(name)
            answer = await self._proxy.take(name, wish)
            if isinstance(answer, PartitionEntry):
                self._refusals.forget(uid, (TAKING, name))
                self._cluster.tracker.note_answer(name, answer)
                if name not in held:
                    self._reservations.note_taken(uid)
                taken.append(name)
            elif together and answer.why == "NoRoom":
                # two jobs that each hold half of what they need would wait for each other forever
                await self._give_back(uid, taken)
                return self._note_refused(uid, wished, answer)
            elif answer.why in ("NoRoom", "Unreachable", "Denied"):  # the others will not succeed either
                return self._note_refused(uid, wished[number:], answer)
            else:
                did = self._note_refused(uid, [(name, wish)], answer)
            if not together and len(taken) == AT_ONCE:
                break
        return did

    def _is_given_up(self, job: IPUJob) -> bool:
        """Whether the job was deleted, replaced or suspended meanwhile: it must release all partitions."""
        now = self._cluster.job(f"{job.metadata.namespace}/{job.metadata.name}")
        if now is None:
            return False  # not in the cache yet
        another = now.metadata.uid != job.metadata.uid
        return another or bool(now.metadata.deletion_timestamp) or (now.spec.suspend and not job.spec.suspend)

    def _note_refused(
        self, uid: str, wished: list[tuple[str, PartitionRequest]], refusal: PartitionRefusal
    ) -> ActionResult:
        for name, _ in wished:
            self._refusals.note(uid, (TAKING, name), refusal)
        return ActionResult.REFUSED

    async def _give_back(self, uid: str, taken: list[str]) -> None:
        for name in taken:
            answer = await self._proxy.free(name, uid)
            if isinstance(answer, PartitionRefusal):
                log.warning("partition %s: cannot release it after its job found no room: %s", name, answer.message)
            else:
                self._note_freed(uid, name, gone=answer)

    async def _no_room_for(self, uid: str, number: int, size: int) -> PartitionRefusal | None:
        before = self._reservations.of_others(uid, size)
        answer = await self._proxy.room(size)
        if isinstance(answer, PartitionRefusal):
            return answer
        if not answer.available:
            return PartitionRefusal(why="Unreachable", message=answer.message or "no V-IPU controller responds")
        # the answer does not include reservations made meanwhile, and may not include all earlier ones
        now = self._reservations.of_others(uid, size)
        promised = sum(max(before.get(each, 0), now.get(each, 0)) for each in before.keys() | now.keys())
        room = max(0, answer.num_of_partitions - promised)
        if room >= number:
            return None
        text = f"room for {room} of {number} partitions of {size} IPUs"
        return PartitionRefusal(why="NoRoom", message=f"{text}: {answer.message}" if answer.message else text)

    async def ask_room(self, uid: str, size: int) -> ActionResult:
        """Caches only the number; a refused query counts as no room."""
        if self._refusals.room(uid) is not None:
            return ActionResult.NOTHING
        answer = await self._proxy.room(size)
        self._refusals.note_room(uid, 0 if isinstance(answer, PartitionRefusal) else answer.num_of_partitions)
        return ActionResult.DONE

    async def free(self, uid: str, name: str, unseen: UnseenPods, *, unsuitable: bool = False) -> ActionResult:
        """Release a partition of the job ``uid``, which may be deleted already. A partition that does not exist counts
        as released. unsuitable: see FreePartition. Raises Conflict if it has pods that the
        decision did not know."""
        key = (FREEING, name)
        if unsuitable and not self._refusals.waits(uid, (UNSUITABLE, name)):
            self._refusals.note(uid, (UNSUITABLE, name), None)
        if self._refusals.waits(uid, key):
            return ActionResult.WAITS
        await unseen.look_for(name)
        known = name in self._cluster.tracker.of_job(uid)
        answer = await self._proxy.free(name, uid)
        if isinstance(answer, PartitionRefusal) and answer.why != "NotOurs":
            self._refusals.note(uid, key, answer)
            return ActionResult.REFUSED
        if answer is False and not known:
            self._refusals.note(uid, key, None)
            return ActionResult.REFUSED
        self._refusals.forget(uid, key)
        self._note_freed(uid, name, gone=answer is not False)
        if answer is False:
            return ActionResult.REFUSED  # in progress, which ends this plan
        return ActionResult.DONE if known else ActionResult.NOTHING

    def _note_freed(self, uid: str, name: str, *, gone: bool) -> None:
        if gone:
            self._cluster.tracker.note_answer(name, None)
        elif (entry := self._cluster.tracker.of_job(uid).get(name)) is not None:
            self._cluster.tracker.note_answer(name, msgspec.structs.replace(entry, state="deleting"))


def _make_request(job: IPUJob, take: TakePartitions, instance: int) -> PartitionRequest:
    return PartitionRequest(
        job=job.metadata.uid,
        namespace=job.metadata.namespace,
        name=job.metadata.name,
        instance=instance,
        attempt=take.attempt,
        size=take.size,
        gcds=take.gcds,
    )
