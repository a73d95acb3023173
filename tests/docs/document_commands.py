"""Finds the commands in the documents: in shell blocks, and in inline code."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("muster", "helm", "kubectl", "curl", "make", "sha256sum", "ctr", "pip", "journalctl", "dmesg")
_INLINE = re.compile(r"`([^`\n]+)`")
_PLACE = re.compile(r"\$\([^)]*\)|\$\{?[A-Za-z_]+\}?|\$!")
_OPTIONAL = re.compile(r"\[[^\]\"{]*\]")  # not an array of JSON


@dataclass(frozen=True)
class Command:
    """words: the command, beginning with its program; where: file and line."""

    words: tuple[str, ...]
    where: str


def documents() -> list[Path]:
    return [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "helm" / "muster" / "README.md",
        *sorted((ROOT / "docs").glob("**/*.md")),
    ]


def commands(page: Path, root: Path = ROOT) -> Iterator[Command]:
    where = page.relative_to(root).as_posix()
    fenced, language = False, ""
    text = page.read_text()
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if line.lstrip().startswith("```"):
            fenced, language = not fenced, line.strip("` ") if not fenced else ""
            continue
        code = fenced and language in ("", "sh", "bash", "console", "shell")
        if not code and not (line.startswith("    ") and not line.lstrip().startswith(("- ", "* "))):
            for inline in _INLINE.findall(line) if not fenced else ():
                yield from _split(inline, f"{where}:{number}", inline=True)
            continue
        if fenced and (not code or (language == "console" and not line.startswith("$ "))):
            continue  # output of a command
        start, whole = number, line.strip()
        while whole.endswith("\\") and number < len(lines):
            whole = whole[:-1] + lines[number].strip()
            number += 1
        yield from _split(whole.removeprefix("$ "), f"{where}:{start}")


def _split(text: str, where: str, *, inline: bool = False) -> Iterator[Command]:
    if "…" in text or "..." in text or (inline and not re.match(rf"({'|'.join(PROGRAMS)}) \S", text)):
        return
    text = _PLACE.sub("node-1", _OPTIONAL.sub("", text))
    if re.search(r"\S {3,}\S", text.partition(" #")[0]):  # a table, or the output of a command
        return
    for piece in _pieces(text):
        words = tuple(piece)
        while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
            words = words[1:]
        if words and words[0] in PROGRAMS:
            yield Command(words, where)


def _pieces(text: str) -> Iterator[list[str]]:
    """Splits a line at pipes and separators. The target of a redirection is not an argument."""
    try:
        lexer = shlex.shlex(text, posix=True, punctuation_chars=";|&<>")
        lexer.whitespace_split = True
        words = list(lexer)
    except ValueError:  # an unbalanced quote: prose
        return
    piece: list[str] = []
    skip = False
    for word in words:
        if word and set(word) <= set(";|&"):
            yield piece
            piece, skip = [], False
        elif word and set(word) <= set("<>"):
            skip = True
        elif not skip:
            piece.append(word)
    yield piece
