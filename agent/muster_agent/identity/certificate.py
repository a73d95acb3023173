"""Makes the key and the certificate of an agent, and prints both as PEM. It runs as a program of its own, because the
library takes 10 MB of memory that the agent never needs again.

A certificate proves nothing by its issuer, only by its fingerprint, which the agent publishes in its NodeHealth. But
OpenSSL, as Python uses it, asks a client for a certificate only if it must verify the issuer. So all agents name one
issuer whose private key is the number 1, which everybody knows: it vouches for nobody.
"""

import sys
from datetime import UTC, datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

NO_SECRET = 1
# the fingerprint decides, not the time: a node whose clock is wrong can still report it
BEGINS, ENDS = datetime(2020, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


def make_certificate() -> tuple[bytes, bytes, bytes]:
    """The issuer's certificate, the agent's certificate and its key, as PEM."""
    anybody = ec.derive_private_key(NO_SECRET, ec.SECP256R1())
    name = _name("muster.dev: vouches for nobody")
    issuer = (
        _certificate(name, name, anybody.public_key(), authority=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(anybody, hashes.SHA256())
    )
    key = ec.generate_private_key(ec.SECP256R1())
    purposes = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    certificate = (
        _certificate(_name("muster-agent"), name, key.public_key(), authority=False)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(purposes, critical=False)
        .sign(anybody, hashes.SHA256())
    )
    return (
        issuer.public_bytes(Encoding.PEM),
        certificate.public_bytes(Encoding.PEM),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, *, authority: bool
) -> x509.CertificateBuilder:
    blank = x509.CertificateBuilder().not_valid_before(BEGINS).not_valid_after(ENDS)
    named = blank.subject_name(subject).issuer_name(issuer).serial_number(x509.random_serial_number()).public_key(key)
    return named.add_extension(x509.BasicConstraints(ca=authority, path_length=0 if authority else None), critical=True)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


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


if __name__ == "__main__":
    sys.stdout.buffer.write(b"".join(make_certificate()))
