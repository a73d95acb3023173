"""What is remembered of pods is bounded."""

from hypothesis import given
from hypothesis import strategies as st
from tests.tainter.outcomes.pod_objects import NOW, pod_object, reduced

from muster_tainter.outcomes.store import CountedPods, NoStore


def test_the_reflector_keeps_no_pod() -> None:
    store = NoStore()
    store["ml/a"] = reduced(pod_object("a"))
    assert list(store) == []


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
