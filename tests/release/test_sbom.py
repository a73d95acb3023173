"""The bill of materials of an image: complete, valid by CycloneDX's own schema, with hashes and licences."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from release import sbom

from muster_sandbox.image import oci
from muster_sandbox.image.layers import make_layer

STATUS = b"""Package: libc6
Version: 2.36-9+deb12u13
Architecture: amd64
Description: GNU C Library
 with a second line
SHA256: %s
Status: install ok installed

Package: zlib1g
Version: 1:1.2.13
Architecture: amd64
Status: install ok installed
""" % (b"a" * 64)
PACKAGES = "usr/local/lib/python3.11/dist-packages"


@pytest.fixture
def found(tmp_path: Path) -> dict[str, Any]:
    python = {
        f"{PACKAGES}/PyYAML-6.0.3.dist-info/METADATA": b"Name: PyYAML\nVersion: 6.0.3\nLicense: MIT\n\nText: none\n",
        f"{PACKAGES}/two-1.dist-info/METADATA": b"Name: two\nVersion: 1\nLicense-Expression: MIT OR Apache-2.0\n",
        f"{PACKAGES}/old-2.dist-info/METADATA": b"Name: old\nVersion: 2\nLicense: " + b"x" * 200
        + b"\nClassifier: License :: OSI Approved :: BSD License\n",
        f"{PACKAGES}/plain/METADATA": b"Name: none\nVersion: 1\n",
    }  # fmt: skip
    layers = tuple(oci.pack_layer(make_layer(files)) for files in ({"var/lib/dpkg/status": STATUS}, python))
    archive = tmp_path / "image.tar"
    with archive.open("wb") as file:
        oci.write_archive(oci.OciImage(("a:1",), layers, ("muster",), "1:1"), file)
    text = sbom.describe_image(archive, "1.2.3", {"pyyaml": "b" * 64})
    assert is_valid(text)
    document: dict[str, Any] = json.loads(text)
    return document


def is_valid(text: str) -> bool:
    from cyclonedx.validation.json import JsonStrictValidator  # a second to load, which each worker would take

    return JsonStrictValidator(sbom.VERSION).validate_str(text) is None


def test_every_package_of_both_kinds_is_there(found: dict[str, Any]) -> None:
    assert {each["purl"]: each["version"] for each in found["components"]} == {
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u13?arch=amd64&distro=debian-12": "2.36-9+deb12u13",
        "pkg:deb/debian/zlib1g@1:1.2.13?arch=amd64&distro=debian-12": "1:1.2.13",
        "pkg:pypi/pyyaml@6.0.3": "6.0.3",
        "pkg:pypi/two@1": "1",
        "pkg:pypi/old@2": "2",
    }
    assert found["metadata"]["component"]["version"] == "1.2.3"


def test_hashes_and_licences_are_given_where_they_are_known(found: dict[str, Any]) -> None:
    by_name = {each["name"]: each for each in found["components"]}
    hashes = {name: each["hashes"][0]["content"] for name, each in by_name.items() if "hashes" in each}
    assert hashes == {"libc6": "a" * 64, "PyYAML": "b" * 64}
    licences = {name: each["licenses"] for name, each in by_name.items() if "licenses" in each}
    assert licences == {
        "PyYAML": [{"license": {"id": "MIT"}}],
        "two": [{"expression": "MIT OR Apache-2.0"}],
        "old": [{"license": {"name": "BSD License"}}],
    }


def test_a_document_that_is_none_is_not_valid(found: dict[str, Any]) -> None:
    """The validator, which the other tests trust, does refuse something."""
    found["components"][0]["hashes"] = [{"alg": "SHA-256", "content": "short"}]
    assert not is_valid(json.dumps(found))


def test_names_of_this_machine_are_not_in_it(found: dict[str, Any], tmp_path: Path) -> None:
    assert str(tmp_path) not in json.dumps(found)
    assert os.uname().nodename not in json.dumps(found)
