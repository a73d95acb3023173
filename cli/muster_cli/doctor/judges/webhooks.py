"""Judges Muster's webhooks: whether their Services have endpoints, and whether the API server trusts them. Pure."""

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

from muster_checks.base.vocabulary import Verdict, shorten
from muster_cli.doctor.facts import DataMap, EndpointSlice, ServiceReference, WebhookConfiguration
from muster_cli.doctor.findings import DoctorFinding, ReadFailure, read_failures
from muster_kube.api.times import rfc3339_whole
from muster_kube.webhook.key_files import AUTHORITIES, CERTIFICATE

CERTIFICATES, WEBHOOKS = "certificates", "webhooks"
SOON_S = 30 * 86400.0  # Muster renews four months before expiry, so a nearer expiry means that renewal fails


@dataclass(frozen=True)
class WebhookBackend:
    """The objects that a webhook configuration needs. secret: that of its name; None if missing, as with a certificate
    from elsewhere. slices: None without a Service. namespace: of the part that keeps the Secret."""

    namespace: str = ""
    secret: DataMap | ReadFailure | None = None
    slices: Sequence[EndpointSlice] | ReadFailure | None = None


def judge(
    found: Mapping[str, WebhookConfiguration],
    backends: Mapping[str, WebhookBackend],
    expected: Sequence[str],
    now: float,
) -> list[DoctorFinding]:
    """found, backends: by ``Kind/name``. expected: the ``Kind/name`` that the installed parts need.

    now: by the clock of the API server.
    """
    findings: list[DoctorFinding] = []
    for missing in sorted(set(expected) - set(found)):
        what = f"{missing} is missing: the API server does not call the webhook"
        findings.append(DoctorFinding(WEBHOOKS, Verdict.FAIL, what, "helm upgrade restores it"))
    for key, configuration in sorted(found.items()):
        findings += _judge_trust(key, configuration, backends.get(key, WebhookBackend()), now)
        findings += _judge_endpoints(key, configuration, backends.get(key, WebhookBackend()))
    called = sorted(key for key, configuration in found.items() if _service(configuration) is not None)
    for area, keys, message in (
        (CERTIFICATES, sorted(found), "trusted, and valid for at least 30 days"),
        (WEBHOOKS, called, "the Service has ready endpoints"),
    ):
        if keys and not any(finding.area == area for finding in findings):
            findings.append(DoctorFinding(area, Verdict.PASS, f"{', '.join(keys)}: {message}"))
    return findings


def _judge_trust(
    key: str, configuration: WebhookConfiguration, backend: WebhookBackend, now: float
) -> Iterator[DoctorFinding]:
    name = configuration.metadata.name
    bundles = {webhook.client_config.ca_bundle for webhook in configuration.webhooks}
    namespace = backend.namespace
    anew = (
        f"kubectl -n {namespace} delete secret {name}: Muster creates a new one within a minute; with cert-manager: "
        "renew its Certificate"
    )
    if "" in bundles:
        what = f"{key}: its caBundle is empty, so the API server trusts no certificate of the webhook"
        yield DoctorFinding(CERTIFICATES, Verdict.FAIL, what, f"check that the part that writes it is running; {anew}")
        return
    authorities: list[x509.Certificate] = []
    for bundle in bundles:
        try:
            authorities += x509.load_pem_x509_certificates(base64.b64decode(bundle, validate=True))
        except (ValueError, binascii.Error) as error:
            what = f"{key}: its caBundle is not a certificate: {shorten(str(error))}"
            yield DoctorFinding(CERTIFICATES, Verdict.FAIL, what, anew)
            return
    yield from _judge_expiry(
        f"{key}: the certificate authority of its caBundle", [_end(each) for each in authorities], now, anew
    )
    if isinstance(backend.secret, ReadFailure):
        yield from read_failures(CERTIFICATES, backend.secret)
    elif backend.secret is not None:
        yield from _judge_certificate(f"Secret {namespace}/{name}", backend.secret, authorities, now, anew)


def _judge_certificate(
    where: str, secret: DataMap, authorities: Sequence[x509.Certificate], now: float, mend: str
) -> Iterator[DoctorFinding]:
    try:
        certificate = x509.load_pem_x509_certificates(base64.b64decode(secret.data.get(CERTIFICATE, "")))[0]
    except (ValueError, binascii.Error) as error:
        yield DoctorFinding(
            CERTIFICATES, Verdict.FAIL, f"{where}: {CERTIFICATE} is not a certificate: {shorten(str(error))}", mend
        )
        return
    yield from _judge_expiry(f"{where}: {CERTIFICATE}", [_end(certificate)], now, mend)
    chain = [*authorities, *_more(secret)]
    if not any(_is_signed(each, certificate) for each in authorities) and not _is_signed_indirectly(
        certificate, authorities, chain
    ):
        what = f"{where}: the caBundle does not trust the authority that signed the certificate"
        yield DoctorFinding(CERTIFICATES, Verdict.FAIL, what, mend)


def _more(secret: DataMap) -> list[x509.Certificate]:
    """Intermediate authorities, which cert-manager appends to the certificate."""
    found: list[x509.Certificate] = []
    for name in (CERTIFICATE, AUTHORITIES):
        try:
            found += x509.load_pem_x509_certificates(base64.b64decode(secret.data.get(name, "")))
        except (ValueError, binascii.Error):
            continue
    return found


def _is_signed_indirectly(
    certificate: x509.Certificate, trusted: Sequence[x509.Certificate], between: Sequence[x509.Certificate]
) -> bool:
    for each in between:
        if each != certificate and _is_signed(each, certificate) and any(_is_signed(root, each) for root in trusted):
            return True
    return False


def _is_signed(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _end(certificate: x509.Certificate) -> datetime:
    return certificate.not_valid_after_utc


def _judge_expiry(what: str, ends: Sequence[datetime], now: float, mend: str) -> Iterator[DoctorFinding]:
    """The latest expiry counts, as a bundle may hold former authorities."""
    end = max(ends).timestamp()
    if end <= now:
        yield DoctorFinding(CERTIFICATES, Verdict.FAIL, f"{what} expired at {rfc3339_whole(end)}", mend)
    elif end - now < SOON_S:
        days = int((end - now) / 86400)
        message = f"{what} expires at {rfc3339_whole(end)}, in {days} days, and was not renewed"
        yield DoctorFinding(CERTIFICATES, Verdict.WARN, message, mend)


def _service(configuration: WebhookConfiguration) -> ServiceReference | None:
    return next((each.client_config.service for each in configuration.webhooks if each.client_config.service), None)


def _judge_endpoints(key: str, configuration: WebhookConfiguration, backend: WebhookBackend) -> Iterator[DoctorFinding]:
    place = _service(configuration)
    if place is None:
        return
    if isinstance(backend.slices, ReadFailure):
        yield from read_failures(WEBHOOKS, backend.slices)
        return
    if backend.slices is None or not sum(each.ready for each in backend.slices):
        refused = any(webhook.failure_policy == "Fail" for webhook in configuration.webhooks)
        then = "the API server rejects requests for its objects" if refused else "its objects are not validated"
        service = f"Service {place.namespace}/{place.name}"
        yield DoctorFinding(
            WEBHOOKS,
            Verdict.FAIL if refused else Verdict.WARN,
            f"{key}: {service} has no ready endpoint: {then}",
            f"kubectl -n {place.namespace} get pods,services,endpoints",
        )


__all__ = ["CERTIFICATES", "WEBHOOKS", "WebhookBackend", "judge"]
