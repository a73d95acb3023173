"""What a login gives that a kubeconfig's user asks for by ``exec`` or ``auth-provider``.

Who runs it is for the caller to say (``load_config(…, log_in=…)``): the command line does, no part in a pod.
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
