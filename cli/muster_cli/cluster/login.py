"""Logs in kubeconfig users that need an exec plug-in or OIDC, with the ``kubernetes`` package.

Only this module imports that package, and only for such a user: with its dependencies it takes 142 MB on disk, which
Muster's image leaves out, and 20 MB of RSS. The package runs the plug-in and knows when a token expires. We keep the
token, and read it again after a 401 and once a minute; the package runs the plug-in only if the token has expired.
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
    """A token that ``current`` returns, renewed if it has expired. ``anew`` logs in again in any case."""

    def __init__(
        self, current: Callable[[], str], anew: Callable[[], str], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._current = current
        self._anew = anew
        self._clock = clock
        self._header: str | None = None
        self._read_at = 0.0
        self._stale = False
        self._lock = asyncio.Lock()

    async def header(self) -> str | None:
        async with self._lock:  # concurrent calls share one plug-in run
            if self._header is None or self._stale or self._clock() - self._read_at >= REREAD_S:
                # a plug-in blocks, for seconds
                self._header = await asyncio.to_thread(self._anew if self._stale else self._current)
                self._read_at = self._clock()
                self._stale = False
            return self._header

    def refused(self, header: str | None) -> bool:
        if header == self._header:
            self._stale = True
        return True


def load_user_config(kubeconfig: Path | None) -> ClusterConfig:
    """The cluster that a command uses. Logs the user in if the kubeconfig needs it. Raises ConfigError."""
    return load_config(kubeconfig, log_in=log_in)


def log_in(selected: KubeconfigContext) -> LoginAnswer:
    """Log in the user of ``selected`` once. Raises ConfigError if the package is missing or the login fails."""
    user = selected.user
    if user is None:
        return LoginAnswer(NoToken())
    key = "exec" if user.body.get("exec") else "auth-provider"
    try:
        from kubernetes.client import Configuration
        from kubernetes.config import load_kube_config_from_dict as load
    except ImportError as error:
        raise ConfigError(
            f"{user.where(key)}: this login needs the Python package kubernetes, which Muster's image does not contain "
            f"({error}): install Muster's wheel, or use a kubeconfig with a token or a client certificate"
        ) from error

    document = _document(selected)

    def configuration() -> Any:
        made = Configuration()
        try:
            load(document, client_configuration=made, persist_config=False)  # type: ignore[no-untyped-call] # untyped package
        except Exception as error:  # a failing plug-in may raise anything
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
            raise ConfigError(
                f"{user.where(key)}: the login returned neither a token nor a certificate (see its output)"
            )
        return LoginAnswer(NoToken(), Path(first.cert_file).read_bytes(), Path(first.key_file).read_bytes())
    held = [first]

    def current() -> str:
        found = token_of(held[0])
        if found is None:
            raise ConfigError(f"{user.where(key)}: the login returned no token")
        return found

    def anew() -> str:
        held[0] = configuration()
        return current()

    return LoginAnswer(LoginToken(current, anew))


def _document(selected: KubeconfigContext) -> dict[str, Any]:
    """A kubeconfig with only the selected context, for the package. A relative plug-in path is resolved."""
    user = dict(selected.user.body) if selected.user else {}
    plugin = user.get("exec")
    if selected.user is not None and isinstance(plugin, dict) and isinstance(plugin.get("command"), str):
        command = plugin["command"]
        if "/" in command:  # a bare name is looked up on PATH; a path is relative to the kubeconfig
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
