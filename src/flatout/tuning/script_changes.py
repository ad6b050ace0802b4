"""The boosts of a plan as changes of the user's script: with its own names, at its own lines.

What a boost asks for is read from its lines by hand, and what the script calls it from its syntax:

- one call with constant arguments, such as `DataLoader(dataset, num_workers=3)`, gives these
  arguments to the script's calls of that class;
- `with torch.autocast(...): output = model(inputs)` goes around the calls that training makes of
  the script's models: evaluation keeps the script's precision;
- lines that use nothing of the script follow its imports;
- lines that use the model alone stand before the optimizer is made.

What can not be told from the syntax stays a template, with the reason.
"""

from __future__ import annotations

import ast

from flatout.nouns.ejected import EjectedBoost
from flatout.tuning.script_evaluation import Use, use
from flatout.tuning.script_syntax import ScriptText, UnclearError, free, made
from flatout_agent.wire import JobFacts

LOADER = "torch.utils.data.DataLoader"
CHANNELS_LAST = "memory_format=torch.channels_last"
OF_A_TENSOR = {"shape", "dtype", "device", "data", "grad", "T", "mT", "ndim", "requires_grad"}
"""Attributes that a tensor has and that are not called."""
NOT_ALWAYS_RUN = (
    ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.IfExp, ast.BoolOp,
)  # fmt: skip
RUN_ONCE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Return)
BY_POSITION = 5
"""Arguments of a DataLoader that stand before those that boosts set."""


def with_boost(text: str, boost: EjectedBoost, facts: JobFacts | None) -> str:
    """The script's text with one boost in it. Raises UnclearError, with why it cannot be.

    facts: of the program as written, or None if nothing is known of it.
    """
    script = ScriptText(text)
    hand = ast.parse("\n".join(boost.lines))
    if boost.where == "environment":
        raise UnclearError("it is set before Python starts")
    if boost.id == "channels-last":
        _channels_last(script)
    elif boost.id == "clip-grad":
        _give_to_calls(script, "torch.nn.utils.clip_grad_norm_", {"foreach": "True"})
    elif calls := _constant_calls(hand):
        for call in calls:
            wanted = {str(word.arg): ast.unparse(word.value) for word in call.keywords}
            if "num_workers" in wanted:
                _check_workers(script, facts)
            is_loader = ast.unparse(call.func) == "DataLoader"
            _give_to_calls(script, LOADER if is_loader else ast.unparse(call.func), wanted)
        if settings := [ast.unparse(node) for node in hand.body if _is_setting(node)]:
            script.add_after_imports(settings)
    elif hand.body and isinstance(hand.body[0], ast.With):
        _run_calls_within(script, boost.lines[0].removeprefix("with ").removesuffix(":"))
    else:
        _add_lines(script, boost, hand)
    return script.edited()


def _add_lines(script: ScriptText, boost: EjectedBoost, hand: ast.Module) -> None:
    """Lines that use nothing of the script, or its models alone."""
    uses = free(hand)
    if clashes := sorted(made(hand) & made(script.tree) - {"model"}):
        raise UnclearError(f"the script has something called {clashes[0]} of its own")
    if not hand.body:
        raise UnclearError("it has no lines of Python")
    if not uses and "model" not in made(hand):
        script.add_after_imports(boost.lines)
        return
    if set(uses) - {"model"} or boost.params.get("scope") == "blocks":
        raise UnclearError("flatout cannot tell where in the script its lines belong")
    for statement, model in _optimized(script):
        places = [node for node in ast.walk(hand) if isinstance(node, ast.Name)]
        lines = list(boost.lines)
        for node in sorted(places, key=lambda node: node.col_offset, reverse=True):
            if node.id == "model":
                line = lines[node.lineno - 1]
                end = node.col_offset + len(node.id)
                lines[node.lineno - 1] = line[: node.col_offset] + model + line[end:]
        script.add_before(statement, lines)
    script.add_after_imports([])


def _optimized(script: ScriptText) -> list[tuple[ast.stmt, str]]:
    """Statements that make an optimizer, with the model whose parameters it takes."""
    found: list[tuple[ast.stmt, str]] = []
    for call in script.calls():
        name = script.name(call.func)
        if not name.startswith("torch.optim.") or not call.args or ".lr_scheduler." in name:
            continue
        for part in ast.walk(call):
            if isinstance(part, ast.Attribute) and part.attr in ("parameters", "named_parameters"):
                model = ast.unparse(part.value)
                if model != "self" and not any(model == other for _, other in found):
                    found.append((script.statement(call), model))
    if not found:
        raise UnclearError("the script does not show which model its optimizer is made for")
    return found


