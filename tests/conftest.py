"""What all tests share: none of them hangs on chance, nor on where this process was started."""

import os
import signal

from hypothesis import settings

# The same examples in every run, and no deadline: neither a die nor a loaded machine decides whether a change lands.
# `pytest --hypothesis-profile=search` looks for new ones.
settings.load_profile("ci")
settings.register_profile("search", settings.get_profile("ci"), derandomize=False)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a shell starts background jobs so, and children would inherit it: what is ended by Ctrl-C here would never end
    signal.signal(signal.SIGINT, signal.default_int_handler)

for name in ("KUBERNETES_SERVICE_HOST", "KUBECONFIG"):
    # in a pod, or where a person works: what is started here must not find a cluster that is somebody's
    os.environ.pop(name, None)
