"""The operator's view of the tracker ConfigMap: the partitions of each job, by the job's uid.

Every change of any partition produces a new version of the ConfigMap; only values that changed are decoded. A response
of the proxy takes precedence over the watch until the watch has caught up, so a decision never uses older state than
the operator has received.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import msgspec

from muster_kube.api.client import KubeClient
from muster_kube.api.objects import Api, Metadata
from muster_kube.controller.reflector import Reflector
from muster_operator.job.partition_api import PartitionEntry

log = logging.getLogger(__name__)

RECEIVED_S = 60.0  # how long a response counts that the watch does not confirm
_ORDER = {"creating": 0, "active": 1, "deleting": 2}
_decoder = msgspec.json.Decoder(PartitionEntry)
_NONE: Mapping[str, PartitionEntry] = MappingProxyType({})


class TrackerSnapshot(Api, frozen=True):
    metadata: Metadata
    data: dict[str, str] = msgspec.field(default_factory=dict)


@dataclass(frozen=True)
class _ProxyAnswer:
    """entry: in the proxy's response; None: it is gone. before: the watched entry at that time. until: on the clock."""

    entry: PartitionEntry | None
    before: PartitionEntry | None
    until: float


class TrackerReader:
    """on_change: called with the entry's job as ``namespace/name``. on_room: called when a partition was removed.

    clock: monotonic seconds
    """

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        name: str,
        *,
        on_change: Callable[[str], None],
        on_room: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._on_change = on_change
        self._on_room = on_room
        self._clock = clock
        self._texts: dict[str, str] = {}
        self._entries: dict[str, PartitionEntry] = {}
        self._by_job: dict[str, dict[str, PartitionEntry]] = {}
        self._by_key: dict[str, dict[str, PartitionEntry]] = {}
        self._answers: dict[str, _ProxyAnswer] = {}
        self.map: Reflector[TrackerSnapshot] = Reflector(
            client,
            f"/api/v1/namespaces/{namespace}/configmaps",
            TrackerSnapshot,
            on_change=lambda _key, _old, new: self.update(new.data if new is not None else {}),
            params={"fieldSelector": f"metadata.name={name}"},
        )

    def update(self, data: Mapping[str, str]) -> None:
        """The tracker's data as the watch delivered them."""
        changed: set[str] = set()
        room = False
        for name in self._texts.keys() - data.keys():
            del self._texts[name]
            gone = self._entries.pop(name, None)
            if gone is not None:
                changed.add(job_key(gone))
                self._index(name, gone, None)
                room = True
        for name, text in data.items():
            if self._texts.get(name) == text:
                continue
            self._texts[name] = text
            old, new = self._entries.get(name), _read(name, text)
            if new is None:
                self._entries.pop(name, None)
            else:
                self._entries[name] = new
                changed.add(job_key(new))
            if old is not None:
                changed.add(job_key(old))
            self._index(name, old, new)
        for name, received in list(self._answers.items()):
            if self._overtaken(name, received):
                del self._answers[name]
            elif (seen := self._entries.get(name)) is not None:
                self._answers[name] = replace(received, before=seen)  # so that its removal is noticed
        for key in sorted(changed):
            self._on_change(key)
        if room:
            self._on_room()

    def note_answer(self, name: str, entry: PartitionEntry | None) -> None:
        """Cache the proxy's response about a partition; None: it is gone."""
        self._answers.pop(name, None)
        received = _ProxyAnswer(entry, self._entries.get(name), self._clock() + RECEIVED_S)
        if not self._overtaken(name, received):
            self._answers[name] = received

    def forget_answers(self) -> None:
        """A new leader starts without cached responses."""
        self._answers.clear()

    def of_job(self, uid: str) -> Mapping[str, PartitionEntry]:
        """By partition name."""
        known = self._by_job.get(uid, _NONE)
        if not self._answers:
            return known
        now, merged = self._clock(), dict(known)
        for name, received in list(self._answers.items()):
            if now >= received.until:
                del self._answers[name]
            elif received.entry is not None and received.entry.job == uid:
                merged[name] = received.entry
            elif received.entry is None and name in merged:
                del merged[name]
        return merged

    def again_s(self, uid: str) -> float | None:
        """Seconds until a response about a partition of the job no longer counts; None: the watch has confirmed all."""
        ends = [
            answer.until
            for answer in self._answers.values()
            if any(entry is not None and entry.job == uid for entry in (answer.entry, answer.before))
        ]
        return min(ends) - self._clock() if ends else None

    def all(self) -> Iterator[tuple[str, PartitionEntry]]:
        """As watched, including parked partitions."""
        return iter(list(self._entries.items()))

    def job_keys(self) -> list[str]:
        """``namespace/name`` of every job with a partition."""
        return list(self._by_key)

    def uids_at(self, key: str) -> set[str]:
        """Uids of jobs of that name with a partition: the current job, and possibly earlier ones."""
        return {entry.job for entry in self._by_key.get(key, _NONE).values()}

    def _index(self, name: str, old: PartitionEntry | None, new: PartitionEntry | None) -> None:
        for index, at in ((self._by_job, lambda entry: entry.job), (self._by_key, job_key)):
            if old is not None and (held := index.get(at(old))) is not None:
                held.pop(name, None)
                if not held:
                    del index[at(old)]
            if new is not None and new.job:  # a parked partition belongs to no job
                index.setdefault(at(new), {})[name] = new

    def _overtaken(self, name: str, received: _ProxyAnswer) -> bool:
        """Whether the watch has delivered the received state or a newer one."""
        seen = self._entries.get(name)
        if received.entry is None:
            return seen is None or seen != received.before
        if seen is None:
            return received.before is not None  # it existed, and was removed since
        if (seen.job, seen.attempt) != (received.entry.job, received.entry.attempt):
            return seen != received.before
        return _ORDER[seen.state] >= _ORDER[received.entry.state]


def job_key(entry: PartitionEntry) -> str:
    return f"{entry.namespace}/{entry.name}"


def _read(name: str, text: str) -> PartitionEntry | None:
    try:
        return _decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        log.warning("tracker: cannot decode entry %s: %s", name, error)
        return None
