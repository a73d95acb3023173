"""The error message for a name that does not exist, for command lines and HTTP alike."""

import json
from collections.abc import Iterable

from muster_checks.base.vocabulary import shorten

SUGGESTIONS = 3
LIST_CHECKS = 'run "muster checks" to list all checks'
LIST_PARAMETERS = 'run "muster checks" to list all checks and their parameters'
_NAME_LIMIT = 120  # bytes; names come from people and from the network


def explain_unknown(kind: str, name: str, known: Iterable[str], how_to_list: str = "") -> str:
    """``unknown check "chek": did you mean "check"? Run "muster checks" to list all checks``.

    kind:        what ``name`` was meant to be, such as ``check`` or ``parameter``
    known:       the valid names, for suggestions
    how_to_list: an instruction in lower case, such as LIST_CHECKS; empty: there is none
    """
    guesses = close_names(name, known)
    quoted = json.dumps(shorten(name, _NAME_LIMIT), ensure_ascii=False)
    question = f": did you mean {' or '.join(json.dumps(guess) for guess in guesses)}?" if guesses else ""
    if not how_to_list:
        return f"unknown {kind} {quoted}{question}"
    if question:
        return f"unknown {kind} {quoted}{question} {how_to_list[0].upper()}{how_to_list[1:]}"
    return f"unknown {kind} {quoted}: {how_to_list}"


def close_names(name: str, known: Iterable[str]) -> list[str]:
    """Those of ``known`` that ``name`` may be a misspelling of, the closest first."""
    from difflib import get_close_matches  # here, not above: only errors need it, and agents keep their memory small

    return get_close_matches(name[:_NAME_LIMIT].lower(), sorted(set(known)), n=SUGGESTIONS)
