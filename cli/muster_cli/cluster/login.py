"""Kubeconfig users that log in by an exec plug-in or OIDC, by way of the ``kubernetes`` package.

The only module that imports it, and only when such a user is chosen: 142 MB on disk with what only it needs, which
Muster's image leaves out, and 20 MB of RSS. The package runs the plug-in and knows the expiry; we keep what it returns
and ask again after a 401 or once a minute (it runs the plug-in only when expired).
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from muster_kube.api.config import ClusterConfig, load_config
from muster_kube.api.credentials import REREAD_S, NoToken
from muster_kube.api.errors import ConfigError
from muster_kube.api.kubeconfig import KubeconfigContext
from muster_kube.api.login import LoginAnswer


class LoginToken:
    """A token that ``current`` returns and renews. ``anew``: log in again whatever the expiry says."""

    def __init__(
        self, current: Callable[[], str], anew: Callable[[], str], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._current = current
        self._anew = anew
        self._clock = clock
        self._header: str | None = None
        self._asked_at = 0.0
        self._stale = False
        self._asking = asyncio.Lock()

    async def header(self) -> str | None:
        async with self._asking:  # one plug-in run, however many calls wait for it
            if self._header is None or self._stale or self._clock() - self._asked_at >= REREAD_S:
                # plug-ins take seconds and block
                self._header = await asyncio.to_thread(self._anew if self._stale else self._current)
                self._asked_at = self._clock()
                self._stale = False
            return self._header

    def refused(self, header: str | None) -> bool:
        if header == self._header:
            self._stale = True
        return True


def load_user_config(kubeconfig: Path | None) -> ClusterConfig:
    """The cluster that a command talks to; logs the user in where the kubeconfig asks for it. Raises ConfigError."""
    return load_config(kubeconfig, log_in=log_in)


def log_in(selected: KubeconfigContext) -> LoginAnswer:
    """Run the login of ``selected``'s user once. Raises ConfigError when the package is missing or the login fails."""
    user = selected.user
    if user is None:
        return LoginAnswer(NoToken())
    key = "exec" if user.body.get("exec") else "auth-provider"
    try:
        from kubernetes.client import Configuration
        from kubernetes.config import load_kube_config_from_dict as load
    except ImportError as error:
        raise ConfigError(
            f"{user.where(key)}: needs the Python package kubernetes, which Muster's image leaves out ({error}): "
            "run this command from Muster's wheel, or use a kubeconfig with a token or a client certificate"
        ) from error

    document = _document(selected)

    def configuration() -> Any:
        made = Configuration()
        try:
            load(document, client_configuration=made, persist_config=False)  # type: ignore[no-untyped-call] # it has none
        except Exception as error:  # the package raises whatever the plug-in's failure causes
            raise ConfigError(f"{user.where(key)}: login failed: {error}") from error
        return made

    def token_of(made: Any) -> str | None:
        hook = made.refresh_api_key_hook
        if hook is not None:
            hook(made)
        token = made.api_key.get("BearerToken")
        return token if isinstance(token, str) else None

    first = configuration()
    token = token_of(first)
    if token is None:
        if not (first.cert_file and first.key_file):
            raise ConfigError(f"{user.where(key)}: login gave no token and no certificate (see the log)")
        return LoginAnswer(NoToken(), Path(first.cert_file).read_bytes(), Path(first.key_file).read_bytes())
    held = [first]

    def current() -> str:
        found = token_of(held[0])
        if found is None:
            raise ConfigError(f"{user.where(key)}: login gave no token")
        return found

    def anew() -> str:
        held[0] = configuration()
        return current()

    return LoginAnswer(LoginToken(current, anew))


def _document(selected: KubeconfigContext) -> dict[str, Any]:
    """A kubeconfig of one context, as the package reads it; the command of a plug-in keeps its file's folder."""
    user = dict(selected.user.body) if selected.user else {}
    plugin = user.get("exec")
    if selected.user is not None and isinstance(plugin, dict) and isinstance(plugin.get("command"), str):
        command = plugin["command"]
        if "/" in command:  # a bare name is found on PATH; a path is relative to the kubeconfig
            user["exec"] = {**plugin, "command": str((selected.user.file.parent / command).absolute())}
    cluster = {"server": selected.cluster.body.get("server", "")}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    }
