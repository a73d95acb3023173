"""Key pairs of a webhook server, and when each one is replaced. Pure functions.

Each pair has its own certificate authority, whose key is discarded after it has signed: the stored keys can serve but
not sign. Clients must therefore trust a new pair before it serves: it is stored next to the current one for a day, with
its authority already in the bundle. The authority of a replaced pair stays in the bundle until the pair has expired.
"""

import ipaddress
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from muster_kube.webhook.key_files import AUTHORITIES, CERTIFICATE, KEY

DAY_S = 86400.0
VALID_S = 365 * DAY_S
BACKDATED_S = DAY_S  # the API server's clock may be behind ours
RENEW_S = VALID_S / 3  # remaining validity at which the next pair is created
OVERLAP_S = DAY_S  # how long the next pair is trusted before it serves
HOSTS_LIMIT = 16

# keys in the Secret, beside those of its type
NEXT_CERTIFICATE, NEXT_KEY = "next.crt", "next.key"
NAMES = (CERTIFICATE, KEY, AUTHORITIES, NEXT_CERTIFICATE, NEXT_KEY)


class UnusableKeyPair(Exception):
    """The stored data is not a usable key pair; the message says what is wrong where."""


@dataclass(frozen=True)
class KeyPair:
    """certificate, key, authority: PEM. hosts: DNS names and addresses. made, ends: seconds since the epoch."""

    certificate: bytes
    key: bytes
    authority: bytes
    hosts: frozenset[str]
    made: float
    ends: float

    def serves(self, hosts: Collection[str], now: float) -> bool:
        return now < self.ends and self.hosts.issuperset(hosts)


@dataclass(frozen=True)
class KeyPairSet:
    """The data that all replicas share. former: PEM of authorities whose pairs may still be in use."""

    current: KeyPair
    next: KeyPair | None = None
    former: tuple[bytes, ...] = ()

    @property
    def bundle(self) -> bytes:
        """The authorities to trust, PEM, in a deterministic order."""
        following = () if self.next is None else (self.next.authority,)
        return b"".join((self.current.authority, *following, *self.former))

    def data(self) -> dict[str, bytes | None]:
        """Values by name; None: absent."""
        return {
            CERTIFICATE: self.current.certificate,
            KEY: self.current.key,
            AUTHORITIES: self.bundle,
            NEXT_CERTIFICATE: self.next.certificate if self.next else None,
            NEXT_KEY: self.next.key if self.next else None,
        }


def renew_key_pairs(kept: KeyPairSet | None, hosts: Collection[str], now: float, *, trusted: bool) -> KeyPairSet:
    """The key pairs to store now; ``kept`` itself if no change is due.

    trusted: whether the clients of the server have the whole bundle of ``kept``.
    """
    if kept is None:
        return KeyPairSet(make_key_pair(hosts, now))
    current, following = kept.current, kept.next
    if following is not None and not following.serves(hosts, now):
        following = None
    if not current.serves(hosts, now):
        # no client can call the server in this state, so there is no reason to wait
        return _take_over(kept, following or make_key_pair(_merge_hosts(current.hosts, hosts), now), now)
    if following is not None and trusted and now >= following.made + OVERLAP_S:
        return _take_over(kept, following, now)
    if following is None and current.ends - now < RENEW_S:
        former = tuple(pem for pem in kept.former if expiry_of(pem) > now)
        return KeyPairSet(current, make_key_pair(_merge_hosts(current.hosts, hosts), now), former)
    return kept if following is kept.next else replace(kept, next=None)


def next_renewal(kept: KeyPairSet) -> float:
    """Until then :func:`renew_key_pairs` returns ``kept`` for the names it serves; seconds since the epoch."""
    if kept.next is None:
        return kept.current.ends - RENEW_S
    return min(kept.current.ends, kept.next.ends, kept.next.made + OVERLAP_S)


def _take_over(kept: KeyPairSet, pair: KeyPair, now: float) -> KeyPairSet:
    trusted = (kept.current.authority, *kept.former)
    return KeyPairSet(pair, former=tuple(pem for pem in trusted if expiry_of(pem) > now))


