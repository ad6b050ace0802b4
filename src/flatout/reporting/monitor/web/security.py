"""Who may read the page: everything that the server asks of a request before it answers.

The page listens on this machine alone unless it has TLS. A token of 256 bits stands in the part of
the address that no browser sends; the page gives it once for a cookie that no script can read. The
name in `Host` must be one of ours: a token alone does not stop a foreign page whose name has been
pointed at this machine.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field

from flatout.nouns.errors import UserError

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


@dataclass(frozen=True)
class Access:
    """The rules of one server."""

    names: frozenset[str]
    """What may stand in Host, lower case, with the port."""
    scheme: str
    port: int = 0
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))

    @property
    def cookie_value(self) -> str:
        """What the cookie holds: the token cannot be computed from it."""
        return hashlib.sha256(f"cookie {self.token}".encode()).hexdigest()

    @property
    def cookie_name(self) -> str:
        """One for each port: browsers share cookies among the ports of a machine."""
        return f"flatout-{self.port}"

    @property
    def cookie(self) -> str:
        """The header that sets it."""
        secure = "; Secure" if self.scheme == "https" else ""
        return f"{self.cookie_name}={self.cookie_value}; HttpOnly; SameSite=Strict; Path=/{secure}"

    def knows_host(self, host: str | None) -> bool:
        """Whether the request was meant for this server."""
        return host is not None and host.strip().lower() in self.names

    def knows_origin(self, origin: str | None, required: bool) -> bool:
        """Whether the page that asks is ours; a browser that says nothing of it may do so once."""
        if origin is None:
            return not required
        scheme, separator, name = origin.partition("://")
        return bool(separator) and scheme == self.scheme and name.lower() in self.names

    def accepts_token(self, token: object) -> bool:
        """Compared in constant time."""
        return isinstance(token, str) and hmac.compare_digest(
            token.encode("utf-8", "replace"), self.token.encode()
        )

    def accepts_cookies(self, header: str | None) -> bool:
        """Whether our cookie is among them."""
        for part in (header or "").split(";"):
            name, _, value = part.strip().partition("=")
            if name == self.cookie_name and hmac.compare_digest(
                value.encode("utf-8", "replace"), self.cookie_value.encode()
            ):
                return True
        return False


def access(listen: str | None, port: int, tls: bool) -> Access:
    """The rules of a server on this address. Raises UserError for one that would be open to all."""
    if listen is not None and not tls and not _is_loopback(listen):
        raise UserError(
            f"the page is not served on {listen} without TLS: anybody on the network could read it",
            "add --tls FILE with a certificate and its key, or forward the port with ssh -L",
        )
    names = set(LOOPBACK)
    if listen is not None:
        names.add(f"[{listen}]" if ":" in listen else listen)
        names |= {socket.gethostname(), socket.getfqdn()}
    scheme = "https" if tls else "http"
    default = 443 if tls else 80
    allowed = {f"{name.lower()}:{port}" for name in names}
    if port == default:
        allowed |= {name.lower() for name in names}
    return Access(frozenset(allowed), scheme, port)


def policy(scripts: Iterable[str], styles: Iterable[str]) -> str:
    """The page's own policy: these scripts and styles, by their text, and nothing else."""
    script = " ".join(f"'{_hash(text)}'" for text in scripts)
    style = " ".join(f"'{_hash(text)}'" for text in styles)
    return (
        f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _hash(text: str) -> str:
    import base64

    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"


def _is_loopback(address: str) -> bool:
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
