"""What tools print on their bad days: every parser is fed all of it, and none may raise or call anything FAIL.

``@pytest.mark.parametrize("text", TEXTS)`` on what a parser takes; ``@given(any_json())``, ``@given(st.binary())`` for
what nobody thought of; ``mangled(sample)`` gives a real sample cut short, ``replaced`` one with other values in it.
"""

import json
from collections.abc import Iterator

from hypothesis import strategies as st

from muster_checks.base.bounded_read import Unreadable
from muster_checks.base.execution import CannotTell, NotHere
from muster_checks.base.vocabulary import Finding, Verdict

HUGE = 100 << 20
TEXTS: tuple[bytes, ...] = (
    b"",
    b"\n\n",
    b"\x00\xff\xfe" * 100,
    b"{",
    b"[]",
    b"{}",
    b"null",
    b'"text"',
    b"[" * 100_000,
    b'{"a": {"b": [1, 2',
    b"Segmentation fault (core dumped)\n",
    b"bash: dcgmi: command not found\n",
    b"Datei oder Verzeichnis nicht gefunden: 1.234,5 Gbit/s\n",
    b"<?xml version='1.0'?><nvidia_smi_log><gpu",
    b"N/A\n[Unknown Error]\n[Not Supported]\n",
    b"1e999 nan inf -1 0x 99999999999999999999999999\n",
)
NO_VALUES = ("N/A", "[N/A]", "[Unknown Error]", "[Not Supported]", "", None, True, [], {}, -1, 1e308, "nan")
"""What stands where a number should."""


def huge(beginning: bytes = b"", filler: bytes = b"x") -> bytes:
    """100 MB that begin like the real thing. Made within a test: a parameter would stay until the run ends."""
    return beginning + filler * (HUGE // len(filler))


def mangled(sample: bytes) -> Iterator[bytes]:
    """A real sample, cut short at many places, and doubled."""
    step = max(1, len(sample) // 60)
    yield from (sample[:end] for end in range(0, len(sample), step))
    yield sample + sample
    yield sample.replace(b"\n", b"\r\n")


def replaced(document: object) -> Iterator[object]:
    """A JSON document with each value in turn replaced by each of NO_VALUES, each key in turn left out."""
    text = json.dumps(document)
    for path in list(_paths(document)):
        for value in NO_VALUES:
            changed = json.loads(text)
            _set(changed, path, value)
            yield changed


def any_json() -> st.SearchStrategy[object]:
    return st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
        lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=12), children, max_size=4),
        max_leaves=12,
    )


def verdicts_of(judged: object) -> set[Verdict]:
    """The verdicts of a list of findings."""
    assert isinstance(judged, (list, tuple))
    assert all(isinstance(finding, Finding) for finding in judged)
    return {finding.verdict for finding in judged}


UNMEASURED = (Unreadable, CannotTell, NotHere)
"""What a parser or judge may raise for input that it cannot use."""


def _paths(value: object, at: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    if isinstance(value, dict):
        for key, child in value.items():
            yield (*at, key)
            yield from _paths(child, (*at, key))
    elif isinstance(value, list):
        for place, child in enumerate(value):
            yield (*at, place)
            yield from _paths(child, (*at, place))


def _set(document: object, path: tuple[object, ...], value: object) -> None:
    *way, last = path
    for step in way:
        document = document[step]  # type: ignore[index] # a path of this very document
    document[last] = value  # type: ignore[index] # as above
