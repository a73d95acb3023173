"""The sizes of the images, as docs/install.md states them."""

import re
from typing import NamedTuple

from tests.docs.document_commands import ROOT


class ImageSizes(NamedTuple):
    """MB (1e6 bytes), unpacked. by_engine: built by docker or podman. archive: of `make package`. table: by content."""

    by_engine: int
    archive: int
    table: tuple[int, ...]


def image_sizes() -> ImageSizes:
    """Raises AssertionError if the page does not state them in the expected words."""
    page = (ROOT / "docs/install.md").read_text()
    by_engine = re.search(r"creates an image of (\d+) MB", page)
    archive = re.search(r"\[`make package`\]\(\S+\) has (\d+) MB", page)
    assert by_engine
    assert archive
    table = tuple(map(int, re.findall(r"^\|.*\| (\d+) \|$", page, re.MULTILINE)))
    return ImageSizes(int(by_engine[1]), int(archive[1]), table)
