"""Who may read the page: everything that the server checks before it answers a request.

The page listens on this machine only. A token of 256 bits is in the part of the address that no
browser sends; the page exchanges it once for a cookie that no script can read. The name in `Host`
must be one of ours: a token alone does not stop a foreign page whose name now points at this
machine.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field

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

    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))

    @property
    def names(self) -> frozenset[str]:
        """The names allowed in Host, in lower case; a browser leaves out the default port."""
        names = {f"{name}:{self.port}" for name in LOOPBACK}
        return frozenset({*names, *LOOPBACK} if self.port == 80 else names)

    @property
    def cookie_value(self) -> str:
        """The cookie's value: the token cannot be computed from it."""
        return hashlib.sha256(f"cookie {self.token}".encode()).hexdigest()

    @property
    def cookie_name(self) -> str:
        """One for each port: browsers share cookies among a machine's ports."""
        return f"flatout-{self.port}"

    @property
    def cookie(self) -> str:
        """The header that sets the cookie."""
        return f"{self.cookie_name}={self.cookie_value}; HttpOnly; SameSite=Strict; Path=/"

    def knows_host(self, host: str | None) -> bool:
        """Whether the request was meant for this server."""
        return host is not None and host.strip().lower() in self.names

    def knows_origin(self, origin: str | None, required: bool) -> bool:
        """Whether the asking page is ours; if the browser does not say, only if not `required`."""
        if origin is None:
            return not required
        scheme, separator, name = origin.partition("://")
        return bool(separator) and scheme == "http" and name.lower() in self.names

    def accepts_token(self, token: object) -> bool:
        """Whether the token is ours, compared in constant time."""
        return isinstance(token, str) and hmac.compare_digest(
            token.encode("utf-8", "replace"), self.token.encode()
        )

    def accepts_cookies(self, header: str | None) -> bool:
        """Whether our cookie is in the header."""
        for part in (header or "").split(";"):
            name, _, value = part.strip().partition("=")
            if name == self.cookie_name and hmac.compare_digest(
                value.encode("utf-8", "replace"), self.cookie_value.encode()
            ):
                return True
        return False


def policy(scripts: Iterable[str], styles: Iterable[str]) -> str:
    """The page's own policy: only these scripts and styles, by their text."""
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
