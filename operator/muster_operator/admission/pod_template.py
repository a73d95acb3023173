"""Errors of the workers' pod template. The CRD stores it unchecked, and the API server would reject each pod only
later, when the user no longer sees the error.

Only certain and cheap checks: the API server may still reject the pods, which the job's status then shows.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from muster_operator.admission.errors import SpecError, unexpected_value
from muster_operator.admission.numbers import mapping
from muster_operator.resources.config import KUBECTL_AT, MOUNTED_AT
from muster_operator.resources.template import DEFAULT_CONTAINER

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
LABEL_WORDS = "at most 63 characters a-z, 0-9 and -, beginning and ending with a letter or digit"
_CONTAINERS = "spec.workers.template.spec.containers"
_SPEC = "spec.workers.template.spec"


def template_errors(template: object) -> Iterator[SpecError]:
    """``template``: spec.workers.template, as received."""
    path = "spec.workers.template"
    if not isinstance(template, dict):
        yield unexpected_value(path, template, "a pod template with spec.containers")
        return
    metadata = template.get("metadata")
    if isinstance(metadata, dict):
        for key in ("labels", "annotations"):
            yield from _texts(metadata.get(key), f"{path}.metadata.{key}")
    elif metadata is not None:
        yield unexpected_value(f"{path}.metadata", metadata, "a mapping with labels and annotations")
    spec = template.get("spec")
    if not isinstance(spec, dict):
        yield SpecError(_CONTAINERS, "missing: expected at least one container")
        return
    yield from _containers(spec)
    yield from _texts(spec.get("nodeSelector"), f"{_SPEC}.nodeSelector")


def launcher_errors(template: object) -> Iterator[SpecError]:
    """Errors of a job with a launcher: the launcher is the main container with two more mounts."""
    whole = mapping(template)
    main = mapping(mapping(whole.get("metadata")).get("annotations")).get(DEFAULT_CONTAINER)
    containers = list(_each(mapping(whole.get("spec")).get("containers"), _CONTAINERS))
    for at, container in [each for each in containers if each[1].get("name") == main][:1] or containers[:1]:
        for where, mount in _each(container.get("volumeMounts"), f"{at}.volumeMounts"):
            place = mount.get("mountPath")
            if isinstance(place, str) and place.rstrip("/") in (MOUNTED_AT, KUBECTL_AT):
                yield unexpected_value(
                    f"{where}.mountPath", place, "another path: the launcher mounts its own volume there"
                )


def environment_errors(found: object, path: str) -> Iterator[SpecError]:
    """``found``: a list of EnvVar."""
    for at, variable in _each(found, path):
        name, value = variable.get("name"), variable.get("value")
        if not isinstance(name, str) or not name or "=" in name:
            yield unexpected_value(f"{at}.name", name, "the name of the variable")
        if value is not None and not isinstance(value, str):
            yield unexpected_value(f"{at}.value", value, "a string: put it in quotes")
        elif value and variable.get("valueFrom") is not None:
            yield SpecError(f"{at}.valueFrom", "expected either value or valueFrom")
    yield from _not_mappings(found, path)


def words_errors(found: object, path: str) -> Iterator[SpecError]:
    """``found``: a command or its arguments."""
    if found is None:
        return
    if not isinstance(found, list):
        yield unexpected_value(path, found, "a list of strings")
        return
    for index, word in enumerate(found):
        if not isinstance(word, str):
            yield unexpected_value(f"{path}[{index}]", word, "a string: put it in quotes")


def _containers(spec: Mapping[str, Any]) -> Iterator[SpecError]:
    containers = spec.get("containers")
    if containers is None or containers == []:
        yield SpecError(_CONTAINERS, "missing: expected at least one container")
    volumes = spec.get("volumes")
    known: set[str] = set()
    for at, volume in _each(volumes, f"{_SPEC}.volumes"):
        yield from _named(volume, at, known)
    yield from _not_mappings(volumes, f"{_SPEC}.volumes")
    names: set[str] = set()
    for key in ("initContainers", "containers"):
        path = f"{_SPEC}.{key}"
        for at, container in _each(spec.get(key), path):
            yield from _named(container, at, names)
            yield from _container(container, at, known)
        yield from _not_mappings(spec.get(key), path)


def _container(container: Mapping[str, Any], at: str, volumes: set[str]) -> Iterator[SpecError]:
    image = container.get("image")
    if not isinstance(image, str) or not image or image != image.strip():
        yield unexpected_value(f"{at}.image", image, "an image name without surrounding spaces")
    for key in ("command", "args"):
        yield from words_errors(container.get(key), f"{at}.{key}")
    yield from environment_errors(container.get("env"), f"{at}.env")
    mounts, places = container.get("volumeMounts"), set[str]()
    for where, mount in _each(mounts, f"{at}.volumeMounts"):
        name, place = mount.get("name"), mount.get("mountPath")
        if not isinstance(name, str) or name not in volumes:
            yield unexpected_value(f"{where}.name", name, f"the name of a volume in {_SPEC}.volumes")
        if not isinstance(place, str) or not place or ":" in place:
            yield unexpected_value(f"{where}.mountPath", place, "a path without :")
        elif place in places:
            yield unexpected_value(f"{where}.mountPath", place, "another path: a volume is already mounted there")
        else:
            places.add(place)
    yield from _not_mappings(mounts, f"{at}.volumeMounts")


def _named(found: Mapping[str, Any], at: str, known: set[str]) -> Iterator[SpecError]:
    """Adds the name to ``known``."""
    name = found.get("name")
    if not isinstance(name, str) or not LABEL.fullmatch(name):
        yield unexpected_value(f"{at}.name", name, LABEL_WORDS)
    elif name in known:
        yield unexpected_value(f"{at}.name", name, "a unique name: another entry has this one")
    else:
        known.add(name)


def _each(found: object, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The mappings of a list, each with its path."""
    if isinstance(found, list):
        for index, each in enumerate(found):
            if isinstance(each, dict):
                yield f"{path}[{index}]", each


def _not_mappings(found: object, path: str) -> Iterator[SpecError]:
    """The entries that :func:`_each` skips."""
    if found is not None and not isinstance(found, list):
        yield unexpected_value(path, found, "a list of mappings")
    for index, each in enumerate(found) if isinstance(found, list) else ():
        if not isinstance(each, dict):
            yield unexpected_value(f"{path}[{index}]", each, "a mapping")


def _texts(found: object, path: str) -> Iterator[SpecError]:
    if found is None:
        return
    if not isinstance(found, dict):
        yield unexpected_value(path, found, "a mapping of strings to strings")
        return
    for key, value in found.items():
        if not isinstance(value, str):
            yield unexpected_value(f"{path}[{key[:63]}]", value, "a string: put it in quotes")
