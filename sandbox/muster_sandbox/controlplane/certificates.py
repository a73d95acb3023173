"""A temporary certificate authority for one control plane: created in memory, written to files for the components.

EC keys, because an RSA key for each component costs most of a second of a five-second start.
"""

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID = datetime.timedelta(days=30)
SKEW = datetime.timedelta(hours=1)  # certificates stay valid if the clock steps back while tests run


@dataclass(frozen=True)
class IssuedCertificate:
    """PEM texts; ``key`` is a SEC 1 "EC PRIVATE KEY", which every Kubernetes version reads."""

    certificate: bytes
    key: bytes


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )


def public_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def write_private(path: Path, pem: bytes) -> Path:
    path.touch(mode=0o600)
    path.write_bytes(pem)
    return path


class Authority:
    """Signs certificates for one control plane. Only :meth:`write` exports its key."""

    def __init__(self, name: str) -> None:
        self._key = new_key()
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._certificate = (
            self._builder(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(
                x509.KeyUsage(
                    digital_signature=True,
                    key_cert_sign=True,
                    crl_sign=True,
                    content_commitment=False,
                    key_encipherment=False,
                    data_encipherment=False,
                    key_agreement=False,
                    encipher_only=False,
                    decipher_only=False,
                ),
                critical=True,
            )
            .sign(self._key, hashes.SHA256())
        )

    @property
    def certificate(self) -> bytes:
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def write(self, directory: Path, name: str) -> tuple[Path, Path]:
        """Write ``name.crt`` and ``name.key``; the controller-manager signs requests with them."""
        certificate = directory / f"{name}.crt"
        certificate.write_bytes(self.certificate)
        return certificate, write_private(directory / f"{name}.key", private_pem(self._key))

    def server(self, name: str, hosts: Sequence[str], valid: datetime.timedelta = VALID) -> IssuedCertificate:
        """A certificate for a server with the names ``hosts`` (DNS names or addresses).

        valid: from now on; negative, and less than SKEW: it has expired.
        """
        return self._sign(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), hosts, valid)

    def client(self, user: str, groups: Sequence[str] = ()) -> IssuedCertificate:
        """A client certificate for ``user`` in ``groups``."""
        names = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        return self._sign(x509.Name([*names, x509.NameAttribute(NameOID.COMMON_NAME, user)]), ())

    def _sign(self, subject: x509.Name, hosts: Sequence[str], valid: datetime.timedelta = VALID) -> IssuedCertificate:
        key = new_key()
        builder = self._builder(subject, key, valid).add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
        )
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False
            )
        certificate = builder.sign(self._key, hashes.SHA256())
        return IssuedCertificate(certificate.public_bytes(serialization.Encoding.PEM), private_pem(key))

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, valid: datetime.timedelta = VALID
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - SKEW)
            .not_valid_after(now + valid)
        )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
