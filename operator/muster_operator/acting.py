"""What a plan asks for, done: one API or proxy call each. What an answer says is cached before the next decision.

Nothing is read before it is written: a create that meets an object looks whose that is, and leaves what is not this
job's alone. What was refused is remembered with a back-off, so that a job that cannot go on costs a call a minute.
"""

import contextlib
import logging
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum, auto

import msgspec

from muster_kube.backoff import Backoff
from muster_kube.client import KubeClient
from muster_kube.errors import AlreadyExists, ApiError, Conflict, Forbidden, NotFound
from muster_kube.objects import Api
from muster_operator import names
from muster_operator.ipujob import FINALIZER, IPUJob
from muster_operator.ipujob import collection as jobs_in
from muster_operator.observing import World, collection, owner_of, whose
from muster_operator.partitioning import Proxy
from muster_operator.partitions import Entry, Refusal, Wish
from muster_operator.promising import Promises
from muster_operator.seen import (
    Action,
    AddFinalizer,
    AskNode,
    AskRoom,
    Change,
    DeleteJob,
    DropFinalizer,
    FreePartition,
    Make,
    OwnedObject,
    RemoveObject,
    RemovePod,
    TakePartitions,
    WithdrawRequests,
)

log = logging.getLogger(__name__)

AGAIN = Backoff(base_s=2.0, cap_s=60.0)
AT_ONCE = 16  # partitions taken between two looks at a job that starts with some of them
TAKING, FREEING = "take", "free"  # in place of a kind, where the proxy refused
ASKING = "ask"  # likewise, where a node could not be asked
ROOM_S = 25.0  # an answer about room is good for so long: shorter than a plan waits before it asks anew
# HTTP statuses of a create that is not taken as it is; 400 is what does not decode, and the no of many webhooks
NOT_TAKEN = frozenset({400, 403, 413, 422})
LETTING_GO = ("IPUJob", FINALIZER)  # asked, and not confirmed by the watch yet


class Did(Enum):
    """What came of an action. DONE: there is news. REFUSED: there is news, and it ends what was decided with it. WAITS:
    nothing was tried, as it was refused a moment ago; it ends what was decided, too."""

    NOTHING = auto()
    DONE = auto()
    REFUSED = auto()
    WAITS = auto()


class _Some(Api, frozen=True):
    deletion_timestamp: str = ""


class _Typed(Api, frozen=True):
    kind: str = ""
    metadata: _Some = _Some()


