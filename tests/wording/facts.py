"""The facts in a message: names, reasons, codes, numbers with their units, quoted values; whatever its words."""

import re


def missing_facts(message: str, *facts: str) -> list[str]:
    """Those of ``facts`` that ``message`` lacks. "worker-1" is not in "worker-12", nor "5 GB" in "5.5 GB"."""
    return [fact for fact in facts if not re.search(rf"(?<!\w)(?<!\d\.){re.escape(fact)}(?!\w|\.\d)", message)]
