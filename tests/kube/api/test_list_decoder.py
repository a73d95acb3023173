import json
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_kube.api.errors import BadAnswer
from muster_kube.api.list_decoder import PageReader
from muster_kube.api.objects import Metadata, Node


class Nested(msgspec.Struct):
    """Holds whole objects inside, as workloads with templates do."""

    metadata: Metadata
    inner: list[dict[str, object]] = []


def read(kind, raw: bytes, cuts: list[int]):
    reader = PageReader(kind, "/p", worth_cutting=1)
    edges = [0, *sorted(c % (len(raw) + 1) for c in cuts), len(raw)]
    for start, end in pairwise(edges):
        reader.feed(raw[start:end])
    return reader.finish()


def compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


texts = st.sampled_from(["a", '},{"metadata":{"name":"x"}}', '"items":[', "\\", "ü"])
inners = st.lists(
    st.one_of(
        st.builds(lambda t: {"metadata": {"name": t}}, texts),
        st.builds(lambda t: {"apiVersion": t}, texts),
    ),
    max_size=4,
)
items = st.lists(st.tuples(texts, inners, st.booleans()), max_size=6)


@given(items, st.lists(st.integers(0, 5000), max_size=12), st.booleans())
def test_however_the_bytes_arrive_the_items_are_those_of_one_decode(items, cuts, metadata_last):
    objects = [
        {"metadata": {"name": 7 if broken else name, "resourceVersion": str(n)}, "inner": inner}
        for n, (name, inner, broken) in enumerate(items)
    ]
    head = {"kind": "L", "metadata": {"resourceVersion": "9", "continue": "c"}}
    raw = compact({"items": objects, **head} if metadata_last else {**head, "items": objects})
    page = read(Nested, raw, cuts)
    assert [i.metadata.resource_version for i in page.items] == [str(n) for n, i in enumerate(items) if not i[2]]
    assert [i.inner for i in page.items] == [i[1] for i in items if not i[2]]
    assert len(page.undecodable) == sum(i[2] for i in items)
    assert (page.resource_version, page.continue_) == ("9", "c")


def nested(levels: int) -> bytes:
    """The JSON of an object that API servers store and Python's decoders do not read."""
    return b'{"metadata":{"name":"deep"},"inner":[' + b'{"a":' * levels + b"1" + b"}" * levels + b"]}"


@pytest.mark.parametrize("levels", [1_000, 5_000, 9_900])
@pytest.mark.parametrize("cuts", [[], [60, 500]])
def test_an_item_that_is_nested_too_deeply_hides_no_other(levels: int, cuts: list[int]):
    others = [compact({"metadata": {"name": name}, "inner": []}) for name in ("a", "b")]
    raw = b'{"metadata":{"resourceVersion":"9"},"items":[' + b",".join([others[0], nested(levels), others[1]]) + b"]}"
    page = read(Nested, raw, cuts)
    assert [item.metadata.name for item in page.items] == ["a", "b"]
    assert [item.key for item in page.undecodable] == ["deep"]
    assert page.resource_version == "9"


def test_a_large_list_leaves_no_more_than_a_chunk_in_the_buffer():
    item = {"metadata": {"name": "n", "labels": {"x": "y" * 10_000}}}
    raw = compact({"kind": "NodeList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": [item] * 500})
    reader = PageReader(Node, "/p")
    most = 0
    for start in range(0, len(raw), 65536):
        reader.feed(raw[start : start + 65536])
        most = max(most, len(reader._buffer))
    assert len(reader.finish().items) == 500
    assert most < 400_000


def test_an_item_that_does_not_fit_is_set_aside_with_its_key():
    bad = {"metadata": {"name": "b", "namespace": "ns", "labels": 7}}
    page = read(Node, compact({"items": [{"metadata": {"name": "a"}}, bad, {"metadata": {"name": "c"}}]}), [])
    assert [i.metadata.name for i in page.items] == ["a", "c"]
    (item,) = page.undecodable
    assert item.key == "ns/b"
    assert json.loads(item.raw) == bad
    assert "$.metadata.labels" in item.error


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"items":[{"metadata":{"name":"a"}},{"metadata":{', b"<html>"])
def test_what_is_no_whole_list_is_refused(raw):
    with pytest.raises(BadAnswer, match="not a list"):
        read(Node, raw, [5, 40])


def test_an_empty_list_may_say_null():
    assert read(Node, b'{"metadata":{"resourceVersion":"5"},"items":null}', []).items == []
