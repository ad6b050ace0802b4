"""The book of alerts: what rules say each second becomes pending, firing and resolved alerts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flatout.nouns.alert import Alert
from flatout.nouns.finding import Severity
from flatout.watching import rules
from flatout.watching.rules import Breach, RuleModule, View

CLEARS_S = 10.0
"""An alert is resolved when its rule has not held for this long."""
KEPT_S = 3600.0
"""A resolved alert is shown for this long."""
MOST_ALERTS = 200
LONGEST_LOOK_S = 10.0
"""The most watched time between two looks; the rest was slept through and does not count."""
SEVERITIES = list(Severity)
STATES = ("firing", "pending", "resolved")
Key = tuple[str, str, str, str]
Question = tuple[str, str, str, bool]
"""A rule's code, the machine, the job, and whether the job has ended."""


class AlertBook:
    """The alerts of one machine's jobs. A rule that fails is named and never asked again."""

    def __init__(self, modules: Sequence[RuleModule] | None = None) -> None:
        self._modules = list(rules.every() if modules is None else modules)
        self._open: dict[Key, Alert] = {}
        self._began: dict[Key, float] = {}
        self._held: dict[Key, float] = {}
        """When the rule began to hold, and when it last held, in watched time."""
        self._watched_s = 0.0
        """Advances only while somebody looks, and never goes back, whatever the clock does."""
        self._last_s: float | None = None
        self._answered: dict[Question, tuple[float, list[Breach]]] = {}
        """The last answers of rules that are not asked at each look, with their watched time."""
        self._resolved: list[Alert] = []
        self.notes: list[str] = []
        """Sentences about rules that are no longer asked."""

    def update(self, views: Sequence[View]) -> tuple[Alert, ...]:
        """Ask all rules about each view. Returns the current alerts, the worst first."""
        now_s = max((view.now_s for view in views), default=0.0)
        if self._last_s is not None:
            self._watched_s += min(LONGEST_LOOK_S, max(0.0, now_s - self._last_s))
        self._last_s = now_s
        for view in views:
            for module in list(self._modules):
                for breach in self._answers(module, view):
                    self._hold(module, view, breach)
        self._resolve(now_s, views)
        return self.alerts

    @property
    def alerts(self) -> tuple[Alert, ...]:
        """All alerts: firing, pending, then resolved."""
        shown = [*self._open.values(), *reversed(self._resolved)]
        shown.sort(key=lambda alert: (STATES.index(alert.state), SEVERITIES.index(alert.severity)))
        return tuple(shown[:MOST_ALERTS])

    def _answers(self, module: RuleModule, view: View) -> list[Breach]:
        job, every_s = view.job, module.RULE.every_s
        ended = job is not None and job.ended_s is not None
        question = module.RULE.code, view.hostname, job.id if job is not None else "", ended
        asked_s, answers = self._answered.get(question, (-every_s, []))
        if self._watched_s - asked_s < every_s:
            return answers
        try:
            answers = list(module.check(view))
            if every_s:
                self._answered[question] = self._watched_s, answers
            return answers
        except Exception as error:
            self._modules.remove(module)
            text = f"the rule {module.RULE.code} failed and is left out: {error!r}"
            self.notes.append(text)
            return []

    def _hold(self, module: RuleModule, view: View, breach: Breach) -> None:
        job = view.job.id if view.job is not None else None
        key = module.RULE.code, view.hostname, job or "", breach.subject
        known = self._open.get(key)
        if known is None and (not breach.fires or len(self._open) >= MOST_ALERTS):
            return
        self._held[key] = self._watched_s
        began_s = self._began.setdefault(key, self._watched_s)
        since_s = known.since_s if known is not None else breach.since_s or view.now_s
        firing = known is not None and known.state == "firing"
        if not firing and breach.fires and self._watched_s - began_s >= breach.hold_s:
            firing = True
        fired_s = known.fired_s if known is not None else None
        self._open[key] = Alert(
            code=module.RULE.code,
            id=rules.id_of(module),
            severity=breach.severity or module.RULE.severity,
            state="firing" if firing else "pending",
            since_s=since_s,
            title=breach.title,
            evidence=breach.evidence,
            cure=breach.cure,
            hostname=view.hostname,
            job=job,
            subject=breach.subject,
            where=breach.where,
            boost=breach.boost,
            fired_s=(fired_s or view.now_s) if firing else None,
        )

    def _resolve(self, now_s: float, views: Sequence[View]) -> None:
        """Close what no longer holds. Why a job died stays true as long as it is shown."""
        shown = {view.job.id: view.job for view in views if view.job is not None}
        for key, alert in list(self._open.items()):
            job = shown.get(alert.job or "")
            forgotten = alert.job is not None and job is None
            ended = job is not None and job.ended_s is not None
            if ended and alert.state == "firing":
                continue
            if not forgotten and self._watched_s - self._held[key] < CLEARS_S:
                continue
            del self._open[key], self._held[key], self._began[key]
            if alert.state == "firing" and not forgotten:
                self._resolved.append(replace(alert, state="resolved", resolved_s=now_s))
        for question in [q for q in self._answered if q[2] and q[2] not in shown]:
            del self._answered[question]
        limit = now_s - KEPT_S
        self._resolved = [
            alert
            for alert in self._resolved[-MOST_ALERTS:]
            if (alert.resolved_s or 0) > limit and alert.job in (None, *shown)
        ]
