"""Ray's jobs, through its dashboard's address."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.nouns.errors import UserError

DEFAULT = "http://127.0.0.1:8265"
LIMIT_S = 10.0
START = "start one: ray start --head; or name it: --set address=http://HOST:8265"


@dataclass(frozen=True)
class RayApi:
    """One cluster."""

    address: str

    def version(self) -> str:
        """Ray's version there. Raises UserError if nothing, or something else, answers."""
        answer = self.need("GET", "/api/version")
        version = answer.get("ray_version") if isinstance(answer, dict) else None
        if not isinstance(version, str):
            raise UserError(f"the server at {self.address} is not a Ray cluster", START)
        return version

    def need(self, method: str, path: str) -> Any:
        """The dashboard's answer. Raises UserError."""
        try:
            return self._ask(method, path)
        except urllib.error.HTTPError as error:
            text = error.read(500).decode("utf-8", "replace")
            error.close()
            if error.code in (401, 403):
                raise UserError(
                    f"the Ray cluster at {self.address} does not know you ({error.code})",
                    "set RAY_AUTH_TOKEN, or RAY_JOB_HEADERS, as for ray job list",
                ) from error
            said = text.strip().splitlines()
            raise UserError(
                f"Ray at {self.address} answers {error.code}: {said[-1] if said else error.reason}",
                f"look at {self.address}",
            ) from error
        except (OSError, ValueError) as error:
            why = getattr(error, "reason", error)
            raise UserError(f"no Ray cluster answers at {self.address}: {why}", START) from error

    def read(self, path: str) -> Any:
        """The dashboard's answer, or None if it gives none."""
        try:
            return self._ask("GET", path)
        except urllib.error.HTTPError as error:
            error.close()
        except (OSError, ValueError):
            pass
        return None

    def nodes(self) -> list[Mapping[str, float]]:
        """The resources of each node: CPU, GPU ...; empty if unknown."""
        answer = self.read("/api/v0/nodes?limit=10000")
        try:
            rows = answer["data"]["result"]["result"]
            return [row["resources_total"] for row in rows if row["state"] == "ALIVE"]
        except (KeyError, TypeError):
            return []

    def _ask(self, method: str, path: str) -> Any:
        # The headers that Ray's own command sends.
        headers: dict[str, str] = {"Accept": "application/json"}
        try:
            given = json.loads(os.environ.get("RAY_JOB_HEADERS") or "{}")
            headers |= {str(name): str(value) for name, value in given.items()}
        except (ValueError, AttributeError):
            pass
        token = os.environ.get("RAY_AUTH_TOKEN")
        if not token:
            file = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token")
            with suppress(OSError):
                token = file.expanduser().read_text(encoding="utf-8").strip()
        if token:
            headers["Authorization"] = f"Bearer {token}"
        request = urllib.request.Request(
            self.address.rstrip("/") + path, method=method, headers=headers
        )
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            return json.loads(answer.read())


def address(asked: str) -> str:
    """The cluster's address: as requested, from Ray's variables, or local. Raises UserError."""
    found = asked or os.environ.get("RAY_API_SERVER_ADDRESS") or os.environ.get("RAY_ADDRESS") or ""
    if not found or found in ("auto", "local"):
        return DEFAULT
    if found.startswith(("http://", "https://")):
        return found.rstrip("/")
    if asked:
        raise UserError(
            f"--set address={asked} is not the address of a dashboard",
            "--set address=http://HOST:8265",
        )
    return DEFAULT  # RAY_ADDRESS may name the other port, which accepts no jobs
