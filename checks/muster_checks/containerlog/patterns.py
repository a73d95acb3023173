"""Matches lines of programs against own patterns and those that are part of Muster, all in one pass (RE2)."""

from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files

import msgspec
import yaml

from muster_checks.base.vocabulary import FaultClass, Verdict
from muster_checks.containerlog.line_pattern import LinePattern
from muster_checks.dmesg.catalogue.match import Matcher
from muster_checks.graphcore.tools import poplar

POPLAR = "poplar"


class PatternHit(msgspec.Struct, frozen=True):
    """What a line means. prefix: explanation in front of the line; empty: the line is clear."""

    reason: str
    verdict: Verdict
    fault_class: FaultClass
    prefix: str = ""


class Patterns:
    """``known``: sets of known_patterns.yaml. They only warn."""

    def __init__(self, own: Sequence[LinePattern], known: Iterable[str] = ()) -> None:
        known = tuple(known)
        self._poplar = POPLAR in known
        shipped = [pattern for name in known if name != POPLAR for pattern in known_patterns()[name]]
        self._patterns = (*own, *shipped)
        self._matcher = Matcher([pattern.pattern for pattern in self._patterns])

    def interesting(self, raw: bytes) -> bool:
        return bool(self._patterns) and bool(self._matcher.which(raw))

    def may_match(self, raw: bytes) -> bool:
        """Whether :meth:`hits` may find something in the text of ``raw``; False is never wrong for valid UTF-8."""
        return (self._poplar and poplar.MARK in raw) or self.interesting(raw)

    def hits(self, text: str) -> list[PatternHit]:
        raw = text.encode("utf-8", "replace")
        found = [self._patterns[index] for index in self._matcher.which(raw)] if self._patterns else []
        hits = {one.name: PatternHit(one.name, one.judged, one.fault_class) for one in reversed(found)}
        if self._poplar:
            for error in poplar.parse(raw):
                found_error = poplar.judge(error, "host")
                hit = PatternHit(found_error.reason, Verdict.WARN, found_error.fault_class, found_error.message)
                hits.setdefault(found_error.reason, hit)
        return list(reversed(hits.values()))


@cache
def known_patterns() -> dict[str, tuple[LinePattern, ...]]:
    text = files("muster_checks.containerlog").joinpath("known_patterns.yaml").read_text("utf-8")
    return {
        name: tuple(LinePattern.model_validate({k: v for k, v in row.items() if k != "source"}) for row in rows)
        for name, rows in yaml.safe_load(text).items()
    }
