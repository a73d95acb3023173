"""Loads the catalogue: the shipped rows, and a user's file that changes them."""

from pathlib import Path

from muster_checks.dmesg.catalogue.row_file import apply_user_file, load_shipped_rows
from muster_checks.dmesg.catalogue.types import Catalogue, read_sxids, read_xids


def load_catalogue(user_file: Path | None = None) -> Catalogue:
    """The shipped rows, changed by ``user_file`` if given: a YAML file of rows (row_file.py), a log monitor of
    node-problem-detector (npd_rules.py), or a folder of both.

    Raises :class:`CatalogueError` for a user's file that cannot be read or is invalid.
    """
    catalogue = Catalogue(read_xids(), read_sxids(), load_shipped_rows())
    if user_file is None:
        return catalogue
    from muster_checks.dmesg.catalogue.npd_rules import apply_json  # needed only with a user's file

    if not user_file.is_dir():
        return (apply_json if user_file.suffix == ".json" else apply_user_file)(catalogue, user_file)
    # YAML first: it changes shipped rows, while rules of node-problem-detector are added to them
    for path in sorted(user_file.glob("[!.]*"), key=lambda path: (path.suffix == ".json", path.name)):
        if path.suffix == ".json":
            catalogue = apply_json(catalogue, path, others_too=True)
        elif path.suffix in (".yaml", ".yml"):
            catalogue = apply_user_file(catalogue, path)
    return catalogue
