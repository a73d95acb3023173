"""Recorded output of Graphcore's tools; samples/ORIGIN.md says where each file comes from."""

from pathlib import Path

FOLDER = Path(__file__).parent / "samples"


def sample(name: str) -> bytes:
    return (FOLDER / name).read_bytes()


def samples() -> list[Path]:
    return sorted(path for path in FOLDER.iterdir() if path.name != "ORIGIN.md")
