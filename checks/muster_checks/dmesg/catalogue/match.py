"""Finds which of many patterns match a line, in one pass over its bytes.

All patterns are RE2 (https://github.com/google/re2/wiki/Syntax), whose run time is linear in the text for every
pattern; users supply some of them. One RE2 set contains them all, so an ordinary kernel line needs one scan. A single
pattern is compiled only after it has matched and its groups are needed.
"""

import re
from collections.abc import Callable, Sequence
from functools import cache

import re2

MULTI_LINE = "(?m)"  # a record may contain several lines: ^ and $ match at line ends
SET_BYTES = 6 << 20  # memory limit of RE2 for the set's program and its states
SET_INSTRUCTIONS = 26_000  # all patterns together; compiling a set that exceeds SET_BYTES would abort the process
_UNANCHORED = re2._re2.RE2.Anchor.UNANCHORED
_NOWHERE = (-1, -1)
# Matches a pattern that may refer to the beginning or end of the whole text: by \A or \z, or by ^ and $ without
# MULTI_LINE. False positives are possible (an escaped backslash before an A), false negatives are not.
_OF_WHOLE_TEXT = re.compile(r"\\[Az]|\(\?[a-zA-Z]*-[a-zA-Z]*m")


def _options() -> re2.Options:
    options = re2.Options()
    options.log_errors = False  # errors are raised; RE2 would also print them to stderr
    return options


class Pattern:
    """One compiled pattern. Raises ValueError with RE2's message for one that is not RE2.

    ``names``: its named groups.
    """

    def __init__(self, pattern: str) -> None:
        try:
            # The engine itself, not re2.compile(): that would cache every pattern ever tried, and creating its match
            # objects takes three times as long as the match.
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
        """The named groups that took part in the first match; None without a match."""
        spans = self._match(_UNANCHORED, text, start, len(text))
        return None if spans[0] == _NOWHERE else self._named(text, spans)

    def last_group(self, text: bytes) -> bytes | None:
        """The text of the last group of the first match (the whole match if there is no group); None without a
        match."""
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
    """RE2 returns its error messages as bytes."""
    message = error.args[0] if error.args else error
    text = message.decode("utf-8", "replace") if isinstance(message, bytes) else str(message)
    return text.replace(MULTI_LINE, "", 1)  # not part of the user's pattern


@cache
def compile_fixed(pattern: str) -> Pattern:
    """A pattern of this package's own, compiled at first use and kept."""
    return Pattern(pattern)


class Matcher:
    """``patterns`` by index. They have been checked (row_file.py); an invalid one raises ValueError.

    also_interesting: further patterns, which make a text interesting and never fire.
    """

    def __init__(self, patterns: Sequence[str], also_interesting: Sequence[str] = ()) -> None:
        options = _options()
        options.max_mem = SET_BYTES
        options.never_capture = True
        self._patterns = tuple(patterns)
        self._compiled: dict[int, Pattern] = {}
        self._of_whole_text = any(_OF_WHOLE_TEXT.search(pattern) for pattern in self._patterns)
        self._set = re2.Set.SearchSet(options)
        try:
            for pattern in (*self._patterns, *also_interesting):
                self._set.Add(MULTI_LINE + pattern)
        except re2.error as error:
            raise ValueError(_words(error)) from None
        if self._patterns:
            self._set.Compile()
        # again the engine itself: Set.Match only checks types, which takes half of the time of a match
        self._match: Callable[[bytes], list[int]] = self._set._set.Match if self._patterns else lambda _text: []

    def interesting(self, raw: bytes) -> bool:
        r"""Whether ``which`` may find something in the decoded text of ``raw`` or of one of its lines.

        ``raw`` may be many messages joined by newlines: a pattern that matches one of them also matches the joined
        text, unless it refers to the beginning or end of the whole text.

        False is never wrong. Text with escapes (``\x0a``) or non-ASCII bytes may change when it is decoded, so it
        counts as interesting. If a pattern refers to the beginning or end of the text, so does any text with a newline.
        """
        return bool(self._match(raw)) or not raw.isascii() or b"\\x" in raw or (self._of_whole_text and b"\n" in raw)

    def which(self, text: bytes) -> list[int]:
        """Indices of the patterns that match ``text`` (UTF-8), ascending."""
        return sorted(index for index in self._match(text) if index < len(self._patterns))

    def groups(self, index: int, text: bytes) -> dict[str, str]:
        """The named groups of pattern ``index`` in ``text``; empty if it does not match."""
        compiled = self._compiled.get(index)
        if compiled is None:
            compiled = self._compiled[index] = Pattern(self._patterns[index])
        return compiled.search(text) or {}
