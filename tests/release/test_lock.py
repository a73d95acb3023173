"""`make lock`, as the page for contributors has it, writes the files that are in requirements/."""

import re
from pathlib import Path

from release.lock import FOLDER
from tests import mirrors
from tests.docs.checkout import checkout
from tests.docs.command_list import commands_of_test
from tests.docs.command_runner import CommandRunner

BLOCK = re.compile(r"^(\S+==\S+.*(?:\n    --hash=\S+.*)*)", re.MULTILINE)


def packages(file: Path) -> dict[str, set[str]]:
    """Hashes, by name and version."""
    blocks = [block.split() for block in BLOCK.findall(file.read_text())]
    return {words[0]: {word for word in words if word.startswith("--hash=")} for words in blocks}


def test_the_files_are_what_it_writes(tmp_path: Path) -> None:
    place = checkout(tmp_path / "muster")
    index = re.search(r"^index-url = (.*)$", mirrors.pip_settings(""), re.MULTILINE)
    environ = {"UV_DEFAULT_INDEX": index[1]} if index else {}
    if certificates := mirrors.certificates():
        environ["SSL_CERT_FILE"] = str(certificates)
    CommandRunner(commands_of_test(__file__), {}, environ, place).type("make lock")
    for file in FOLDER.iterdir():
        ours, written = packages(file), packages(place / "requirements" / file.name)
        assert ours
        assert written.keys() == ours.keys(), f"{file.name}: run `make lock`"
        for name, hashes in ours.items():  # a version may get more files later
            assert hashes <= written[name], name
