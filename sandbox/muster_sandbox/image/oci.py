"""An image as an OCI archive, which `ctr images import`, `podman load`, `skopeo` and `docker load` take.

The OCI image layout (github.com/opencontainers/image-spec, image-layout.md 1.0) in one tar, and beside it the
manifest.json of `docker save`, by which a docker older than version 25 goes. The same layers and settings give the same
bytes.
"""

import gzip
import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from muster_sandbox.image.layers import Layer

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
_INDEX = "application/vnd.oci.image.index.v1+json"
_LEVEL = 6  # gzip's own default: 9 takes three times as long for one hundredth less


@dataclass(frozen=True)
class Blob:
    """digest: sha256 of content, in hexadecimal; size in bytes."""

    content: bytes | Path
    digest: str
    size: int


@dataclass(frozen=True)
class PackedLayer:
    """blob: gzipped; diff_id: sha256 of the tar in it, in hexadecimal."""

    blob: Blob
    diff_id: str


@dataclass(frozen=True)
class OciImage:
    """names: whole references (host/name:tag). user: UID:GID."""

    names: tuple[str, ...]
    layers: tuple[PackedLayer, ...]
    entrypoint: tuple[str, ...]
    user: str
    environment: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


def pack_layer(layer: Layer, place: Path | None = None) -> PackedLayer:
    """``layer``, gzipped into the file ``place``; where none is given, in memory."""
    if isinstance(layer.content, bytes):
        content = gzip.compress(layer.content, _LEVEL, mtime=0)
        return PackedLayer(make_blob(content), layer.digest)
    if place is None:
        raise ValueError("a layer that is a file is gzipped into a file")
    with (
        layer.content.open("rb") as plain,
        place.open("wb") as file,
        # without a name and a time the bytes depend on the content only
        gzip.GzipFile(filename="", mode="wb", compresslevel=_LEVEL, fileobj=file, mtime=0) as out,
    ):
        shutil.copyfileobj(plain, out, 1 << 20)
    return PackedLayer(read_blob(place), layer.digest)


def make_blob(content: bytes) -> Blob:
    return Blob(content, hashlib.sha256(content).hexdigest(), len(content))


def read_blob(place: Path) -> Blob:
    with place.open("rb") as file:
        return Blob(place, hashlib.file_digest(file, "sha256").hexdigest(), place.stat().st_size)


def write_archive(image: OciImage, out: IO[bytes]) -> None:
    """``out`` may be a pipe."""
    config = make_blob(_json(_config(image)))
    manifest = make_blob(
        _json(
            {
                "schemaVersion": 2,
                "mediaType": _MANIFEST,
                "config": _descriptor(_CONFIG, config),
                "layers": [_descriptor(_LAYER, layer.blob) for layer in image.layers],
            }
        )
    )
    # containerd goes by its own annotation first: a reference of the specification may be a mere tag
    named = [
        _descriptor(_MANIFEST, manifest)
        | {"annotations": {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}}
        for name in image.names
    ]
    index = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": named}
    docker = {
        "Config": _path(config),
        "RepoTags": list(image.names),
        "Layers": [_path(layer.blob) for layer in image.layers],
    }
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.GNU_FORMAT) as archive:
        _add(archive, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add(archive, "index.json", _json(index))
        _add(archive, "manifest.json", _json([docker]))
        blobs = {blob.digest: blob for blob in (manifest, config, *(layer.blob for layer in image.layers))}
        for digest in sorted(blobs):
            _add(archive, _path(blobs[digest]), blobs[digest].content)


def _config(image: OciImage) -> dict[str, Any]:
    return {
        "created": "1970-01-01T00:00:00Z",  # the day of the build would change the digest
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "User": image.user,
            "Env": [f"{name}={value}" for name, value in image.environment.items()],
            "Entrypoint": list(image.entrypoint),
            "Labels": dict(image.labels),
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.diff_id}" for layer in image.layers]},
    }


def _descriptor(kind: str, blob: Blob) -> dict[str, Any]:
    return {"mediaType": kind, "digest": f"sha256:{blob.digest}", "size": blob.size}


def _path(blob: Blob) -> str:
    return f"blobs/sha256/{blob.digest}"


def _json(value: Mapping[str, Any] | Sequence[Any]) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _add(archive: tarfile.TarFile, name: str, content: bytes | Path) -> None:
    info = tarfile.TarInfo(name)
    if isinstance(content, Path):
        info.size = content.stat().st_size
        with content.open("rb") as file:
            archive.addfile(info, file)
    else:
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
