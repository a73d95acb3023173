"""What a message has to say, whatever its words: numbers with their units, names, codes."""

import re


def missing_facts(message: str, *facts: str) -> list[str]:
    """Those of ``facts`` that ``message`` lacks. "3" is not in "131", nor "5 GB" in "5.5 GB"."""
    return [fact for fact in facts if not re.search(rf"(?<![\w.]){re.escape(fact)}(?!\w|\.\d)", message)]