@dataclass
class Trouble:
    """Something refused. what: a Refusal of the proxy's, words, or None: it is under way. at: on the clock, when it may
    be tried again."""

    what: Refusal | str | None
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
        self._rooms: dict[str, tuple[int, float]] = {}  # by job: what the proxy said of room, and until when it counts

    def note(self, uid: str, key: tuple[str, str], what: Refusal | str | None, *, foreign: bool = False) -> None:
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
        self._rooms.pop(uid, None)

    def clear(self) -> None:
        self._by_job.clear()
        self._rooms.clear()

    def note_room(self, uid: str, partitions: int) -> None:
        self._rooms[uid] = partitions, self._clock() + ROOM_S

    def room(self, uid: str) -> int | None:
        """How many partitions there is room for, as was said of late; None: nobody has asked."""
        said = self._rooms.get(uid)
        return said[0] if said is not None and self._clock() < said[1] else None

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
        self._rooms.pop(uid, None)
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
        return {k: v.what for k, v in held.items() if isinstance(v.what, str) and not v.foreign and k[0] != ASKING}

    def unasked(self, uid: str) -> dict[str, str]:
        """Nodes that could not be asked for checks, and why."""
        return {key[1]: str(each.what) for key, each in self._by_job.get(uid, {}).items() if key[0] == ASKING}

    def refusals(self, uid: str, what: str) -> dict[str, Refusal]:
        """The proxy's last ones to TAKING or to FREEING, by partition."""
        held = self._by_job.get(uid, {})
        return {key[1]: each.what for key, each in held.items() if key[0] == what and isinstance(each.what, Refusal)}


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
        self._promises = Promises()

    async def act(self, job: IPUJob, action: Action) -> Did:
        """Raises ApiError: the turn is over; Conflict, one of them: it was decided on the past."""
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
                return await self.free(job.metadata.uid, action.name)
            case AskRoom():
                return await self._ask_room(job.metadata.uid, action.size)
            case AskNode():
                return await self._ask_node(job.metadata.uid, action)
            case WithdrawRequests():
                return await self.withdraw(job.metadata.uid, action.node, action.keep)
            case DeleteJob():
                return await self._delete(job)
        raise TypeError(f"no action of these hands: {action!r}")

    async def _add_finalizer(self, job: IPUJob) -> Did:
        if FINALIZER in job.metadata.finalizers:
            return Did.NOTHING
        await self._write_finalizers(job, [*job.metadata.finalizers, FINALIZER])
        return Did.DONE

    async def _drop_finalizer(self, job: IPUJob) -> Did:
        """Whether the job is gone then only the watch knows: it is not to be decided about again before that; nor is it
        asked again while news of its pods and partitions still come in."""
        uid = job.metadata.uid
        if FINALIZER in job.metadata.finalizers and not self._memory.waits(uid, LETTING_GO):
            self._memory.note(uid, LETTING_GO, None)  # before, as the watch may be faster than the answer
            with contextlib.suppress(NotFound):
                try:
                    await self._write_finalizers(job, [each for each in job.metadata.finalizers if each != FINALIZER])
                except BaseException:
                    self._memory.forget(uid, LETTING_GO)
                    raise
        return Did.WAITS

    async def _write_finalizers(self, job: IPUJob, finalizers: list[str]) -> None:
        meta = job.metadata
        body = {"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version, "finalizers": finalizers}}
        answer = await self._client.patch(_path(job), body, type=IPUJob)
        self._wrote("patch", "IPUJob")
        if FINALIZER in finalizers:  # else it may be gone by now, and must not come back into the cache
            self._world.observe_job(answer)

    async def _make(self, job: IPUJob, make: Make) -> Did:
        uid, key = job.metadata.uid, (make.kind, make.name)
        foreign = self._memory.is_foreign(uid, key)
        if self._memory.waits(uid, key):
            return Did.NOTHING if foreign else Did.WAITS
        if foreign and (met := await self._meet(job, make)) is not None:
            return met
        path = collection(make.kind, job.metadata.namespace)
        try:
            raw = await self._client.create(path, make.body, type=msgspec.Raw)
        except AlreadyExists:
            return await self._meet(job, make) or Did.REFUSED  # it has just gone: decide again
        except ApiError as error:
            if error.status not in NOT_TAKEN:
                raise
            self._memory.note(uid, key, f"{make.kind} {make.name} cannot be made: {error.message}")
            return Did.REFUSED
        self._wrote("create", make.kind)
        self._memory.forget(uid, key)
        self._world.observe(make.kind, raw)
        return Did.DONE

    async def _meet(self, job: IPUJob, make: Make) -> Did | None:
        """Look at what is there under that name; None: nothing."""
        uid, key = job.metadata.uid, (make.kind, make.name)
        path = f"{collection(make.kind, job.metadata.namespace)}/{make.name}"
        try:
            raw = await self._client.get(path, type=msgspec.Raw)
        except NotFound:
            return None
        found = msgspec.json.decode(raw, type=OwnedObject).metadata
        owner = owner_of(found)
        if owner is None or owner[1] != uid:
            self._memory.note(uid, key, whose(found), foreign=True)
            return Did.REFUSED
        if found.labels.get(names.MANAGED_BY) != names.MANAGER:
            # its labels were taken away: the watch does not see it, so it would be made for ever
            self._memory.note(uid, key, f"this job's, without the label {names.OWNED_SELECTOR}", foreign=True)
            return Did.REFUSED
        self._memory.forget(uid, key)
        self._world.observe(make.kind, raw)
        return Did.DONE

    async def _change(self, job: IPUJob, change: Change) -> Did:
        path = f"{collection(change.kind, job.metadata.namespace)}/{change.name}"
        raw = await self._client.patch(path, change.body, type=msgspec.Raw)
        self._wrote("patch", change.kind)
        self._world.observe(change.kind, raw)
        return Did.DONE

    async def _remove(self, job: IPUJob, kind: str, name: str, uid: str, grace_s: int | None) -> Did:
        options: dict[str, object] = {"preconditions": {"uid": uid}}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        path = f"{collection(kind, job.metadata.namespace)}/{name}"
        try:
            raw = await self._client.delete(path, options, type=msgspec.Raw)
        except (NotFound, Conflict):
            return Did.NOTHING  # it is gone, or another one has its name: the watch tells
        self._wrote("delete", kind)
        if kind == "Pod" and (left := _left(raw)) is not None:
            self._world.observe(kind, left)
        # of what is gone at once only the watch tells: deciding before that would remove it again
        return Did.NOTHING

    async def _delete(self, job: IPUJob) -> Did:
        with contextlib.suppress(NotFound, Conflict):
            await self._client.delete(_path(job), {"preconditions": _as_decided(job)}, type=msgspec.Raw)
            self._wrote("delete", "IPUJob")
        return Did.WAITS

    # checks of nodes

    async def _ask_node(self, uid: str, ask: AskNode) -> Did:
        """One that cannot be asked holds up no other."""
        key = (ASKING, ask.node)
        if self._memory.waits(uid, key):
            return Did.NOTHING
        try:
            refused = await self._world.requests.ask(ask.node, ask.request)
        except Forbidden as error:
            refused = error.message
        if refused:
            self._memory.note(uid, key, refused)
            return Did.NOTHING
        self._wrote("patch", "NodeHealth")
        self._memory.forget(uid, key)
        return Did.DONE

    async def withdraw(self, uid: str, node: str, keep: Collection[str] = ()) -> Did:
        try:
            if not await self._world.requests.withdraw(node, uid, keep):
                return Did.NOTHING
        except Forbidden as error:  # it holds up nothing of the job
            log.warning("a request for checks of node %s stays: %s", node, error)
            return Did.NOTHING
        self._wrote("patch", "NodeHealth")
        return Did.DONE

    # partitions

    async def _take(self, job: IPUJob, take: TakePartitions) -> Did:
        uid = job.metadata.uid
        wished = [
            (names.partition(job.metadata.namespace, job.metadata.name, instance), _wish(job, take, instance))
            for instance in take.instances
        ]
        early = [name for name, _ in wished if self._memory.waits(uid, (TAKING, name))]
        if early and (take.together or len(early) == len(wished)):
            return Did.WAITS
        wished = [(name, wish) for name, wish in wished if name not in early]
        held = self._world.tracker.of_job(uid)  # those are only reset, where they are
        new = sum(name not in held for name, _ in wished)
        if not (take.together and new):
            return await self._take_each(job, wished, together=take.together)
        if (refusal := await self._no_room_for(uid, new, take.size)) is not None:
            return self._note_refused(uid, wished, refusal)
        with self._promises.made(uid, new, take.size):
            return await self._take_each(job, wished, together=True)

    async def _take_each(self, job: IPUJob, wished: list[tuple[str, Wish]], *, together: bool) -> Did:
        uid = job.metadata.uid
        held = self._world.tracker.of_job(uid)
        taken: list[str] = []
        did = Did.DONE
        for number, (name, wish) in enumerate(wished):
            if number and self._is_given_up(job):
                return Did.REFUSED  # each may take V-IPU seconds: what was taken goes back
            answer = await self._proxy.take(name, wish)
            if isinstance(answer, Entry):
                self._memory.forget(uid, (TAKING, name))
                self._world.tracker.hear(name, answer)
                if name not in held:
                    self._promises.kept(uid)
                taken.append(name)
            elif together and answer.why == "NoRoom":
                # two jobs that each hold half of what they need would wait for each other for ever
                await self._give_back(uid, taken)
                return self._note_refused(uid, wished, answer)
            elif answer.why in ("NoRoom", "Unreachable"):  # nor will the others be taken
                return self._note_refused(uid, wished[number:], answer)
            else:
                did = self._note_refused(uid, [(name, wish)], answer)
            if not together and len(taken) == AT_ONCE:
                break
        return did

    def _is_given_up(self, job: IPUJob) -> bool:
        """By now, whatever was decided before: all of its partitions are to go."""
        now = self._world.job(f"{job.metadata.namespace}/{job.metadata.name}")
        if now is None:
            return False  # not seen yet
        another = now.metadata.uid != job.metadata.uid
        return another or bool(now.metadata.deletion_timestamp) or (now.spec.suspend and not job.spec.suspend)

    def _note_refused(self, uid: str, wished: list[tuple[str, Wish]], refusal: Refusal) -> Did:
        for name, _ in wished:
            self._memory.note(uid, (TAKING, name), refusal)
        return Did.REFUSED

    async def _give_back(self, uid: str, taken: list[str]) -> None:
        for name in taken:
            answer = await self._proxy.free(name, uid)
            if isinstance(answer, Refusal):
                log.warning("partition %s, taken for a job that there is no room for, stays: %s", name, answer.message)
            else:
                self._heard_freed(uid, name, gone=answer)

    async def _no_room_for(self, uid: str, number: int, size: int) -> Refusal | None:
        before = self._promises.to_others(uid, size)
        answer = await self._proxy.room(size)
        if isinstance(answer, Refusal):
            return answer
        if not answer.available:
            return Refusal(why="Unreachable", message=answer.message or "no V-IPU controller answers")
        # what was promised meanwhile is not in the answer, nor was all there that was promised before
        now = self._promises.to_others(uid, size)
        promised = sum(max(before.get(each, 0), now.get(each, 0)) for each in before.keys() | now.keys())
        room = max(0, answer.num_of_partitions - promised)
        if room >= number:
            return None
        text = f"room for {room} of {number} partitions of {size} IPUs"
        return Refusal(why="NoRoom", message=f"{text}: {answer.message}" if answer.message else text)

    async def _ask_room(self, uid: str, size: int) -> Did:
        """Nothing but the answer is kept: no answer is no room."""
        if self._memory.room(uid) is not None:
            return Did.NOTHING
        answer = await self._proxy.room(size)
        self._memory.note_room(uid, 0 if isinstance(answer, Refusal) else answer.num_of_partitions)
        return Did.DONE

    async def free(self, uid: str, name: str) -> Did:
        """Give back a partition of the job ``uid``, which may be gone; one that is not there is given back."""
        key = (FREEING, name)
        if self._memory.waits(uid, key):
            return Did.WAITS
        known = name in self._world.tracker.of_job(uid)
        answer = await self._proxy.free(name, uid)
        if isinstance(answer, Refusal) and answer.why != "NotOurs":
            self._memory.note(uid, key, answer)
            return Did.REFUSED
        if answer is False and not known:
            self._memory.note(uid, key, None)
            return Did.REFUSED
        self._memory.forget(uid, key)
        self._heard_freed(uid, name, gone=answer is not False)
        if answer is False:
            return Did.REFUSED  # under way, which ends what was decided
        return Did.DONE if known else Did.NOTHING

    def _heard_freed(self, uid: str, name: str, *, gone: bool) -> None:
        if gone:
            self._world.tracker.hear(name, None)
        elif (entry := self._world.tracker.of_job(uid).get(name)) is not None:
            self._world.tracker.hear(name, msgspec.structs.replace(entry, state="deleting"))


def _wish(job: IPUJob, take: TakePartitions, instance: int) -> Wish:
    return Wish(
        job=job.metadata.uid,
        namespace=job.metadata.namespace,
        name=job.metadata.name,
        instance=instance,
        attempt=take.attempt,
        size=take.size,
        gcds=take.gcds,
    )


def _as_decided(job: IPUJob) -> dict[str, str]:
    """A job that has been edited since, to live longer for one, is decided about again."""
    return {"uid": job.metadata.uid, "resourceVersion": job.metadata.resource_version}


def _left(raw: bytes | msgspec.Raw) -> bytes | msgspec.Raw | None:
    """The pod that a delete has left for its kubelet to end; None: it was gone at once, or the answer is a Status."""
    pod = msgspec.json.decode(raw, type=_Typed)
    return raw if pod.kind == "Pod" and pod.metadata.deletion_timestamp else None


def _path(job: IPUJob) -> str:
    return f"{jobs_in(job.metadata.namespace)}/{job.metadata.name}"


__all__ = ["AGAIN", "FREEING", "TAKING", "Did", "Hands", "Memory", "Trouble"]
