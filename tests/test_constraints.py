"""The pinned packages can be installed where the README says that Muster runs."""

from importlib.metadata import distributions

from packaging.specifiers import SpecifierSet

DEBIAN_12 = "3.11.2"  # packages.debian.org/bookworm/python3


def test_every_installed_package_supports_the_python_of_debian_12() -> None:
    unsupported = {
        (distribution.name, distribution.version)
        for distribution in distributions()
        if not SpecifierSet(distribution.metadata.get("Requires-Python") or "").contains(DEBIAN_12)
    }
    assert unsupported == set()
