"""Which pods' logs are read, what matches, and what happens to those that cannot be read."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.checks.containerlog.pod_folder import POD, ContainerFiles

from muster_checks.containerlog.container_log import BACKLOG_BYTES
from muster_checks.containerlog.line_pattern import LinePattern
from muster_checks.containerlog.log_folder import FolderOpener
from muster_checks.containerlog.log_reader import TURN_BYTES, LogReader, Turn, pod_of
from muster_checks.containerlog.patterns import Patterns

ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
ORDINAL = "RuntimeError: CUDA error: invalid device ordinal"


def folder(pod: str, namespace: str = "ml") -> str:
    return f"{namespace}_{pod}_8b7c0c40-62bd-4a7e-9f5b-1de5ef37fb12"


@pytest.fixture
def make(tmp_path: Path) -> Iterator[object]:
    made: list[LogReader] = []

    def reader(*, files: int = 64, namespaces: tuple[str, ...] = (), since: float = 0.0) -> LogReader:
        own = (LinePattern.model_validate({"name": "Own", "pattern": "^broken$", "verdict": "FAIL"}),)
        patterns = Patterns(own, ("cuda", "poplar"))
        made.append(LogReader(FolderOpener(tmp_path), patterns, files=files, namespaces=namespaces, since=since))
        return made[-1]

    yield reader
    for each in made:
        each.close()


def found(turn: Turn) -> dict[tuple[str, str], int]:
    return {key: hit.count for key, hit in turn.hits.items()}


def reasons(turn: Turn) -> list[tuple[str, str]]:
    return [(notice.pod, notice.reason) for notice in turn.notices]


def test_lines_that_match_count_for_their_pod(tmp_path: Path, make: type[LogReader]) -> None:
    train, infer = ContainerFiles(tmp_path), ContainerFiles(tmp_path, folder("infer"))
    train.print("step 1", ECC, "step 2")
    infer.print(ECC, ORDINAL, ECC, "broken", "not broken", stream="stderr")
    turn = make().turn(None)
    assert found(turn) == {
        ("ml/train-0", "CudaUncorrectableEcc"): 1,
        ("ml/infer", "CudaUncorrectableEcc"): 2,
        ("ml/infer", "InvalidDeviceOrdinal"): 1,
        ("ml/infer", "Own"): 1,
    }
    assert turn.hits["ml/infer", "CudaUncorrectableEcc"].at == infer.now - 3
    assert turn.hits["ml/infer", "Own"].hit.verdict == "FAIL"
    assert turn.hits["ml/infer", "CudaUncorrectableEcc"].hit.verdict == "WARN"
    assert turn.at_end


def test_a_line_in_pieces_is_matched_as_a_whole(tmp_path: Path, make: type[LogReader]) -> None:
    files, reader = ContainerFiles(tmp_path), make()
    files.print("CUDA error: uncorrectable ECC ", tag="P")
    assert found(reader.turn(None)) == {}
    files.print("error encountered")
    assert found(reader.turn(None)) == {("ml/train-0", "CudaUncorrectableEcc"): 1}
    files.print("recoverable_runtime_error: [Recovery action: ", tag="P")
    files.rotate()
    files.print("FULL_RESET]")
    assert found(reader.turn(None)) == {("ml/train-0", "PoplarError"): 1}


def test_only_the_pods_of_interest_are_read(tmp_path: Path, make: type[LogReader]) -> None:
    for pod, namespace in (("gpu", "ml"), ("web", "ml"), ("gpu", "test-a"), ("gpu-2", "ml")):
        ContainerFiles(tmp_path, folder(pod, namespace)).print(ECC)
    ContainerFiles(tmp_path, "no-pod").print(ECC)
    ContainerFiles(tmp_path, "a_b_c_d").print(ECC)
    assert {pod for pod, _ in make().turn({"ml/gpu", "test-a/gpu"}).hits} == {"ml/gpu", "test-a/gpu"}
    assert {pod for pod, _ in make(namespaces=("test-?",)).turn(None).hits} == {"test-a/gpu"}
    assert {pod for pod, _ in make().turn(None).hits} == {"ml/gpu", "ml/web", "test-a/gpu", "ml/gpu-2"}
    assert found(make().turn(())) == {}


def test_a_new_pod_is_reported_once(tmp_path: Path, make: type[LogReader]) -> None:
    ContainerFiles(tmp_path)
    reader = make()
    assert reader.turn(()).new_pods
    assert not reader.turn(()).new_pods
    ContainerFiles(tmp_path, folder("next"))
    assert reader.turn(()).new_pods


def test_the_limit_of_files_leaves_out_the_last_containers_of_pods_with_many(
    tmp_path: Path, make: type[LogReader]
) -> None:
    for name in "abcdef":
        ContainerFiles(tmp_path, folder("hoard"), name).print(ECC)
    ContainerFiles(tmp_path, folder("other"), "main").print(ECC)
    turn = make(files=3).turn(None)
    assert found(turn) == {("ml/hoard", "CudaUncorrectableEcc"): 2, ("ml/other", "CudaUncorrectableEcc"): 1}
    assert reasons(turn) == [("", "PodLogsNotRead")]
    assert reasons(make(files=7).turn(None)) == []


def test_files_of_pods_that_are_gone_are_closed(tmp_path: Path, make: type[LogReader]) -> None:
    ContainerFiles(tmp_path).print("a")
    reader = make()
    reader.turn(None)
    links = [Path(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]  # noqa: PTH208 - names
    assert sum(os.path.realpath(link).startswith(str(tmp_path)) for link in links) == 1
    reader.turn(())
    assert not any(os.path.realpath(link).startswith(str(tmp_path)) for link in links)


def test_what_is_no_log_is_reported_and_others_are_read(tmp_path: Path, make: type[LogReader]) -> None:
    bad = ContainerFiles(tmp_path, folder("bad"))
    bad.current.symlink_to("/etc/hostname")
    (tmp_path / folder("worse")).symlink_to("/etc")
    os.mkfifo(ContainerFiles(tmp_path, folder("worst")).folder / "0.log")
    ContainerFiles(tmp_path).print(ECC)
    reader = make()
    turn = reader.turn(None)
    assert sorted(reasons(turn)) == [(f"ml/{name}", "PodLogRefused") for name in ("bad", "worse", "worst")]
    assert found(turn) == {("ml/train-0", "CudaUncorrectableEcc"): 1}
    assert reader.counts.refused == 3
    bad.current.unlink()
    bad.print(ECC)
    assert found(reader.turn(None)) == {("ml/bad", "CudaUncorrectableEcc"): 1}


def test_a_log_that_could_not_be_read_for_a_while_is_not_read_twice(tmp_path: Path, make: type[LogReader]) -> None:
    """A person may have cleared what its lines had opened."""
    files, reader = ContainerFiles(tmp_path), make()
    files.print(ECC, "step 2")
    assert found(reader.turn({"ml/train-0"})) == {("ml/train-0", "CudaUncorrectableEcc"): 1}
    assert found(reader.turn(())) == {}  # the kubelet no longer lists its pod
    files.print(ORDINAL)
    assert found(reader.turn({"ml/train-0"})) == {("ml/train-0", "InvalidDeviceOrdinal"): 1}
    away = files.folder.rename(tmp_path / "away")
    files.folder.symlink_to(away)
    assert reasons(reader.turn({"ml/train-0"})) == [("ml/train-0", "PodLogRefused")]
    files.folder.unlink()
    away.rename(files.folder)
    files.print(ECC)
    assert found(reader.turn({"ml/train-0"})) == {("ml/train-0", "CudaUncorrectableEcc"): 1}


def test_lines_of_another_format_are_counted(tmp_path: Path, make: type[LogReader]) -> None:
    files, reader = ContainerFiles(tmp_path), make()
    files.current.write_bytes(b'{"log": "CUDA error: invalid device ordinal"}\n\xff\xfe\n' + b"when stdout F broken\n")
    files.print(ORDINAL)
    assert found(reader.turn(None)) == {("ml/train-0", "InvalidDeviceOrdinal"): 1}
    assert (reader.counts.lines, reader.counts.malformed) == (4, 3)


def test_names_that_no_kubelet_gives_are_left_alone(tmp_path: Path, make: type[LogReader]) -> None:
    """Bytes that are no text would end what writes the agent's state."""
    for name, container in ((os.fsdecode(b"ml_x\xff_uid"), "main"), (folder("train-0"), os.fsdecode(b"\xff"))):
        (tmp_path / name / container).mkdir(parents=True)
        (tmp_path / name / container / "0.log").symlink_to("/etc/passwd")
    turn = make().turn(None)
    assert (turn.notices, turn.trouble) == ([], "")


