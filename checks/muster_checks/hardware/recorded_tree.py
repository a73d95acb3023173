"""Unpacks a recorded /sys, a tar file (plain, or compressed with gzip, bzip2 or xz), into a temporary folder.

The file is not trusted: its unpacked size is bounded, nothing is written outside the folder, and links are created
last, so that nothing is written through one. (The standard library's own filter was vulnerable before Python 3.11.13,
CVE-2025-4517, and does not exist before 3.11.4.)
"""

import bz2
import io
import lzma
import os
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from muster_checks.base.bounded_read import Unreadable

UNPACKED_LIMIT_BYTES = 64 << 20
ENTRIES_LIMIT = 20_000  # /sys/class/net and infiniband of a node with ten ports have 9,000
FILE_LIMIT_BYTES = 1 << 20
DEPTH_LIMIT = 40
MEMORY_LIMIT_BYTES = 160 << 20  # limit for xz, whose largest preset needs 65 MB


def is_tar(text: bytes) -> bool:
    """Whether ``text`` begins as a tar file, plain or compressed. Reads the first header only."""
    try:
        return _has_tar_header(_decompress(text, 512)[0])
    except (lzma.LZMAError, zlib.error, OSError):
        return False


@contextmanager
def lay_out_tree(text: bytes) -> Iterator[Path | None]:
    """The folder that contains ``sys`` (the root of a node's files), or the unpacked folder; None if it is not a tar.

    Raises Unreadable for a tar that is cut short, is too large, or contains paths outside its folder.
    """
    unpacked = _unpack(text)
    if unpacked is None:
        yield None
        return
    with TemporaryDirectory(prefix="muster-sample-") as name:
        root = Path(name).resolve()
        try:
            with tarfile.open(fileobj=io.BytesIO(unpacked), mode="r:") as archive:
                _lay_out(archive, root)
        except (tarfile.TarError, OSError, ValueError, RecursionError, OverflowError) as error:
            raise Unreadable(f"not a complete tar file: {error}") from None
        yield _node_root(root)


def _unpack(text: bytes) -> bytes | None:
    """The plain tar in ``text``; None if it is not a tar."""
    most = UNPACKED_LIMIT_BYTES + 1
    try:
        plain, whole = _decompress(text, most)
    except (lzma.LZMAError, zlib.error, OSError) as error:
        raise Unreadable(f"damaged compressed file: {error}") from None
    if not _has_tar_header(plain):
        return None
    if len(plain) >= most:
        raise Unreadable(f"unpacks to more than {UNPACKED_LIMIT_BYTES >> 20} MiB")
    if not whole:
        raise Unreadable("compressed file cut short")
    return plain


def _decompress(text: bytes, most: int) -> tuple[bytes, bool]:
    """The first ``most`` bytes of the content, and whether the compressed file is complete. Raises OSError,
    LZMAError and zlib.error."""
    if text.startswith(b"\xfd7zXZ\0"):
        xz = lzma.LZMADecompressor(memlimit=MEMORY_LIMIT_BYTES)
        return xz.decompress(text, most), xz.eof
    if text.startswith(b"\x1f\x8b"):
        gz = zlib.decompressobj(wbits=31)
        return gz.decompress(text, most), gz.eof
    if text.startswith(b"BZh"):
        bz = bz2.BZ2Decompressor()
        return bz.decompress(text, most), bz.eof
    return text, True


def _has_tar_header(plain: bytes) -> bool:
    return plain[257:262] == b"ustar"


def _lay_out(archive: tarfile.TarFile, root: Path) -> None:
    links: list[tuple[Path, str]] = []
    room = UNPACKED_LIMIT_BYTES  # a sparse file takes more space here than in the tar
    for number, member in enumerate(archive):
        if number >= ENTRIES_LIMIT:
            raise Unreadable(f"more than {ENTRIES_LIMIT} entries")
        place = _inside(root, member.name)
        if member.isdir():
            place.mkdir(parents=True, exist_ok=True)
        elif member.issym():
            links.append((place, member.linkname))
        elif member.isreg() and (file := archive.extractfile(member)) is not None:
            # files of /sys report a size of 4096 bytes; tar pads the missing bytes with zeros
            content = file.read(FILE_LIMIT_BYTES).rstrip(b"\0")
            room -= len(content)
            if room < 0:
                raise Unreadable(f"unpacks to more than {UNPACKED_LIMIT_BYTES >> 20} MiB")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
    for place, target in links:
        if _leads_out(root, place.parent) or os.path.lexists(place):
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)
    # resolved through all other links: a link out of the folder would be read from this machine
    for place, _ in links:
        if _leads_out(root, place):
            place.unlink(missing_ok=True)


def _leads_out(root: Path, place: Path) -> bool:
    return not Path(os.path.realpath(place)).is_relative_to(root)


def _inside(root: Path, name: str) -> Path:
    parts = [part for part in PurePosixPath(name).parts if part not in ("/", ".")]
    if ".." in parts or len(parts) > DEPTH_LIMIT:
        raise Unreadable(f"{name[:80]!r}: outside its folder")
    return root.joinpath(*parts)


def _node_root(root: Path) -> Path:
    place = root
    for _ in range(4):  # the tar may contain up to three parent folders
        if (place / "sys").is_dir():
            return place
        inside = [child for child in place.iterdir() if child.is_dir() and not child.is_symlink()]
        if len(inside) != 1:
            break
        place = inside[0]
    return root
