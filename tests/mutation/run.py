"""`make mutation`: changes the code of pure modules, one place at a time, and says which changes no unit test notices.

Mutants come from cosmic-ray. Its own runner starts a process for each mutant, and mutmut expects another layout of the
sources; here pytest collects the tests of an area once, and a fork for each mutant gets the changed code of the
function and runs the tests that call it. So only the bodies of functions are changed, not constants or declarations.
"""

import argparse
import gc
import json
import os
import random
import select
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "build" / "mutation"))  # last: its requirements must not replace ours

from cosmic_ray.ast import ast_nodes, get_ast  # type: ignore[import-not-found]  # noqa: E402
from cosmic_ray.mutating import mutate_code  # type: ignore[import-not-found]  # noqa: E402
from cosmic_ray.plugins import get_operator  # type: ignore[import-not-found]  # noqa: E402


class Area(NamedTuple):
    """modules: files below ``code``; tests: files and folders below ``tests``."""

    code: str
    modules: str
    tests_in: str
    tests: str

    def files(self) -> list[Path]:
        found = [file for name in self.modules.split() for file in sorted((ROOT / self.code).glob(f"{name}.py"))]
        return [file for file in found if file.name != "__init__.py"]

    def test_paths(self) -> list[str]:
        return [str(ROOT / self.tests_in / name) for name in self.tests.split()]


AREAS = {
    "faults": Area(
        "tainter/muster_tainter/faults",
        "desired_state lifecycle occurrence taint_drift policy_match record_trust manual_clear",
        "tests/tainter",
        "faults/test_desired_state.py faults/test_lifecycle.py faults/test_advance_faults.py faults/test_taint_drift.py"
        " faults/test_record_trust.py faults/test_corner_cases.py faults/test_forged_occurrence.py"
        " faults/test_known_failure_modes.py faults/test_fault_machine.py faults/test_manual_clear.py"
        " faults/test_occurrence.py faults/test_policy_match.py verification/test_fault_closing.py",
    ),
    "budgets": Area("tainter/muster_tainter/budgets", "allocator pool_usage", "tests/tainter", "budgets"),
    "plan": Area("operator/muster_operator/plan", "* hardware/*", "tests/operator", "plan job test_messages.py"),
    "proxy": Area(
        "operator/muster_operator/proxy",
        "controllers/capacity partitions/* tracker/decisions quarantine/*",
        "tests/operator/proxy",
        "test_capacity.py test_tracker.py test_parks.py test_park_resize.py test_outcomes.py test_partition_intents.py"
        " test_crash_recovery.py test_faulty_vipu.py test_decisions.py test_quarantine.py",
    ),
}


