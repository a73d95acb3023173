"""The PyPI packages in Muster's image: the dependencies in pyproject.toml, except those that no pod needs.

``make lock`` writes them and what they depend on to requirements/image.txt, which both ways to build the image install.
"""

import re
import tomllib

# a person's login by exec plug-in or OIDC: the plug-in and its settings are on that person's machine
LEFT_OUT = ("kubernetes",)

_NAME = re.compile(r"[A-Za-z0-9._-]+")


def image_requirements(pyproject: str) -> list[str]:
    """From the text of pyproject.toml. Raises ValueError if a package to omit is not a dependency."""
    listed = {name_of(line): line for line in tomllib.loads(pyproject)["project"]["dependencies"]}
    if unknown := [name for name in LEFT_OUT if name not in listed]:
        raise ValueError(f"pyproject.toml: left out of the image, but no dependency: {', '.join(unknown)}")
    return [line for name, line in listed.items() if name not in LEFT_OUT]


def name_of(requirement: str) -> str:
    """A distribution's name in its normal form (packaging.python.org, "Names and normalization")."""
    match = _NAME.match(requirement)
    return re.sub(r"[-_.]+", "-", match[0]).lower() if match else ""
