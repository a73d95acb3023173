"""Samples come from strangers: what is packed is laid out, nothing leaves the folder, and nothing grows without end."""

import bz2
import gzip
import io
import lzma
import os
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checks.bad_input import TEXTS, mangled

from muster_checks.base.bounded_read import Unreadable
from muster_checks.hardware.recorded_tree import ENTRIES_LIMIT, FILE_LIMIT_BYTES, UNPACKED_LIMIT_BYTES, lay_out_tree


def _tar(files: Mapping[str, bytes | str], links: Mapping[str, str] | None = None) -> bytes:
    """``files``: by name, text or bytes; ``links``: name -> target."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, target in (links or {}).items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            archive.addfile(link)
        for name, content in files.items():
            raw = content.encode() if isinstance(content, str) else content
            file = tarfile.TarInfo(name)
            file.size = len(raw)
            archive.addfile(file, io.BytesIO(raw))
    return out.getvalue()


SMALL = _tar({"sys/class/net/eth0/mtu": "1500\n"})


def _read(text: bytes, name: str) -> str | None:
    with lay_out_tree(text) as root:
        assert root is not None
        path = root / name
        return path.read_text() if path.is_file() else None


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_a_tar_of_any_compression_is_laid_out(pack: "type[bytes]") -> None:
    assert _read(pack(SMALL), "sys/class/net/eth0/mtu") == "1500\n"


@pytest.mark.parametrize("folder", ["./", "/", "node-7/", "home/me/node-7/"])
def test_the_root_is_where_sys_is(folder: str) -> None:
    assert _read(_tar({f"{folder}sys/a": "1", f"{folder}proc/b": "2"}), "sys/a") == "1"


def test_without_sys_the_root_is_what_was_packed() -> None:
    assert _read(_tar({"infiniband/mlx5_0/fw_ver": "28"}), "infiniband/mlx5_0/fw_ver") == "28"
    assert _read(_tar({"one/a": "1", "two/a": "2"}), "two/a") == "2"


def test_the_folder_is_gone_afterwards() -> None:
    with lay_out_tree(SMALL) as root:
        assert root is not None
    assert not root.exists()


def test_zeros_that_fill_up_a_page_are_no_content() -> None:
    assert _read(_tar({"sys/rate": b"400 Gb/sec\n" + b"\0" * 4085}), "sys/rate") == "400 Gb/sec\n"


def test_a_file_is_read_to_its_limit() -> None:
    assert len(_read(_tar({"sys/a": b"x" * (FILE_LIMIT_BYTES + 5)}), "sys/a") or "") == FILE_LIMIT_BYTES


def test_links_within_the_tree_work_as_in_sysfs() -> None:
    text = _tar(
        {"sys/devices/pci0000:00/net/eth0/mtu": "9000"}, {"sys/class/net/eth0": "../../devices/pci0000:00/net/eth0"}
    )
    assert _read(text, "sys/class/net/eth0/mtu") == "9000"


@pytest.mark.parametrize(
    "links",
    [
        {"sys/out": "/etc"},
        {"sys/out": "../../../../../../../../../../etc"},
        {"sys/step": "/etc", "sys/out": "step"},
        {"sys/out": "step", "sys/step": "/etc"},
        # inside, as long as d/q is no link
        {"p": "d/q/../../..", "d/q": ".", "sys/out": "../p/etc"},
        {"sys/out": "out"},
    ],
)
def test_a_link_that_leads_out_shows_nothing_of_this_machine(links: Mapping[str, str]) -> None:
    with lay_out_tree(_tar({"sys/a": "1", "d/e/f": "2"}, links)) as root:
        assert root is not None
        assert not (root / "sys/out/hostname").exists()
        for folder, _, _ in os.walk(root, followlinks=False):
            assert Path(os.path.realpath(folder)).is_relative_to(root.parent)


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    text = _tar(
        {"sys/a": "1", "way/file": "written"},
        {"sys/way": str(tmp_path), "sys/way/link": "x", "sys/way/deep/link": "x", "way": str(tmp_path)},
    )
    with lay_out_tree(text) as root:
        assert root is not None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../escaped", "sys/../../escaped", "a/" * 50 + "deep"])
def test_a_name_that_reaches_out_is_refused(name: str) -> None:
    with pytest.raises(Unreadable), lay_out_tree(_tar({name: "x"})):
        pass


def test_devices_pipes_and_hard_links_are_left_out() -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, kind in (("sys/dev", tarfile.CHRTYPE), ("sys/pipe", tarfile.FIFOTYPE), ("sys/hard", tarfile.LNKTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/hostname"
            archive.addfile(member)
        folder = tarfile.TarInfo("sys/folder")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
    with lay_out_tree(out.getvalue()) as root:
        assert root is not None
        assert [path.name for path in (root / "sys").iterdir()] == ["folder"]


def test_a_file_in_the_place_of_a_folder_is_refused() -> None:
    with pytest.raises(Unreadable), lay_out_tree(_tar({"sys/a": "1", "sys/a/b": "2"})):
        pass


def test_too_many_entries_are_refused() -> None:
    empty = tarfile.TarInfo("sys")
    empty.type = tarfile.DIRTYPE
    text = empty.tobuf() * (ENTRIES_LIMIT + 1) + b"\0" * 1024
    with pytest.raises(Unreadable, match="entries"), lay_out_tree(text):
        pass


@pytest.mark.parametrize("pack", [lzma.compress, gzip.compress, bz2.compress])
def test_what_unpacks_to_too_much_is_refused_before_it_is_unpacked(pack: "type[bytes]") -> None:
    head = tarfile.TarInfo("sys/big")
    head.size = UNPACKED_LIMIT_BYTES
    with (
        pytest.raises(Unreadable, match="more than 64 MiB"),
        lay_out_tree(pack(head.tobuf() + b"\0" * UNPACKED_LIMIT_BYTES)),
    ):
        pass


def test_files_with_holes_are_counted_by_what_they_take() -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for number in range(UNPACKED_LIMIT_BYTES // FILE_LIMIT_BYTES + 1):
            member = tarfile.TarInfo(f"sys/{number}")
            # one real byte at the end of a hole of a mebibyte
            member.pax_headers = {
                "GNU.sparse.major": "0",
                "GNU.sparse.minor": "1",
                "GNU.sparse.map": f"{FILE_LIMIT_BYTES - 1},1",
                "GNU.sparse.size": str(FILE_LIMIT_BYTES),
                "GNU.sparse.name": f"sys/{number}",
            }
            member.size = 1
            archive.addfile(member, io.BytesIO(b"x"))
    with pytest.raises(Unreadable, match="more than 64 MiB"), lay_out_tree(out.getvalue()):
        pass


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_no_tar_is_none(text: bytes) -> None:
    with lay_out_tree(text) as root:
        assert root is None


def test_compressed_text_that_is_no_tar_is_none() -> None:
    with lay_out_tree(lzma.compress(b"nvidia-smi says")) as root:
        assert root is None


@pytest.mark.parametrize("pack", [lzma.compress, gzip.compress, bz2.compress])
def test_a_damaged_file_is_unreadable(pack: "type[bytes]") -> None:
    raw = bytearray(pack(SMALL))
    raw[len(raw) // 2] ^= 0xFF
    with pytest.raises(Unreadable), lay_out_tree(bytes(raw)):
        pass


@pytest.mark.parametrize("text", [SMALL, lzma.compress(SMALL), zlib.compress(SMALL, wbits=31)])
def test_a_file_cut_short_is_a_tree_none_or_unreadable(text: bytes) -> None:
    for part in mangled(text):
        assert _outcome(part) in ("tree", "none", "unreadable")


@given(st.binary(max_size=600))
@settings(max_examples=60, deadline=None)
def test_any_bytes_in_a_tar_are_a_tree_none_or_unreadable(noise: bytes) -> None:
    at = len(noise) % 512
    assert _outcome(SMALL[:at] + noise + SMALL[at + len(noise) :]) in ("tree", "none", "unreadable")


def _outcome(text: bytes) -> str:
    try:
        with lay_out_tree(text) as root:
            return "none" if root is None else "tree"
    except Unreadable:
        return "unreadable"