# Arguments of calls -------------------------------------------------------------------------------


def _is_setting(node: ast.stmt) -> bool:
    """Whether a line calls something of torch and uses nothing of the script."""
    return isinstance(node, ast.Expr) and not free(node)


def _constant_calls(hand: ast.Module) -> list[ast.Call]:
    """The calls, if each line but settings is one of something of the script with constants."""
    calls = []
    for node in hand.body:
        if _is_setting(node):
            continue
        call = node.value if isinstance(node, ast.Assign) else None
        if not isinstance(call, ast.Call) or not call.keywords or len(call.args) != 1:
            return []
        own = ast.unparse(call.args[0])
        constant = all(isinstance(word.value, ast.Constant) for word in call.keywords)
        if own not in ("dataset", "model.parameters()") or not constant:
            return []
        calls.append(call)
    return calls


def _check_workers(script: ScriptText, facts: JobFacts | None) -> None:
    """Raises UnclearError where worker processes would not do."""
    loaders = facts.loaders if facts is not None else ()
    if any(loader.iterable for loader in loaders):
        raise UnclearError("an IterableDataset must divide itself among workers")
    forks = bool(loaders) and all(loader.start_method == "fork" for loader in loaders)
    if not forks and "__name__ ==" not in ast.unparse(script.tree):
        raise UnclearError('workers need the training inside `if __name__ == "__main__":`')


def _give_to_calls(script: ScriptText, name: str, wanted: dict[str, str]) -> None:
    """Give these arguments to each call of `name` in the script."""
    calls = [call for call in script.calls() if script.name(call.func) == name]
    if not calls:
        raise UnclearError(f"the script does not call {name.rpartition('.')[2]} itself")
    for call in calls:
        given = {word.arg: word.value for word in call.keywords}
        if None in given or any(isinstance(value, ast.Starred) for value in call.args):
            raise UnclearError(f"line {call.lineno} takes its arguments from a list or a dict")
        if len(call.args) > BY_POSITION:
            raise UnclearError(f"line {call.lineno} gives its arguments by position")
        new = []
        for word, value in wanted.items():
            before = given.get(word)
            if before is None:
                new.append(f"{word}={value}")
            elif not isinstance(before, ast.Constant):
                said = f"{word}={ast.unparse(before)}"
                raise UnclearError(f"line {before.lineno} says {said}: change it to {value}")
            else:
                script.replace(*script.span(before), value)
        if new:
            script.append_arguments(call, ", ".join(new))


# Calls of models ----------------------------------------------------------------------------------


def _model_calls(script: ScriptText) -> list[ast.Call]:
    """Calls of models, which are what the script asks for parameters. May raise UnclearError."""
    asked = {
        ast.unparse(call.func.value)
        for call in script.calls()
        if isinstance(call.func, ast.Attribute)
        and call.func.attr in ("parameters", "named_parameters")
    }
    calls = [call for call in script.calls() if ast.unparse(call.func) in asked - {"self"}]
    if not calls:
        raise UnclearError("the script does not call its model itself")
    return calls


def _channels_last(script: ScriptText) -> None:
    for call in _model_calls(script):
        if len(call.args) != 1 or call.keywords or isinstance(call.args[0], ast.Starred):
            raise UnclearError(f"which arguments of line {call.lineno} are images is not clear")
        source = script.source(call.args[0])
        if not isinstance(call.args[0], ast.Name | ast.Call | ast.Attribute | ast.Subscript):
            source = f"({source})"
        script.replace(*script.span(call.args[0]), f"{source}.to({CHANNELS_LAST})")
    for statement, model in _optimized(script):
        script.add_before(statement, [f"{model}.to({CHANNELS_LAST})"])
    script.add_after_imports([])


