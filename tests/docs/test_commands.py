"""Each command in the documents is valid: flags of `muster`, values of helm, resources of kubectl, parameters of the
agent, targets of make.
"""

import argparse
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from tests.docs.chart_values import is_value
from tests.docs.document_commands import ROOT, Command, commands, documents

from muster_agent.query import status_query
from muster_checks.registry import load_registry
from muster_cli.__main__ import COMMANDS

CHART = ROOT / "helm" / "muster"
SUBCOMMANDS = {
    "get", "history", "install", "lint", "list", "ls", "repo", "rollback", "show", "template", "test", "uninstall",
    "upgrade",
}  # fmt: skip
KUBECTL = {
    "annotate", "api-resources", "apply", "auth", "cordon", "create", "delete", "describe", "edit", "exec", "explain",
    "get", "label", "logs", "patch", "port-forward", "rollout", "run", "scale", "taint", "uncordon", "wait",
}  # fmt: skip
RESOURCES = {
    "all", "clusterrole", "clusterrolebinding", "configmap", "crd", "cronjob", "daemonset", "deploy", "deployment",
    "ds", "endpoints", "event", "ipujob", "ipujobs.graphcore.ai", "job", "lease", "namespace", "networkpolicies", "no",
    "node", "nodehealth", "ns", "pod", "po", "podmonitor", "prometheusrule", "pvc", "resourceslices", "role",
    "rolebinding", "secret", "service", "serviceaccount", "servicemonitor", "svc", "validatingwebhookconfiguration",
    "mutatingwebhookconfiguration", "generic", "token",
}  # fmt: skip


def of(program: str) -> list[Command]:
    return [each for page in documents() for each in commands(page) if each.words[0] == program]


def ids(command: Command) -> str:
    return f"{command.where} {' '.join(command.words[1:3])}"


class Wrong(Exception):
    pass


class Strict(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise Wrong(message)

    def exit(self, status: int = 0, message: str | None = None) -> Any:
        raise Wrong(message or f"ends with {status}")


def parse(words: tuple[str, ...]) -> None:
    """Raises Wrong."""
    if words[1:] in ((), ("--version",), ("--help",)) or words[1:2] == ("COMMAND",):
        return
    command = COMMANDS.get(words[1])
    if command is None:
        raise Wrong(f"no command {words[1]!r}")
    module = importlib.import_module(command.module)
    parser = Strict(prog=words[1])
    parser.register("action", "parsers", _Subparsers)
    module.add_arguments(parser)
    if words[2:] and "--help" not in words:
        try:
            parser.parse_args([real(word) for word in words[2:]])
        except Wrong as error:
            # a command without its arguments, or a flag without its value, is a mention and not a call
            named = "the following arguments are required" in str(error) and len(words) <= 3
            if not named and "expected one argument" not in str(error):
                raise


class _Subparsers(argparse._SubParsersAction):  # type: ignore[type-arg]
    def __init__(self, *given: Any, **named: Any) -> None:
        named["parser_class"] = Strict
        super().__init__(*given, **named)


def real(word: str) -> str:
    """Replaces a placeholder by a value of its kind."""
    if re.fullmatch(r"[A-Z]+", word):
        return {"PORT": "3333", "SECONDS": "5", "N": "1"}.get(word, word.lower())
    return word


@pytest.mark.parametrize("command", of("muster"), ids=ids)
def test_a_muster_command_has_valid_arguments(command: Command) -> None:
    try:
        parse(command.words)
    except (Wrong, argparse.ArgumentTypeError) as error:
        pytest.fail(f"{command.where}: {' '.join(command.words)}: {error}")


def test_the_documents_have_commands_of_each_program() -> None:
    assert {name: len(of(name)) > 1 for name in ("muster", "helm", "kubectl", "curl", "make")} == dict.fromkeys(
        ("muster", "helm", "kubectl", "curl", "make"), True
    )


def test_an_unknown_flag_or_command_is_reported() -> None:
    with pytest.raises(Wrong):
        parse(("muster", "status", "--no-such-flag"))
    with pytest.raises(Wrong):
        parse(("muster", "pauze"))


@pytest.mark.parametrize("command", of("helm"), ids=ids)
def test_a_helm_command_sets_values_of_the_chart(command: Command) -> None:
    words = command.words[1:]
    assert words[0] in SUBCOMMANDS, f"{command.where}: helm {words[0]}"
    for name in _set(words):
        assert is_value(name), f"{command.where}: the chart has no value {name}"


def _set(words: tuple[str, ...]) -> Iterator[str]:
    for flag, given in zip(words, (*words[1:], ""), strict=False):
        text = given if flag in ("--set", "--set-string", "--set-file") else flag.partition("--set=")[2]
        if "=" in text:
            yield re.sub(r"\[\d+\]", "", text.partition("=")[0])


@pytest.mark.parametrize("command", of("kubectl"), ids=ids)
def test_a_kubectl_command_has_a_valid_verb_and_kind(command: Command) -> None:
    words = _without_flags(command.words[1:])
    if not words:
        return
    assert words[0] in KUBECTL, f"{command.where}: kubectl {words[0]}"
    if words[0] in ("get", "describe", "delete", "edit", "scale", "explain", "label", "annotate", "patch", "create"):
        for kind in () if "--raw" in command.words else words[1:2]:
            for each in kind.partition("/")[0].partition(".")[0].lower().split(","):
                known = each in RESOURCES or each.removesuffix("s") in RESOURCES or each in ("<", "-")
                assert known, f"{command.where}: kubectl {words[0]} {kind}"
    for file in (given for flag, given in zip(command.words, command.words[1:], strict=False) if flag == "-f"):
        assert not file.startswith(("examples/", "helm/")) or (ROOT / file).exists(), f"{command.where}: {file}"


def _without_flags(words: tuple[str, ...]) -> list[str]:
    kept: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in ("-n", "--namespace", "-f", "-l", "-o", "-c", "--kubeconfig", "--as"):
            skip = True
        elif not word.startswith("-"):
            kept.append(word)
    return kept


@pytest.mark.parametrize("command", of("curl"), ids=ids)
def test_a_curl_command_requests_existing_checks_and_parameters(command: Command) -> None:
    for word in command.words[1:]:
        url = urlsplit(word if "://" in word else f"http://{word}")
        if url.path.rstrip("/") != "/status":
            continue
        checks = load_registry(plug_ins=[])
        query = parse_qs(url.query)
        named = [each for each in ",".join(query.get("check", [])).split(",") if each not in ("", "all")]
        assert set(named) <= set(checks), f"{command.where}: {word}"
        own = {field for name in named or checks for field in checks[name].parameters.model_fields}
        assert set(query) <= own | set(status_query.OWN), f"{command.where}: {word}"


@pytest.mark.parametrize("command", of("make"), ids=ids)
def test_a_make_command_has_an_existing_target(command: Command) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    wanted = [word for word in command.words[1:] if "=" not in word and not word.startswith("-")]
    assert set(wanted) <= targets, f"{command.where}: make {' '.join(wanted)}"


def test_the_examples_are_yaml() -> None:
    for file in sorted((ROOT / "examples").glob("**/*.yaml")):
        assert list(yaml.safe_load_all(Path(file).read_text())), file