# One mutant for each way to be wrong: what cosmic-ray has besides (== to "is", + to <<) repeats these.
OPERATORS = [
    "AddNot",
    "ExceptionReplacer",
    "NumberReplacer",
    "ReplaceAndWithOr",
    "ReplaceOrWithAnd",
    "ReplaceBreakWithContinue",
    "ReplaceContinueWithBreak",
    "ReplaceFalseWithTrue",
    "ReplaceTrueWithFalse",
    "ReplaceUnaryOperator_Delete_Not",
    "ZeroIterationForLoop",
    *(f"ReplaceBinaryOperator_{pair}" for pair in ("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "BitOr_BitAnd")),
    *(f"ReplaceComparisonOperator_{pair}" for pair in ("Eq_NotEq", "NotEq_Eq", "Is_IsNot", "IsNot_Is")),
    *(f"ReplaceComparisonOperator_{pair}" for pair in ("Lt_LtE", "Lt_GtE", "LtE_Lt", "LtE_Gt")),
    *(f"ReplaceComparisonOperator_{pair}" for pair in ("Gt_GtE", "Gt_LtE", "GtE_Gt", "GtE_Lt")),
]

LIMIT_S = 60.0  # the tests of an area take less without a mutant; a mutant that hangs is noticed


class Place(NamedTuple):
    """Where a function is; with the code of decorators, as in ``co_firstlineno``."""

    file: str
    name: str
    line: int


class Mutant(NamedTuple):
    """A function's changed code. line: the first that differs; change: the line after it."""

    place: Place
    code: CodeType
    line: int
    change: str


def _functions(code: CodeType) -> Iterator[CodeType]:
    """Those of a module and of its classes, not those within functions."""
    for const in code.co_consts:
        if isinstance(const, CodeType):
            if const.co_flags & 0x1:  # CO_OPTIMIZED: a function
                yield const
            else:
                yield from _functions(const)


def _place(code: CodeType) -> Place:
    return Place(code.co_filename, code.co_qualname, code.co_firstlineno)


def sample_mutants(file: Path, number: int, chance: random.Random) -> list[Mutant]:
    """number: at most so many, chosen at random."""
    source = file.read_text()
    tree = get_ast(source)
    nodes = list(ast_nodes(tree))
    spots = []
    for name in OPERATORS:
        operator = get_operator(f"core/{name}")()
        count = sum(len(list(operator.mutation_positions(node))) for node in nodes)
        spots += [(operator, occurrence) for occurrence in range(count)]
    chance.shuffle(spots)
    originals = {_place(code): code for code in _functions(compile(source, file, "exec"))}
    mutants: list[Mutant] = []
    for operator, occurrence in spots:
        try:
            mutated = mutate_code(source, operator, occurrence)
            functions = list(_functions(compile(mutated, file, "exec")))
        except (SyntaxError, AttributeError):  # AttributeError: cosmic-ray cannot replace an exception "module.Name"
            continue
        for code in functions:
            original = originals.get(_place(code))
            if code != original:
                if original is not None and code.co_posonlyargcount != original.co_posonlyargcount:
                    break  # "*," of a declaration became "/,"
                pairs = enumerate(zip(source.splitlines(), mutated.splitlines(), strict=False), 1)
                line, text = next((at, new.strip()) for at, (old, new) in pairs if old != new)
                mutants.append(Mutant(_place(code), code, line, text))
                break
        if len(mutants) == number:
            break
    return mutants


class MutationRun:
    """A plugin of pytest: runs the collected tests again for each mutant."""

    def __init__(self, files: list[Path], number: int, seed: int) -> None:
        self._files, self._number, self._seed = files, number, seed
        self._caches: list[Any] = []

    def pytest_configure(self) -> None:
        """A failed example need not be made smaller."""
        from hypothesis import Phase, settings  # not before pytest, which looks into each module as it is loaded

        settings.register_profile("mutation", settings.get_profile("ci"), phases=(Phase.explicit, Phase.generate))
        settings.load_profile("mutation")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        terminal: Any = session.config.pluginmanager.get_plugin("terminalreporter")
        callers, order = self._measure(session)
        functions = _loaded_functions(self._files)
        self._caches = _loaded_caches()
        noticed = total = 0
        for file in self._files:
            survivors = []
            mutants = sample_mutants(file, self._number, random.Random(f"{self._seed} {file.name}"))
            for mutant in mutants:
                items = sorted(callers[mutant.place], key=order.__getitem__)
                killer = self._killer(session, items, mutant, functions[mutant.place])
                terminal.write("." if killer is not None else "s", flush=True)
                if killer is None:
                    survivors.append(mutant)
                elif killer in order:
                    order[killer] -= 1000.0  # what has noticed one notices more: it runs first
            noticed, total = noticed + len(mutants) - len(survivors), total + len(mutants)
            name = file.relative_to(ROOT)
            terminal.write_line(f"\n{name}: {len(mutants) - len(survivors)} of {len(mutants)} noticed")
            for mutant in sorted(survivors, key=lambda mutant: mutant.line):
                terminal.write_line(f"  {name}:{mutant.line}: {mutant.change}")
        terminal.write_line(f"all: {noticed} of {total}")
        return True

    def _measure(self, session: pytest.Session) -> tuple[dict[Place, list[int]], dict[int, float]]:
        """The tests that call each function, and the seconds that each test takes. The tests must pass."""
        names = {str(file) for file in self._files}
        callers: dict[Place, list[int]] = defaultdict(list)
        order = {}
        for at, item in enumerate(session.items):
            called: set[CodeType] = set()

            def notice(frame: FrameType, _event: str, _: object, called: set[CodeType] = called) -> None:
                if frame.f_code.co_filename in names:  # called at the begin of each function, and of no C function
                    called.add(frame.f_code)

            begun = time.monotonic()
            sys.settrace(notice)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            sys.settrace(None)
            if session.testsfailed:
                raise session.Failed(f"fails without a mutant: {item.nodeid}")
            order[at] = time.monotonic() - begun
            for code in called:
                callers[_place(code)].append(at)
        return callers, order

    def _killer(
        self, session: pytest.Session, items: list[int], mutant: Mutant, functions: list[FunctionType]
    ) -> int | None:
        """The number of the test that failed; -1: none has ended in time; None: the mutant survives."""
        read, write = os.pipe()
        child = os.fork()
        if not child:
            terminal: Any = session.config.pluginmanager.get_plugin("terminalreporter")
            os.dup2(os.open(os.devnull, os.O_WRONLY), terminal._tw._file.fileno())
            for function in functions:
                function.__code__ = mutant.code
            for cache in self._caches:  # what they hold comes from the unchanged code
                cache.cache_clear()
            for at in items:
                session.config.hook.pytest_runtest_protocol(item=session.items[at], nextitem=None)
                if session.testsfailed:
                    os.write(write, json.dumps(at).encode())
                    break
            os._exit(0)
        os.close(write)
        ended = os.pidfd_open(child)
        in_time = select.select([ended], [], [], LIMIT_S)[0]
        if not in_time:
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        answer = os.read(read, 99)
        os.close(read)
        os.close(ended)
        return json.loads(answer) if answer else -1 if status else None


def _loaded_functions(files: list[Path]) -> dict[Place, list[FunctionType]]:
    names = {str(file) for file in files}
    found: dict[Place, list[FunctionType]] = defaultdict(list)
    gc.unfreeze()  # get_objects leaves out what tests/conftest.py froze
    for function in gc.get_objects():
        if isinstance(function, FunctionType) and function.__code__.co_filename in names:
            found[_place(function.__code__)].append(function)
    gc.freeze()
    return found


def _loaded_caches() -> list[Any]:
    """Of Muster's functions, those that keep their results."""
    gc.unfreeze()
    kind = type(lru_cache(_place))
    found = [each for each in gc.get_objects() if isinstance(each, kind) and each.__module__.startswith("muster_")]
    gc.freeze()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="make mutation")
    parser.add_argument(
        "areas", nargs="*", metavar="AREA[/MODULE]", help=f"{', '.join(AREAS)}, or one module of it; default: all"
    )
    parser.add_argument("--sample", type=int, default=40, metavar="N", help="mutants of each file; default: 40")
    parser.add_argument("--seed", type=int, default=19, metavar="N", help="chooses the sample; default: 19")
    arguments = parser.parse_args()
    wanted: dict[str, list[Path]] = defaultdict(list)
    for name in arguments.areas or AREAS:
        area, _, module = name.partition("/")
        files = [file for file in AREAS[area].files() if module in ("", file.stem)] if area in AREAS else []
        if not files:
            parser.error(f"no {name}; the areas are {', '.join(AREAS)}, the modules their files")
        wanted[area] += files
    result = 0
    for area, files in wanted.items():
        child = os.fork()  # of each area only its own tests are loaded
        if not child:
            run = MutationRun(files, arguments.sample, arguments.seed)
            options = ["-q", "-x", "-p", "no:cacheprovider", f"--hypothesis-seed={arguments.seed}"]
            os._exit(pytest.main([*options, *AREAS[area].test_paths()], [run]))
        result = max(result, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return result


if __name__ == "__main__":
    sys.exit(main())