def _merge_hosts(known: Collection[str], hosts: Collection[str]) -> Collection[str]:
    """Prevents replicas of two versions with different names from renewing each other's pair again and again."""
    union = set(known) | set(hosts)
    return union if len(union) <= HOSTS_LIMIT else hosts


def make_key_pair(hosts: Collection[str], now: float) -> KeyPair:
    """A new pair for a server with the names ``hosts`` (DNS names or addresses, at least one)."""
    if not hosts:
        raise ValueError("a server certificate needs at least one host name")
    begins, ends = _datetime(now - BACKDATED_S), _datetime(now + VALID_S)
    signer, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    number = x509.random_serial_number()
    # a unique name, so that clients do not confuse the authorities of the bundle
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"muster.dev {number:x}")])
    blank = x509.CertificateBuilder().issuer_name(issuer).not_valid_before(begins).not_valid_after(ends)
    identifier = x509.SubjectKeyIdentifier.from_public_key(signer.public_key())
    authority = (
        blank.subject_name(issuer)
        .public_key(signer.public_key())
        .serial_number(number)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(signer, hashes.SHA256())
    )
    names = sorted(hosts)
    certificate = (
        blank.subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(signer, hashes.SHA256())
    )
    return KeyPair(
        certificate.public_bytes(Encoding.PEM),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        authority.public_bytes(Encoding.PEM),
        frozenset(hosts),
        begins.timestamp() + BACKDATED_S,
        ends.timestamp(),
    )


def read_key_pairs(data: Mapping[str, bytes]) -> KeyPairSet | None:
    """Reads the output of :meth:`KeyPairSet.data`; None if it is absent. Raises UnusableKeyPair."""
    if not any(data.get(name) for name in NAMES):
        return None
    authorities = _read_certificates(data, AUTHORITIES)
    current = _read_pair(data, CERTIFICATE, KEY, authorities)
    following = _read_pair(data, NEXT_CERTIFICATE, NEXT_KEY, authorities) if data.get(NEXT_CERTIFICATE) else None
    used = {current.authority, following.authority if following else b""}
    former = [each.public_bytes(Encoding.PEM) for each in authorities]
    return KeyPairSet(current, following, tuple(pem for pem in former if pem not in used))


def _read_pair(data: Mapping[str, bytes], name: str, key_name: str, authorities: list[x509.Certificate]) -> KeyPair:
    certificate = _read_certificates(data, name)[0]
    try:
        key = load_pem_private_key(data.get(key_name, b""), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UnusableKeyPair(f"{key_name}: expected a private key in PEM: {error}") from error
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if key.public_key().public_bytes(*form) != certificate.public_key().public_bytes(*form):
        raise UnusableKeyPair(f"{key_name}: does not match the certificate in {name}")
    authority = next((each for each in authorities if _has_signed(each, certificate)), None)
    if authority is None:
        raise UnusableKeyPair(
            f"{AUTHORITIES}: none of its {len(authorities)} certificates has signed the one in {name}"
        )
    return KeyPair(
        data[name],
        data[key_name],
        authority.public_bytes(Encoding.PEM),
        _hosts_of(certificate),
        certificate.not_valid_before_utc.timestamp() + BACKDATED_S,
        min(certificate.not_valid_after_utc, authority.not_valid_after_utc).timestamp(),
    )


def _read_certificates(data: Mapping[str, bytes], name: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(data.get(name, b""))
    except ValueError as error:
        raise UnusableKeyPair(f"{name}: expected certificates in PEM: {error}") from error


def _has_signed(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _hosts_of(certificate: x509.Certificate) -> frozenset[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return frozenset()
    return frozenset([*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))])


def expiry_of(pem: bytes) -> float:
    """Expiry of the first certificate of a chain, which is the server's; seconds since the epoch. Raises ValueError."""
    return x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _datetime(seconds: float) -> datetime:
    return datetime.fromtimestamp(int(seconds), UTC)
