"""What a plan asks for, done: one API or proxy call each. What an answer says is cached before the next decision.

Nothing is read before it is written: a create that meets an object looks whose that is, and leaves what is not this
job's alone. What was refused is remembered with a back-off, so that a job that cannot go on costs a call a minute.
"""

import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from muster_kube.backoff import Backoff
from muster_kube.client import KubeClient
from muster_kube.errors import AlreadyExists, Conflict, Forbidden, Invalid, NotFound
from muster_kube.objects import Api
from muster_operator import names
from muster_operator.ipujob import FINALIZER, IPUJob
from muster_operator.ipujob import collection as jobs_in
from muster_operator.observing import World, collection, owner_of, whose
from muster_operator.partitioning import Proxy
from muster_operator.partitions import Entry, Refusal, Wish
from muster_operator.seen import (
    Action,
    AddFinalizer,
    Change,
    DeleteJob,
    DropFinalizer,
    FreePartition,
    Make,
    OwnedObject,
    RemoveObject,
    RemovePod,
    TakePartitions,
)

log = logging.getLogger(__name__)

AGAIN = Backoff(base_s=2.0, cap_s=60.0)
TAKING, FREEING = "take", "free"  # in place of a kind, where the proxy refused


class Refused(Exception):
    """The API server does not take an object as it is; the job's memory says why. The turn is over."""


class _Typed(Api, frozen=True):
    kind: str = ""


@dataclass
class Trouble:
    """Something refused. what: a Refusal of the proxy's, or words. at: on the clock, when it may be tried again."""

    what: Refusal | str
    at: float
    tries: int = 1
    foreign: bool = False


class Memory:
    """What was refused to jobs, by (kind, name) or (TAKING or FREEING, partition). It is only ever a reason to wait:
    who begins without it asks once more."""

    def __init__(self, clock: Callable[[], float], rng: random.Random) -> None:
        self._clock = clock
        self._rng = rng
        self._by_job: dict[str, dict[tuple[str, str], Trouble]] = {}

    def note(self, uid: str, key: tuple[str, str], what: Refusal | str, *, foreign: bool = False) -> None:
        held = self._by_job.setdefault(uid, {})
        tries = held[key].tries if key in held else 0
        at = self._clock() + min(AGAIN.cap_s, AGAIN.delay_s(tries, self._rng))
        held[key] = Trouble(what, at, tries + 1, foreign)

    def forget(self, uid: str, key: tuple[str, str]) -> None:
        if (held := self._by_job.get(uid)) is not None:
            held.pop(key, None)
            if not held:
                del self._by_job[uid]

    def forget_job(self, uid: str) -> None:
        self._by_job.pop(uid, None)

    def clear(self) -> None:
        self._by_job.clear()

    def waits(self, uid: str, key: tuple[str, str]) -> bool:
        """It was refused, and it is too early to try again."""
        trouble = self._by_job.get(uid, {}).get(key)
        return trouble is not None and self._clock() < trouble.at

    def again_s(self, uid: str) -> float | None:
        """Until the next of them may be tried again; what nobody asks for any more stays passed over."""
        now = self._clock()
        return min((each.at - now for each in self._by_job.get(uid, {}).values() if each.at > now), default=None)

    def room_came(self, uid: str) -> None:
        """Partitions may be asked for at once; how often they were refused still counts."""
        for key, trouble in self._by_job.get(uid, {}).items():
            if key[0] == TAKING:
                trouble.at = self._clock()

    def is_foreign(self, uid: str, key: tuple[str, str]) -> bool:
        trouble = self._by_job.get(uid, {}).get(key)
        return trouble is not None and trouble.foreign

    def foreign(self, uid: str) -> dict[tuple[str, str], str]:
        return {k: str(v.what) for k, v in self._by_job.get(uid, {}).items() if v.foreign}

    def refused(self, uid: str) -> dict[tuple[str, str], str]:
        """Objects that the API server does not take, and its words."""
        held = self._by_job.get(uid, {})
        return {k: v.what for k, v in held.items() if isinstance(v.what, str) and not v.foreign}

    def refusals(self, uid: str, entries: Mapping[str, Entry]) -> dict[str, Refusal]:
        """The proxy's, by partition, as far as they stand: what has come or gone since was not refused."""
        found = {}
        for (what, name), trouble in self._by_job.get(uid, {}).items():
            entry = entries.get(name)
            taken, freed = entry is not None and entry.state == "active", entry is None
            if isinstance(trouble.what, Refusal) and not (freed if what == FREEING else taken):
                found[name] = trouble.what
        return found


