"""What is remembered of pods is bounded."""

from hypothesis import given
from hypothesis import strategies as st
from tests.tainter.outcomes.pod_objects import NOW, pod_object, reduced

from muster_tainter.outcomes.store import CountedPods, PendingPods


def test_ended_pods_are_not_stored() -> None:
    store = PendingPods()
    store["ml/a"] = reduced(pod_object("a", phase="Pending"))
    assert list(store) == ["ml/a"]
    store["ml/a"] = reduced(pod_object("a", phase="Failed"))
    assert list(store) == []


def test_further_pods_that_do_not_start_are_counted() -> None:
    store = PendingPods(limit=2)
    for name in ("a", "b", "c", "a"):
        store[name] = reduced(pod_object(name, phase="Pending"))
    assert (list(store), store.dropped) == (["a", "b"], 1)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=200))
def test_no_pod_counts_twice(ends: list[tuple[int, int]]) -> None:
    counted = CountedPods(limit=10)
    at_of: dict[int, float] = {}
    taken: list[int] = []
    for pod, after in ends:
        at = at_of.setdefault(pod, NOW + after)  # a pod ends once
        if counted.add(f"uid-{pod}", at):
            taken.append(pod)
        assert len(counted) <= 10
    assert len(taken) == len(set(taken))
