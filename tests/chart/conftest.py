"""One helm for all tests of the chart, checked before it runs."""

from pathlib import Path

import pytest
from tests.chart.helm_render import PROGRAM, SHA256, Helm, checked


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    found = checked()
    assert found == SHA256, f"{PROGRAM} is not the helm that was pinned: sha256 {found}"
    home: Path = tmp_path_factory.mktemp("helm")
    return Helm(home)
