"""The tracker as the watch brings it, and what the proxy has answered in front of it."""

import msgspec
import pytest
from tests.wording.facts import missing_facts

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_operator.job.partition_api import PartitionEntry
from muster_operator.observe.tracker_reader import RECEIVED_S, TrackerReader


class Bench:
    def __init__(self) -> None:
        self.changed: list[str] = []
        self.rooms = 0
        self.now = 0.0
        client = KubeClient(ClusterConfig(origin="test", server="http://127.0.0.1:1"))
        self.tracker = TrackerReader(
            client, "muster", "tracker", on_change=self.changed.append, on_room=self._room, clock=lambda: self.now
        )

    def _room(self) -> None:
        self.rooms += 1

    def take(self, **entries: PartitionEntry) -> list[str]:
        """What has been told since."""
        self.changed.clear()
        self.tracker.update({name: text(entry) for name, entry in entries.items()})
        return self.changed

    def of(self, uid: str) -> dict[str, str]:
        return {name: entry.state for name, entry in self.tracker.of_job(uid).items()}


@pytest.fixture
def bench() -> Bench:
    return Bench()


def text(entry: PartitionEntry) -> str:
    return msgspec.json.encode(entry).decode()


def entry(uid: str = "u1", name: str = "train", **fields: object) -> PartitionEntry:
    return msgspec.convert({"job": uid, "namespace": "ns", "name": name} | fields, type=PartitionEntry)


def test_only_jobs_with_changed_entries_are_notified(bench: Bench) -> None:
    assert bench.take(a=entry(), b=entry("u2", "serve")) == ["ns/serve", "ns/train"]
    assert bench.take(a=entry(state="active"), b=entry("u2", "serve")) == ["ns/train"]
    assert bench.take(a=entry(state="active"), b=entry("u2", "serve")) == []
    assert bench.of("u1") == {"a": "active"}


def test_only_a_removed_partition_reports_room(bench: Bench) -> None:
    bench.take(a=entry(), b=entry("u2", "serve"))
    bench.take(a=entry(state="active"), b=entry("u2", "serve"))
    assert bench.rooms == 0
    assert bench.take(a=entry(state="active")) == ["ns/serve"]
    assert bench.rooms == 1
    assert bench.of("u2") == {}


def test_an_entry_that_passes_to_another_job_notifies_both(bench: Bench) -> None:
    bench.take(a=entry())
    assert bench.take(a=entry("u9", "other")) == ["ns/other", "ns/train"]
    assert bench.of("u1") == {}
    assert bench.tracker.uids_at("ns/other") == {"u9"}
    assert bench.tracker.uids_at("ns/train") == set()


@pytest.mark.parametrize("broken", ["{", '{"x":' * 5_000 + "1" + "}" * 5_000], ids=["cut", "nested"])
def test_a_text_that_is_no_entry_hides_no_other(bench: Bench, caplog: pytest.LogCaptureFixture, broken: str) -> None:
    bench.tracker.update({"a": broken, "b": text(entry())})
    bench.tracker.update({"a": broken, "b": text(entry(state="active"))})
    assert bench.of("u1") == {"b": "active"}
    [warning] = caplog.records
    assert not missing_facts(warning.getMessage(), "a"), "the entry's name"


def test_a_parked_partition_is_no_jobs(bench: Bench) -> None:
    bench.take(p=entry("", ""))
    assert bench.tracker.job_keys() == []
    assert dict(bench.tracker.all()).keys() == {"p"}


def test_an_answer_counts_at_once_and_an_older_watch_event_does_not_undo_it(bench: Bench) -> None:
    bench.tracker.note_answer("a", entry(state="active"))
    assert bench.of("u1") == {"a": "active"}
    bench.take(a=entry(state="creating"))  # the intent, written before that answer
    assert bench.of("u1") == {"a": "active"}
    bench.take(a=entry(state="active"))
    bench.take(a=entry(state="deleting"))
    assert bench.of("u1") == {"a": "deleting"}


def test_an_answered_entry_that_is_then_removed_is_gone(bench: Bench) -> None:
    bench.tracker.note_answer("a", entry(state="active"))
    bench.take(a=entry(state="creating"))
    bench.take()
    assert bench.of("u1") == {}


def test_a_reset_counts_at_once(bench: Bench) -> None:
    bench.take(a=entry(state="active", attempt=0))
    bench.tracker.note_answer("a", entry(state="creating", attempt=1))
    bench.take(a=entry(state="active", attempt=0), b=entry("u2", "serve"))
    assert bench.of("u1") == {"a": "creating"}
    bench.take(a=entry(state="active", attempt=1))
    assert bench.of("u1") == {"a": "active"}


def test_a_released_partition_is_gone_at_once_and_may_return(bench: Bench) -> None:
    bench.take(a=entry(state="active"))
    bench.tracker.note_answer("a", None)
    assert bench.of("u1") == {}
    bench.take(a=entry(state="active"), b=entry("u2", "serve"))
    assert bench.of("u1") == {}
    bench.take(a=entry(state="creating", attempt=1))
    assert bench.of("u1") == {"a": "creating"}


def test_an_answer_that_the_watch_never_confirms_ends(bench: Bench) -> None:
    bench.tracker.note_answer("a", entry(state="active"))
    bench.now = RECEIVED_S
    assert bench.of("u1") == {}


@pytest.mark.parametrize("answered", [entry(state="active"), None])
def test_until_an_answer_that_the_watch_never_confirms_ends_is_known(
    bench: Bench, answered: PartitionEntry | None
) -> None:
    """For example, because the entry was removed while the watch was disconnected: no list shows it."""
    if answered is None:
        bench.take(a=entry(state="active"))
    bench.tracker.note_answer("a", answered)
    bench.take(**({} if answered is not None else {"a": entry(state="active")}))
    bench.now = 20.0
    assert bench.tracker.again_s("u1") == RECEIVED_S - 20.0
    assert bench.tracker.again_s("u2") is None
    bench.now = RECEIVED_S
    bench.of("u1")
    assert bench.tracker.again_s("u1") is None


def test_an_answer_that_the_watch_has_confirmed_has_no_end(bench: Bench) -> None:
    bench.tracker.note_answer("a", entry(state="active"))
    bench.take(a=entry(state="active"))
    assert bench.tracker.again_s("u1") is None


def test_a_new_leader_has_no_cached_answers(bench: Bench) -> None:
    bench.tracker.note_answer("a", entry(state="active"))
    bench.tracker.forget_answers()
    assert bench.of("u1") == {}
