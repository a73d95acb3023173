"""The facts in a message: names, reasons, numbers and quoted values, whatever the words between them."""

import re


def absent_facts(text: str, *facts: str) -> list[str]:
    """Those of ``facts`` that ``text`` does not hold, each as words of its own: "worker-1" is not in "worker-12"."""
    return [fact for fact in facts if not re.search(rf"(?<!\w){re.escape(fact)}(?!\w)", text)]
