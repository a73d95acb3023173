"""A kubelet's folder of logs, written as the kubelet and a container runtime do."""

import gzip
from datetime import UTC, datetime
from pathlib import Path

POD = "ml_train-0_0b5e3f30-9d0e-4b4c-a0d3-0d1fbc3b6f6c"


def stamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")


def cri(text: str, at: float, *, stream: str = "stdout", tag: str = "F") -> str:
    return f"{stamp(at)} {stream} {tag} {text}\n"


class ContainerFiles:
    """One container's folder below ``root``; ``now``: time of the next line, a second later each time."""

    def __init__(self, root: Path, pod: str = POD, container: str = "main", now: float = 1_800_000_000.0) -> None:
        self.folder = root / pod / container
        self.folder.mkdir(parents=True, exist_ok=True)
        self.now = now
        self.restart = 0
        self.rotated: list[Path] = []

    @property
    def current(self) -> Path:
        return self.folder / f"{self.restart}.log"

    def print(self, *texts: str, stream: str = "stdout", tag: str = "F") -> None:
        with self.current.open("a") as file:
            for text in texts:
                file.write(cri(text, self.now, stream=stream, tag=tag))
                self.now += 1

    def rotate(self) -> None:
        """As kubelets do: compress earlier ones, rename the current file, have the runtime open another."""
        self.compress()
        name = datetime.fromtimestamp(self.now, UTC).strftime("%Y%m%d-%H%M%S")
        self.rotated.append(self.current.rename(f"{self.current}.{name}"))
        self.current.touch()
        self.now += 1

    def compress(self) -> None:
        for path in self.rotated:
            if path.exists():
                Path(f"{path}.gz").write_bytes(gzip.compress(path.read_bytes(), 1))
                path.unlink()

    def restart_container(self) -> None:
        self.restart += 1
        self.current.touch()
