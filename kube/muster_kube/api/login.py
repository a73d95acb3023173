"""The result of a login by ``exec`` or ``auth-provider`` of a kubeconfig's user.

The caller provides the login (``load_config(…, log_in=…)``): the command line does, components in pods do not.
"""

from collections.abc import Callable
from dataclasses import dataclass

from muster_kube.api.credentials import Credentials
from muster_kube.api.kubeconfig import KubeconfigContext


@dataclass(frozen=True)
class LoginAnswer:
    """A token, or a client certificate (PEM), or both."""

    credentials: Credentials
    client_certificate: bytes | None = None
    client_key: bytes | None = None


LogIn = Callable[[KubeconfigContext], LoginAnswer]  # raises ConfigError
