"""Where the control plane's components run, and their command-line arguments. Pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

NODE_GRACE = "10h"  # grace period for missing heartbeats: simulated nodes send none


@dataclass(frozen=True)
class Placement:
    """Where a control plane's components run.

    enter: prefix of every component's command line (``nsenter …``); must not fork
    ports: of etcd and API server on 127.0.0.1, here and where they run, which a relay connects; default: free ports
    """

    enter: Sequence[str] = ()
    ports: tuple[int, int] | None = None


HERE = Placement()


@dataclass(frozen=True)
class Layout:
    """Where the components find their files and one another.

    data: the folder of all files
    port, etcd_port: of the API server and of etcd, on 127.0.0.1
    minor: the Y of Kubernetes 1.Y
    """

    data: Path
    port: int
    etcd_port: int
    minor: int

    @property
    def pki(self) -> Path:
        return self.data / "pki"


def etcd_arguments(layout: Layout, flags: str) -> list[str]:
    """flags: what etcd prints of the flags that it knows."""
    arguments = [
        "--name=testbed",
        f"--data-dir={layout.data / 'etcd'}",
        f"--listen-client-urls=http://127.0.0.1:{layout.etcd_port}",
        f"--advertise-client-urls=http://127.0.0.1:{layout.etcd_port}",
        # a single member has no peers, so any port will do
        "--listen-peer-urls=http://127.0.0.1:0",
    ]
    # 3.5 and later; the data need not survive a power failure
    if "unsafe-no-fsync" in flags:
        arguments.append("--unsafe-no-fsync")
    return arguments


def apiserver_arguments(layout: Layout, *, audit: bool) -> list[str]:
    pki = layout.pki
    arguments = [
        f"--etcd-servers=http://127.0.0.1:{layout.etcd_port}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        # otherwise the server keeps trying to publish 127.0.0.1 as endpoint of its Service, which is rejected
        "--endpoint-reconciler-type=none",
        f"--secure-port={layout.port}",
        f"--tls-cert-file={pki / 'apiserver.crt'}",
        f"--tls-private-key-file={pki / 'apiserver.key'}",
        f"--client-ca-file={pki / 'ca.crt'}",
        f"--kubelet-client-certificate={pki / 'kubelet-client.crt'}",
        f"--kubelet-client-key={pki / 'kubelet-client.key'}",
        f"--cert-dir={pki}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        # it taints every new Node as not ready until the controller-manager acts; simulated nodes are Ready at once
        "--disable-admission-plugins=TaintNodesByCondition",
        "--allow-privileged=true",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-signing-key-file={pki / 'sa.key'}",
        f"--service-account-key-file={pki / 'sa.pub'}",
        "--service-cluster-ip-range=10.96.0.0/16",
        # nobody competes here, and it took 15 % of the server's time under the tests (pprof profile of 1.20)
        "--enable-priority-and-fairness=false",
        # one test creates 10,000 nodes within seconds
        "--max-requests-inflight=2000",
        "--max-mutating-requests-inflight=1000",
    ]
    if audit:
        arguments += [
            f"--audit-policy-file={layout.data / 'audit-policy.yaml'}",
            f"--audit-log-path={layout.data / 'audit.log'}",
            # in MB: one file, however long the run is, because readers continue where they stopped. By default the
            # server begins another one after 100 MB
            "--audit-log-maxsize=1000000",
        ]
    return arguments


def manager_arguments(layout: Layout) -> list[str]:
    return [
        f"--kubeconfig={layout.data / 'controller-manager.kubeconfig'}",
        *_no_serving(layout.minor),
        f"--service-account-private-key-file={layout.pki / 'sa.key'}",
        f"--root-ca-file={layout.pki / 'ca.crt'}",
        f"--cluster-signing-cert-file={layout.pki / 'ca.crt'}",
        f"--cluster-signing-key-file={layout.pki / 'ca.key'}",
        "--use-service-account-credentials=true",
        "--leader-elect=false",
        # ttl writes an annotation for kubelets' caches on every node, again and again while a fleet grows;
        # resourcequota reads the server's whole API every 30 s
        "--controllers=*,-ttl,-resourcequota",
        # with the default (20 per second), creating service accounts would take minutes in a busy session
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
        f"--node-monitor-grace-period={NODE_GRACE}",
        # a HorizontalPodAutoscaler would act after 15 s
        "--horizontal-pod-autoscaler-sync-period=1s",
    ]


def scheduler_arguments(layout: Layout) -> list[str]:
    # Newer versions have no flags for the scheduler's QPS, and a configuration file depends on an apiVersion. So it
    # keeps the default of 50 bindings per second.
    return [
        f"--kubeconfig={layout.data / 'scheduler.kubeconfig'}",
        *_no_serving(layout.minor),
        "--leader-elect=false",
    ]


def _no_serving(minor: int) -> list[str]:
    """Neither needs to listen. ``--port`` has an effect up to 1.22 and does not exist in 1.24."""
    return ["--secure-port=0", *(["--port=0"] if minor < 23 else [])]