def _run_calls_within(script: ScriptText, context: str) -> None:
    """Run the calls of models that train inside `with context`, and go on in float32.

    A call in a function that training and evaluation share is inside where gradients are recorded.
    """
    names = {node.id for node in ast.walk(script.tree) if isinstance(node, ast.Name)}
    names |= made(script.tree)
    fresh = next(name for name in ("output", "model_output", "output_") if name not in names)
    uses = {call: use(script, call) for call in _model_calls(script)}
    calls = [call for call in uses if Use.TRAINING in uses[call]]
    if not calls:
        raise UnclearError("the script calls its model in evaluation alone")
    around = [script.statement(call) for call in calls]
    for call, statement in zip(calls, around, strict=True):
        if around.count(statement) > 1:
            raise UnclearError(f"line {statement.lineno} calls more than one model")
        indent = script.indent(statement)
        value = getattr(statement, "value", None)
        if value is call and isinstance(statement, ast.Assign | ast.Expr):
            inside, after = script.source(statement), _casts(script, statement)
        else:
            _check_always_runs(script, call, statement)
            start, end = (place - script.span(statement)[0] for place in script.span(call))
            source = script.source(statement).encode()
            used = f"{fresh}.float()" if _is_tensor(script, call) else fresh
            inside = f"{fresh} = {script.source(call)}"
            after = [source[:start].decode() + used + source[end:].decode()]
        texts = (node for node in ast.walk(call) if isinstance(node, ast.Constant | ast.JoinedStr))
        if any(text.lineno != text.end_lineno for text in texts):  # it would be indented, too
            raise UnclearError(f"line {call.lineno} holds a text of several lines")
        inside = inside.replace("\n", "\n    ")
        shared = Use.EVALUATION in uses[call]
        given = f"{context[:-1]}, enabled=torch.is_grad_enabled())" if shared else context
        lines = [f"with {given}:", f"{indent}    {inside}", *(indent + line for line in after)]
        script.replace(*script.span(statement), "\n".join(lines))
    script.add_after_imports([])


def _check_always_runs(script: ScriptText, call: ast.Call, statement: ast.stmt) -> None:
    """Raises UnclearError where the call is not one that its statement makes once."""
    simple = isinstance(statement, RUN_ONCE)
    node: ast.AST = call
    while simple and node is not statement:
        node = script.parents[node]
        simple = not isinstance(node, NOT_ALWAYS_RUN)
    if not simple:
        raise UnclearError(f"line {call.lineno} calls the model in the middle of something else")


def _is_tensor(script: ScriptText, value: ast.expr) -> bool:
    """Whether the script uses a value as a tensor, not as an object with fields.

    Raises UnclearError where it could be either.
    """
    parent = script.parents[value]
    if isinstance(parent, ast.Attribute):
        called = script.parents[parent]
        is_method = isinstance(called, ast.Call) and called.func is parent
        return is_method or parent.attr in OF_A_TENSOR
    if isinstance(parent, ast.Subscript) and parent.value is value:
        if isinstance(parent.slice, ast.Constant) and isinstance(parent.slice.value, str):
            return False
        if isinstance(parent.slice, ast.Constant | ast.UnaryOp):
            raise UnclearError(f"line {value.lineno} takes a part of what the model returns")
    if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Tuple | ast.List):
        raise UnclearError(f"line {value.lineno} takes apart what the model returns")
    return True


def _casts(script: ScriptText, statement: ast.Assign | ast.Expr) -> list[str]:
    """Lines that make float32 of what a statement takes from its model, where a loss needs it."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    if not targets:
        return []
    if len(targets) > 1:
        raise UnclearError(f"line {statement.lineno} gives the model's output several names")
    names = [targets[0]]
    if several := isinstance(targets[0], ast.Tuple | ast.List):
        names = targets[0].elts
    casts = []
    for target in names:
        name = ast.unparse(target)
        uses = [
            node
            for node in ast.walk(script.scope(statement))
            if isinstance(node, ast.Name | ast.Attribute)
            and isinstance(node.ctx, ast.Load)
            and ast.unparse(node) == name
        ]
        wanted = not several or any(_goes_to_a_loss(script, use) for use in uses)
        if wanted and all(_is_tensor(script, use) for use in uses):
            casts.append(f"{name} = {name}.float()")
    return casts


def _goes_to_a_loss(script: ScriptText, use: ast.expr) -> bool:
    """Whether a value, or what a method makes of it, is an argument of a loss."""
    node: ast.AST = use
    while (parent := script.parents[node]) and isinstance(parent, ast.Attribute | ast.Call):
        if isinstance(parent, ast.Call) and parent.func is not node:
            named = ast.unparse(parent.func).lower()
            return (
                script.name(parent.func).startswith("torch.nn.functional.")
                or "loss" in named
                or "criterion" in named
            )
        node = parent
    return False
