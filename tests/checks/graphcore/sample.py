"""What Graphcore's tools print; samples/ORIGIN.md says after which form each file was written."""

from pathlib import Path

FOLDER = Path(__file__).parent / "samples"


def sample(name: str) -> bytes:
    return (FOLDER / name).read_bytes()


def samples() -> list[Path]:
    return sorted(path for path in FOLDER.iterdir() if path.name != "ORIGIN.md")
