"""The only access to Kubernetes: kubectl, with its messages made plain."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flatout.launching import engine_calls
from flatout.launching.engine_calls import ToolAnswer
from flatout.nouns.errors import UserError

INSTALL = "install kubectl: https://kubernetes.io/docs/tasks/tools/"
LIMIT_S = 15
"""Time limit of one question to the API server."""
FAILURES: tuple[tuple[str, str, str], ...] = (
    (
        r"localhost:8080|no configuration has been provided|current-context must exist",
        "kubectl knows no cluster",
        "choose one: kubectl config get-contexts; then --set context=NAME",
    ),
    (
        r"context .* does not exist|no context exists with the name|context was not found",
        "kubectl has no such context",
        "choose one of: kubectl config get-contexts -o name",
    ),
    (
        r"must be logged in|Unauthorized|provide credentials|token .*expired|"
        r"executable .* not found|getting credentials|invalid_grant|reauth",
        "the cluster does not know you: you are not logged in",
        "log in as for any other kubectl command, then try: kubectl get pods",
    ),
    (
        r"x509|certificate (?:signed|has expired|is not)",
        "the cluster's certificate is not accepted",
        "try: kubectl version; the cluster's entry in your kubeconfig may be out of date",
    ),
    (
        r"connection refused|was refused|no such host|i/o timeout|TLS handshake|deadline exceeded|"
        r"Unable to connect|network is unreachable|no route to host|EOF$|did not answer within|"
        r"Client\.Timeout",
        "the cluster does not answer",
        "is it up, and are you in its network (VPN)? try: kubectl version",
    ),
)


@dataclass(frozen=True)
class Kubectl:
    """kubectl for one context and namespace; empty means the user's current ones."""

    context: str = ""
    namespace: str = ""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Kubectl:
        """For the context and namespace in a launch's options."""
        return cls(options.get("context", ""), options.get("namespace", ""))

    def command(self, *words: str) -> list[str]:
        """The whole command line with these words."""
        chosen = ["--context", self.context] if self.context else []
        chosen += ["--namespace", self.namespace] if self.namespace else []
        return ["kubectl", *chosen, *words]

    def ask(self, *words: str, given: str | None = None, limit_s: float = LIMIT_S) -> ToolAnswer:
        """Its answer. Never raises."""
        command = self.command(*words, f"--request-timeout={limit_s:.0f}s")
        return engine_calls.ask(command, limit_s + 5, given=given)

    def need(self, *words: str, given: str | None = None, limit_s: float = LIMIT_S) -> str:
        """Its output. Raises UserError if it fails."""
        answer = self.ask(*words, given=given, limit_s=limit_s)
        if answer.returncode:
            raise failure(answer)
        return answer.stdout

    def read(self, *words: str) -> Any:
        """The document that it prints, or None if there is none or it does not answer."""
        answer = self.ask(*words, "--output", "json")
        if answer.returncode:
            return None
        try:
            return json.loads(answer.stdout)
        except ValueError:
            return None

    def status(self, resource: str, name: str) -> tuple[Mapping[str, Any] | None, ToolAnswer]:
        """An object's status, or None, and the answer it is from, which says why there is none."""
        answer = self.ask("get", resource, name, "--output", "json")
        if answer.returncode:
            return None, answer
        try:
            return json.loads(answer.stdout).get("status") or {}, answer
        except ValueError:
            return None, ToolAnswer(-1, "", "kubectl's answer is not JSON")

    def tried(self, text: str) -> ToolAnswer:
        """Have the API server check objects without keeping them. Raises UserError on refusal."""
        words = ("create", "--dry-run=server", "--validate=strict", "--filename", "-")
        answer = self.ask(*words, given=text)
        if answer.returncode:
            raise failure(answer)
        return answer

    def allowed(self, verb: str, resource: str) -> bool:
        """Whether the user may do that in the namespace. Raises UserError without an answer."""
        answer = self.ask("auth", "can-i", verb, resource)
        said = answer.stdout.strip().split(" ")[0]
        if said not in ("yes", "no"):
            raise failure(answer)
        return said == "yes"


def missing(answer: ToolAnswer) -> bool:
    """Whether the cluster answered that there is no such object."""
    words = r"\(NotFound\)|could not find the requested resource|doesn't have a resource type"
    return bool(re.search(words, answer.stderr))


def failure(answer: ToolAnswer) -> UserError:
    """What went wrong, and what to do."""
    text = answer.stderr or answer.stdout
    for pattern, message, next_step in FAILURES:
        if re.search(pattern, text, re.IGNORECASE | re.MULTILINE):
            return UserError(f"{message} (kubectl: {said(answer)})", next_step)
    if "(Forbidden)" in text or "forbidden" in text:
        next_step = "ask whoever runs the cluster, or name another one: --set namespace=my-team"
        return UserError(f"the cluster does not allow it: {said(answer)}", next_step)
    if "AlreadyExists" in text:
        return UserError(said(answer), "give the job another name: --name my-run-2")
    return UserError(f"Kubernetes rejects the job: {said(answer)}", "see the file: --dry-run")


def said(answer: ToolAnswer) -> str:
    """Its complaint in one line, without the usual opening words."""
    lines = [line.strip() for line in (answer.stderr or answer.stdout).splitlines()]
    lines = [line for line in lines if line and not _noise(line)]
    text = "; ".join(lines) or answer.said
    text = re.sub(r"^(?:error: |Error from server(?: \(\w+\))?: )+", "", text)
    text = re.sub(r'error when creating "STDIN": ', "", text)
    return text if len(text) < 600 else f"{text[:600]} ..."


def warnings(answer: ToolAnswer) -> tuple[str, ...]:
    """The cluster's warnings."""
    begin = "Warning: "
    lines = answer.stderr.splitlines()
    return tuple(line.removeprefix(begin) for line in lines if line.startswith(begin))


def _noise(line: str) -> bool:
    """Whether the line is a warning or part of its log."""
    return bool(re.match(r"[EWI]\d{4} |Warning: |Unable to connect to the server: getting", line))
