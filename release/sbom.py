"""The software bill of materials of an image archive: its Debian and Python packages, as CycloneDX (cyclonedx.org) 1.6.

It is read from the archive itself: dpkg's status, and the metadata that each Python package has beside its files.
"""

import hashlib
import io
import json
import tarfile
import uuid
from collections.abc import Iterable, Iterator, Mapping
from email.message import Message
from email.parser import BytesParser
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import License
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL
from packaging.utils import canonicalize_name

VERSION = SchemaVersion.V1_6
MUSTER = "passmuster"
_STATUS = "var/lib/dpkg/status"
_METADATA = ".dist-info/METADATA"
_OSI = "License :: OSI Approved :: "
_NAME_LIMIT = 100  # characters: what is longer is the text of a licence, in place of its name


def describe_image(archive: Path, version: str, hashes: Mapping[str, str]) -> str:
    """JSON. archive: of :mod:`muster_sandbox.image.oci`. hashes: the sha256 of Python packages, by normal name."""
    components = sorted(_components(archive, hashes), key=lambda each: str(each.purl))
    digest = sha256(archive)
    image = Component(
        name="muster",
        version=version,
        type=ComponentType.CONTAINER,
        bom_ref="muster",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
    )
    bom = Bom(
        components=components,
        serial_number=uuid.uuid5(uuid.NAMESPACE_OID, digest),
        metadata=BomMetaData(component=image),
    )
    bom.register_dependency(image, components)
    return make_outputter(bom, OutputFormat.JSON, VERSION).output_as_string(indent=2) + "\n"


def sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _components(archive: Path, hashes: Mapping[str, str]) -> Iterator[Component]:
    with tarfile.open(archive) as outer:
        (image,) = json.loads(_read(outer, "manifest.json"))
        for layer in image["Layers"]:
            with tarfile.open(fileobj=io.BytesIO(_read(outer, layer))) as inner:
                for each in inner:
                    if each.name == _STATUS:
                        yield from _of_debian(_read(inner, each.name))
                    elif each.name.endswith(_METADATA):
                        yield _of_python(BytesParser().parsebytes(_read(inner, each.name), headersonly=True), hashes)


def _read(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    if file is None:
        raise ValueError(f"{name}: expected a file")
    return file.read()


def _of_debian(status: bytes) -> Iterator[Component]:
    for stanza in status.decode().strip().split("\n\n"):
        fields = BytesParser().parsebytes(stanza.encode())
        name, version, architecture = (str(fields[key]) for key in ("Package", "Version", "Architecture"))
        url = PackageURL("deb", "debian", name, version, {"arch": architecture, "distro": "debian-12"})
        yield _component(name, version, url, fields.get("SHA256"), ())


def _of_python(metadata: Message, hashes: Mapping[str, str]) -> Component:
    name, version = str(metadata["Name"]), str(metadata["Version"])
    normal = canonicalize_name(name)
    url = PackageURL("pypi", None, normal, version)
    return _component(name, version, url, hashes.get(normal), _licences(metadata))


def _component(name: str, version: str, url: PackageURL, digest: str | None, licences: Iterable[License]) -> Component:
    return Component(
        name=name,
        version=version,
        purl=url,
        bom_ref=str(url),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)] if digest else (),
        licenses=licences,
    )


def _licences(metadata: Message) -> list[License]:
    """As the package itself declares them: an SPDX expression, or else names."""
    make = LicenseFactory().make_from_string
    if expression := metadata.get("License-Expression"):
        return [make(str(expression))]
    classifiers = [str(each).removeprefix(_OSI) for each in metadata.get_all("Classifier", ()) if _OSI in str(each)]
    named = str(metadata.get("License", "")).strip()
    if named and len(named) <= _NAME_LIMIT and "\n" not in named:
        return [make(named)]
    return [make(each) for each in classifiers]
