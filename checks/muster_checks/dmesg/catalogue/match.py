"""Finds which of many patterns stand in a line, in one pass over its bytes.

All patterns are RE2 (https://github.com/google/re2/wiki/Syntax), whose time is linear in the text whatever the
pattern: some come from users. One RE2 set holds them all, so an ordinary kernel line costs one scan; a single pattern
is compiled only once it has been found and its groups are asked for.
"""

import re
from collections.abc import Callable, Sequence
from functools import cache

import re2

MULTI_LINE = "(?m)"  # a record may hold several lines: ^ and $ stand at line ends
SET_BYTES = 4 << 20  # what RE2 may use for the set's program and its states
SET_INSTRUCTIONS = 20_000  # all patterns together; compiling a set that outgrows SET_BYTES would end the process
_UNANCHORED = re2._re2.RE2.Anchor.UNANCHORED
_NOWHERE = (-1, -1)
# A pattern that may ask for the beginning or the end of its whole text: by name, or with MULTI_LINE switched off for ^
# and $. It may be found where there is none (an escaped backslash before an A), never the other way round.
_OF_WHOLE_TEXT = re.compile(r"\\[Az]|\(\?[a-zA-Z]*-[a-zA-Z]*m")


def _options() -> re2.Options:
    options = re2.Options()
    options.log_errors = False  # an error is raised and told; RE2 would print it to stderr as well
    return options


class Pattern:
    """One compiled pattern. Raises ValueError with RE2's own words for one that is not RE2.

    ``names``: its named groups.
    """

    def __init__(self, pattern: str) -> None:
        try:
            # The engine itself and not re2.compile(): its cache would keep every pattern ever tried, and its match
            # objects take three times as long as the match.
            engine = re2._re2.RE2((MULTI_LINE + pattern).encode(), _options())
        except UnicodeEncodeError as error:
            raise ValueError(_words(error)) from None
        if not engine.ok():
            raise ValueError(_words(re2.error(engine.error())))
        self._groups = tuple((name.decode(), index) for name, index in engine.NamedCapturingGroups())
        self.names = tuple(name for name, _ in self._groups)
        self.instructions: int = engine.ProgramSize()
        self._match = engine.Match

    def search(self, text: bytes, start: int = 0) -> dict[str, str] | None:
        """The named groups of the first match, those that took part; None without a match."""
        spans = self._match(_UNANCHORED, text, start, len(text))
        return None if spans[0] == _NOWHERE else self._named(text, spans)

    def last_group(self, text: bytes) -> bytes | None:
        """What the last group of the first match holds (the whole match where there is no group); None without one."""
        spans = self._match(_UNANCHORED, text, 0, len(text))
        if spans[0] == _NOWHERE:
            return None
        start, end = spans[-1]
        return text[max(0, start) : max(0, end)]

    def find_all(self, text: bytes, limit: int) -> list[dict[str, str]]:
        """The named groups of the first ``limit`` matches, none of them empty."""
        found: list[dict[str, str]] = []
        start, end = 0, len(text)
        while len(found) < limit and start < end:
            spans = self._match(_UNANCHORED, text, start, end)
            if spans[0] == _NOWHERE:
                break
            found.append(self._named(text, spans))
            start = max(spans[0][1], start + 1)
        return found

    def _named(self, text: bytes, spans: list[tuple[int, int]]) -> dict[str, str]:
        return {
            name: text[spans[index][0] : spans[index][1]].decode("utf-8", "replace")
            for name, index in self._groups
            if spans[index] != _NOWHERE
        }


def _words(error: Exception) -> str:
    """RE2 words its errors as bytes."""
    told = error.args[0] if error.args else error
    text = told.decode("utf-8", "replace") if isinstance(told, bytes) else str(told)
    return text.replace(MULTI_LINE, "", 1)  # it was not the user who wrote that


@cache
def compile_fixed(pattern: str) -> Pattern:
    """A pattern of this package's own, compiled at first use and kept."""
    return Pattern(pattern)


class Matcher:
    """``patterns`` by index. They are known to be RE2 (row_file.py); a bad one raises ValueError."""

    def __init__(self, patterns: Sequence[str]) -> None:
        options = _options()
        options.max_mem = SET_BYTES
        options.never_capture = True
        self._patterns = tuple(patterns)
        self._compiled: dict[int, Pattern] = {}
        self._of_whole_text = any(_OF_WHOLE_TEXT.search(pattern) for pattern in self._patterns)
        self._set = re2.Set.SearchSet(options)
        try:
            for pattern in self._patterns:
                self._set.Add(MULTI_LINE + pattern)
        except re2.error as error:
            raise ValueError(_words(error)) from None
        if self._patterns:
            self._set.Compile()
        # again the engine itself: Set.Match only looks at the type of what it hands on, which costs half of a match
        self._match: Callable[[bytes], list[int]] = self._set._set.Match if self._patterns else lambda _text: []

    def interesting(self, raw: bytes) -> bool:
        r"""May ``which`` find something once ``raw`` has been made into text, or one of the lines in it has?

        So many messages can be looked at in one scan, joined by newlines: what stands in one of them stands in all of
        them together, because only the beginning and the end of the text are different things there.

        Never False wrongly: text with escapes (``\x0a``) or beyond ASCII may look different then, so it counts as
        interesting; so does all that has a newline where a pattern asks for the beginning or the end of its text.
        """
        return bool(self._match(raw)) or not raw.isascii() or b"\\x" in raw or (self._of_whole_text and b"\n" in raw)

    def which(self, text: bytes) -> list[int]:
        """Indices of the patterns that stand in ``text`` (UTF-8), ascending."""
        return sorted(self._match(text))

    def groups(self, index: int, text: bytes) -> dict[str, str]:
        """The named groups of pattern ``index`` in ``text``; empty when it does not stand there."""
        compiled = self._compiled.get(index)
        if compiled is None:
            compiled = self._compiled[index] = Pattern(self._patterns[index])
        return compiled.search(text) or {}
