"""Alerts: one rule per file; the folder is the table.

`<code>_<name>.py`: the name (underscores for hyphens) is the rule's id. A rule module has

    RULE = Rule(code="HANG001", severity=Severity.ERROR, since="0.2.0")

    def check(view: View) -> Iterator[Breach]

`check` is pure: no file, no process, no clock but `view.now_s`. It is called once a second for each
watched job, and once with `view.job` None for the machine alone. If a fact that it needs is None,
it yields nothing: it claims only what is known. The book of alerts (`watching.alert_book`) turns
breaches into pending, firing and resolved alerts.
The module docstring is the page that `flatout explain CODE` prints, with the headings What it sees
/ Why it matters / Cure / References; its first line says the problem in one sentence.
"""