def test_a_flood_in_one_log_delays_no_other(tmp_path: Path, make: type[LogReader]) -> None:
    flood, other, reader = ContainerFiles(tmp_path, folder("a")), ContainerFiles(tmp_path, folder("b")), make()
    flood.print(*["x" * 15_000] * (5 * TURN_BYTES // 30_000))
    other.print(ECC)
    turn = reader.turn(None)
    assert found(turn) == {("ml/b", "CudaUncorrectableEcc"): 1}
    assert not turn.at_end
    turns = 1
    while not turn.at_end:
        turn = reader.turn(None)
        turns += 1
    assert turns == 3


def test_what_a_flood_makes_impossible_to_read_is_reported(tmp_path: Path, make: type[LogReader]) -> None:
    files, reader = ContainerFiles(tmp_path), make()
    files.print("a")
    reader.turn(None)
    with files.current.open("r+") as file:
        file.truncate(4 * BACKLOG_BYTES)
        file.seek(0, os.SEEK_END)
        file.write("\n")
    files.print(ECC)
    turns = [reader.turn(None) for _ in range(3)]
    assert [reasons(turn) for turn in turns] == [[("ml/train-0", "PodLogSkipped")], [], []]
    assert reader.counts.skipped_bytes > 2 * BACKLOG_BYTES
    assert sum(len(turn.hits) for turn in turns) == 1


def test_a_pod_may_be_deleted_while_it_is_read(tmp_path: Path, make: type[LogReader]) -> None:
    files, reader = ContainerFiles(tmp_path), make()
    files.print("a")
    reader.turn(None)
    files.print(ECC)
    files.current.unlink()
    assert found(reader.turn(None)) == {("ml/train-0", "CudaUncorrectableEcc"): 1}
    files.folder.rmdir()
    turn = reader.turn(None)
    assert (reasons(turn), turn.trouble) == ([], "")


def test_without_the_folder_there_is_an_error(tmp_path: Path) -> None:
    reader = LogReader(FolderOpener(tmp_path / "none"), Patterns((), ("cuda",)), files=1, namespaces=(), since=0.0)
    with pytest.raises(FileNotFoundError):
        reader.turn(None)


@pytest.mark.parametrize(
    ("name", "pod"),
    [
        (POD, "ml/train-0"),
        ("kube-system_etcd-a_0123456789abcdef", "kube-system/etcd-a"),
        ("_b_c", ""),
        ("uid", ""),
        ("ns_a\udcff_uid", ""),
        ("ns_a\n_uid", ""),
        ("ns_<b>_uid", ""),
    ],
)
def test_the_pod_of_a_folder(name: str, pod: str) -> None:
    assert pod_of(name) == pod
