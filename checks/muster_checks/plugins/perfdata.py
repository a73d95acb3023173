"""Performance data of Nagios plug-ins: ``'label'=value[UOM];[warn];[crit];[min];[max]``, separated by blanks.

Format: the plug-in guidelines of Nagios and of the Monitoring Plugins project. A label in single quotes may contain
blanks and equals signs, and doubles its own quotes; the value ``U`` means not measured; a threshold is a range.
Anything else is skipped: a plug-in's verdict does not depend on its performance data.
"""

import re

from muster_checks.base.vocabulary import Measurement

FIGURES_LIMIT = 64
LABEL_CHARACTERS, UNIT_CHARACTERS = 63, 32  # limits of what is published
_NUMBER = r"[-+]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?:[eE][-+]?[0-9]{1,3})?"
_LABEL = re.compile(r"\s*(?:'((?:[^']|'')*)'|([^\s'=][^\s=]*))=(\S*)")
_VALUE = re.compile(rf"({_NUMBER})([^0-9;\s]{{0,{UNIT_CHARACTERS}}})")
_RANGE = re.compile(rf"@?(?:(~|{_NUMBER})?:)?({_NUMBER})?")
_WORD = re.compile(r"\s*\S+")


def split_output(text: str) -> tuple[str, str]:
    """(first line of text, all performance data) of a plug-in's stdout.

    The data follow ``|`` in the first line, and the first ``|`` of the further lines up to the end.
    """
    first, _, rest = text.strip().partition("\n")
    message, _, figures = first.partition("|")
    _, _, more = rest.partition("|")
    return message.strip(), f"{figures} {more}".strip()


def read_figures(text: str, *, warned: bool = False) -> tuple[Measurement, ...]:
    """The performance data in order. ``warned``: use the warning threshold instead of the critical one."""
    figures: list[Measurement] = []
    at = 0
    while len(figures) < FIGURES_LIMIT:
        found = _LABEL.match(text, at)
        if found is None:
            word = _WORD.match(text, at)
            if word is None:
                break
            at = word.end()
            continue
        at = found.end()
        label = found[2] if found[1] is None else found[1].replace("''", "'")
        figure = _figure(label.strip()[:LABEL_CHARACTERS], found[3].split(";"), warned=warned)
        if figure is not None:
            figures.append(figure)
    return tuple(figures)


def _figure(label: str, fields: list[str], *, warned: bool) -> Measurement | None:
    value = _VALUE.fullmatch(fields[0])
    number = None if value is None else _finite(value[1])
    if value is None or number is None or not label:
        return None
    warn, crit = (_bound(fields[place], number) if len(fields) > place else None for place in (1, 2))
    first, second = (warn, crit) if warned else (crit, warn)
    return Measurement(label, number, value[2], second if first is None else first)


def _bound(text: str, value: float) -> float | None:
    """The end of a range that ``value`` may cross: ``10`` is 0 to 10, ``10:`` upwards, ``~:10`` up to 10, ``10:20``
    both; ``@`` means inside instead of outside."""
    found = _RANGE.fullmatch(text)
    if found is None:
        return None
    low = _finite(found[1]) if found[1] and found[1] != "~" else None
    high = _finite(found[2]) if found[2] else None
    if low is None or high is None:
        return high if low is None else low
    return low if abs(value - low) < abs(value - high) else high


def _finite(text: str) -> float | None:
    number = float(text)
    return number if abs(number) < 1e300 else None
