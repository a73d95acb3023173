"""Which test types which of the documents' commands (command_list.yaml). A test asks for its own and types all."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml
from tests.docs.document_commands import ROOT


@cache
def command_list() -> dict[str, Any]:
    """typed: commands by the test file that types them; named: commands of which a sentence has the name alone."""
    return dict(yaml.safe_load((ROOT / "tests/docs/command_list.yaml").read_text()))


def commands_of_test(test: str) -> set[str]:
    """What the file ``test``, its ``__file__``, has to type."""
    return set(command_list()["typed"][Path(test).resolve().relative_to(ROOT).as_posix()])
