"""Which test types which of the documents' commands: stages.yaml. A test asks for its own, and types all of them."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml
from tests.docs.blocks import ROOT


@cache
def stages() -> dict[str, Any]:
    """typed: commands by the test file that types them; named: commands of which a sentence has the name alone."""
    return dict(yaml.safe_load((ROOT / "tests/docs/stages.yaml").read_text()))


def allotted(test: str) -> set[str]:
    """What the file ``test``, its ``__file__``, has to type."""
    return set(stages()["typed"][Path(test).resolve().relative_to(ROOT).as_posix()])
