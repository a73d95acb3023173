"""What all tests share: none of them hangs on chance, nor on where this process was started."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

from muster_testbed import oci, product

# The same examples in every run, and no deadline: neither a die nor a loaded machine decides whether a change lands.
# `pytest --hypothesis-profile=search` looks for new ones.
settings.load_profile("ci")
settings.register_profile("search", settings.get_profile("ci"), derandomize=False)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a shell starts background jobs so, and children would inherit it: what is ended by Ctrl-C here would never end
    signal.signal(signal.SIGINT, signal.default_int_handler)

for name in ("KUBERNETES_SERVICE_HOST", "KUBECONFIG"):
    # in a pod, or where a person works: what is started here must not find a cluster that is somebody's
    os.environ.pop(name, None)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Muster's, of this checkout."""
    return product.build_wheel(tmp_path_factory.mktemp("wheel"), print)


@pytest.fixture(scope="session")
def image_archive(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Muster's image, under the name that the chart has for it."""
    archive = tmp_path_factory.mktemp("image") / "muster.tar"
    with archive.open("wb") as file:
        oci.write_archive(product.image(print, wheel), file)
    return archive