class Hands:
    """wrote: called with (verb, kind) for each write that the API server took."""

    def __init__(
        self,
        client: KubeClient,
        proxy: Proxy,
        world: World,
        memory: Memory,
        *,
        wrote: Callable[[str, str], None] = lambda _verb, _kind: None,
    ) -> None:
        self._client = client
        self._proxy = proxy
        self._world = world
        self._memory = memory
        self._wrote = wrote

    async def act(self, job: IPUJob, action: Action) -> bool:
        """Whether there is news to decide by. Raises ApiError and Refused: the turn is over; Conflict, one of them: it
        was decided on the past."""
        match action:
            case AddFinalizer():
                return await self._add_finalizer(job)
            case DropFinalizer():
                return await self._drop_finalizer(job)
            case Make():
                return await self._make(job, action)
            case Change():
                return await self._change(job, action)
            case RemovePod():
                return await self._remove(job, "Pod", action.name, action.uid, action.grace_s)
            case RemoveObject():
                return await self._remove(job, action.kind, action.name, action.uid, None)
            case TakePartitions():
                return await self._take(job, action)
            case FreePartition():
                return await self._free(job, action.name)
            case DeleteJob():
                return await self._delete(job)
        raise TypeError(f"no action of these hands: {action!r}")

    async def _add_finalizer(self, job: IPUJob) -> bool:
        if FINALIZER in job.metadata.finalizers:
            return False
        await self._write_finalizers(job, [*job.metadata.finalizers, FINALIZER])
        return True

    async def _drop_finalizer(self, job: IPUJob) -> bool:
        if FINALIZER not in job.metadata.finalizers:
            return False
        try:
            await self._write_finalizers(job, [each for each in job.metadata.finalizers if each != FINALIZER])
        except NotFound:
            return False
        return True

    async def _write_finalizers(self, job: IPUJob, finalizers: list[str]) -> None:
        meta = job.metadata
        body = {
            "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version, "finalizers": finalizers},
        }
        answer = await self._client.patch(_path(job), body, type=IPUJob)
        self._wrote("patch", "IPUJob")
        if FINALIZER in finalizers:  # else it may be gone by now: only the watch knows
            self._world.observe_job(answer)

    async def _make(self, job: IPUJob, make: Make) -> bool:
        uid, key = job.metadata.uid, (make.kind, make.name)
        if self._memory.waits(uid, key):
            if self._memory.is_foreign(uid, key):
                return False
            raise Refused
        if self._memory.is_foreign(uid, key) and await self._meet(job, make):
            return True
        path = collection(make.kind, job.metadata.namespace)
        try:
            raw = await self._client.create(path, make.body, type=msgspec.Raw)
        except AlreadyExists:
            return await self._meet(job, make)
        except (Forbidden, Invalid) as error:
            self._memory.note(uid, key, f"{make.kind} {make.name} cannot be made: {error.message}")
            raise Refused from error
        self._wrote("create", make.kind)
        self._memory.forget(uid, key)
        self._world.observe(make.kind, raw)
        return True

    async def _meet(self, job: IPUJob, make: Make) -> bool:
        """Look at what is there under that name; False: nothing."""
        uid, key = job.metadata.uid, (make.kind, make.name)
        path = f"{collection(make.kind, job.metadata.namespace)}/{make.name}"
        try:
            raw = await self._client.get(path, type=msgspec.Raw)
        except NotFound:
            return False  # it has just gone
        found = msgspec.json.decode(raw, type=OwnedObject).metadata
        owner = owner_of(found)
        if owner is None or owner[1] != uid:
            self._memory.note(uid, key, whose(found), foreign=True)
        elif found.labels.get(names.MANAGED_BY) != names.MANAGER:
            # its labels were taken away: the watch does not see it, so it would be made for ever
            self._memory.note(uid, key, f"this job's, without the label {names.OWNED_SELECTOR}", foreign=True)
        else:
            self._memory.forget(uid, key)
            self._world.observe(make.kind, raw)
        return True

    async def _change(self, job: IPUJob, change: Change) -> bool:
        path = f"{collection(change.kind, job.metadata.namespace)}/{change.name}"
        raw = await self._client.patch(path, change.body, type=msgspec.Raw)
        self._wrote("patch", change.kind)
        self._world.observe(change.kind, raw)
        return True

    async def _remove(self, job: IPUJob, kind: str, name: str, uid: str, grace_s: int | None) -> bool:
        options: dict[str, object] = {"preconditions": {"uid": uid}}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        path = f"{collection(kind, job.metadata.namespace)}/{name}"
        try:
            raw = await self._client.delete(path, options, type=msgspec.Raw)
        except (NotFound, Conflict):
            return False  # it is gone, or another one has its name: the watch tells
        self._wrote("delete", kind)
        if kind == "Pod" and msgspec.json.decode(raw, type=_Typed).kind == "Pod":
            self._world.observe(kind, raw)  # it has its deletionTimestamp
        return True

    async def _delete(self, job: IPUJob) -> bool:
        try:
            await self._client.delete(_path(job), {"preconditions": {"uid": job.metadata.uid}}, type=msgspec.Raw)
        except (NotFound, Conflict):
            return False
        self._wrote("delete", "IPUJob")
        return True

    # partitions

    async def _take(self, job: IPUJob, take: TakePartitions) -> bool:
        uid = job.metadata.uid
        entries = self._world.tracker.of_job(uid)
        wished: list[tuple[str, Wish]] = []
        for instance in take.instances:
            name = names.partition(job.metadata.namespace, job.metadata.name, instance)
            entry = entries.get(name)
            under_way = entry is not None and entry.attempt == take.attempt and entry.state != "deleting"
            if not under_way:
                wished.append((name, self._wish(job, take, instance)))
        early = [name for name, _ in wished if self._memory.waits(uid, (TAKING, name))]
        if take.together and early:
            return False
        wished = [(name, wish) for name, wish in wished if name not in early]
        if not wished:
            return False
        if take.together:
            refusal = await self._no_room_for(len(wished), take.size)
            if refusal is not None:
                return self._note_refused(uid, wished, refusal)
        return await self._take_each(uid, wished, together=take.together)

    async def _take_each(self, uid: str, wished: list[tuple[str, Wish]], *, together: bool) -> bool:
        taken: list[str] = []
        for number, (name, wish) in enumerate(wished):
            answer = await self._proxy.take(name, wish)
            if isinstance(answer, Entry):
                self._memory.forget(uid, (TAKING, name))
                self._world.tracker.hear(name, answer)
                taken.append(name)
            elif together and answer.why == "NoRoom":
                # two jobs that each hold half of what they need would wait for each other for ever
                await self._give_back(uid, taken)
                return self._note_refused(uid, wished, answer)
            elif answer.why in ("NoRoom", "Unreachable"):  # nor is there for the others
                return self._note_refused(uid, wished[number:], answer)
            else:
                self._note_refused(uid, [(name, wish)], answer)
        return True

    def _note_refused(self, uid: str, wished: list[tuple[str, Wish]], refusal: Refusal) -> bool:
        for name, _ in wished:
            self._memory.note(uid, (TAKING, name), refusal)
        return True

    async def _give_back(self, uid: str, taken: list[str]) -> None:
        for name in taken:
            answer = await self._proxy.free(name, uid)
            if isinstance(answer, Refusal):
                log.warning("partition %s, taken for a job that there is no room for, stays: %s", name, answer.message)
            else:
                self._heard_freed(uid, name, gone=answer)

    async def _no_room_for(self, number: int, size: int) -> Refusal | None:
        answer = await self._proxy.room(size)
        if isinstance(answer, Refusal):
            return answer
        if not answer.available:
            return Refusal(why="Unreachable", message=answer.message or "no V-IPU controller answers")
        if answer.num_of_partitions >= number:
            return None
        text = f"room for {answer.num_of_partitions} of {number} partitions of {size} IPUs"
        return Refusal(why="NoRoom", message=f"{text}: {answer.message}" if answer.message else text)

    def _wish(self, job: IPUJob, take: TakePartitions, instance: int) -> Wish:
        return Wish(
            job=job.metadata.uid,
            namespace=job.metadata.namespace,
            name=job.metadata.name,
            instance=instance,
            attempt=take.attempt,
            size=take.size,
            gcds=take.gcds,
        )

    async def _free(self, job: IPUJob, name: str) -> bool:
        return await self.free(job.metadata.uid, name)

    async def free(self, uid: str, name: str) -> bool:
        """A partition of the job ``uid``, which may be gone."""
        if self._memory.waits(uid, (FREEING, name)):
            return False
        entry = self._world.tracker.of_job(uid).get(name)
        if entry is None or entry.state == "deleting":
            return False  # the proxy goes on by itself, and the tracker tells
        answer = await self._proxy.free(name, uid)
        if isinstance(answer, Refusal):
            self._memory.note(uid, (FREEING, name), answer)
            return True
        self._memory.forget(uid, (FREEING, name))
        self._heard_freed(uid, name, gone=answer)
        return True

    def _heard_freed(self, uid: str, name: str, *, gone: bool) -> None:
        if gone:
            self._world.tracker.hear(name, None)
        elif (entry := self._world.tracker.of_job(uid).get(name)) is not None:
            self._world.tracker.hear(name, msgspec.structs.replace(entry, state="deleting"))


def _path(job: IPUJob) -> str:
    return f"{jobs_in(job.metadata.namespace)}/{job.metadata.name}"


__all__ = ["AGAIN", "Hands", "Memory", "Trouble"]
