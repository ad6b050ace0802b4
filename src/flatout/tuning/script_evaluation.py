"""Whether a call in a script is made in training, in evaluation, or in both, from its syntax.

What the syntax does not show counts as training.
"""

from __future__ import annotations

import ast
from enum import Flag, auto

from flatout.tuning.script_syntax import ScriptText

OF_MODULES = ("forward", "train", "eval", "step")
_LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)


class Use(Flag):
    """When a call is made."""

    TRAINING = auto()
    EVALUATION = auto()


def use(script: ScriptText, call: ast.Call) -> Use:
    """When the script makes a call of a model.

    Evaluation is what runs without gradients or right after `model.eval()`, itself or all that
    calls it. A model that is called without gradients in each training step, such as a teacher,
    belongs to training.
    """
    if _in_eval_mode(script, call):
        return Use.EVALUATION
    return _use(script, call, frozenset())


def _use(script: ScriptText, node: ast.AST, inside: frozenset[ast.AST]) -> Use:
    """inside: functions that the search came from, so that recursion ends."""
    if shown := _without_gradients(script, node):
        return shown
    function = script.scope(node)
    if isinstance(function, ast.Module):
        return Use.TRAINING
    found = Use(0)
    if function in inside:
        return found
    for place in _mentions(script, function):
        parent = script.parents[place]
        called = isinstance(parent, ast.Call) and parent.func is place
        found |= _use(script, parent, inside | {function}) if called else Use.TRAINING
    return found or Use.TRAINING


def _mentions(script: ScriptText, function: ast.AST) -> list[ast.expr]:
    """Where a function is named; nowhere if calls of torch's own may have the same name."""
    name = getattr(function, "name", "")
    if not isinstance(script.parents[function], ast.ClassDef):
        names = (node for node in ast.walk(script.tree) if isinstance(node, ast.Name))
        return [node for node in names if node.id == name]
    if name in OF_MODULES or name.startswith("__"):
        return []
    fields = (node for node in ast.walk(script.tree) if isinstance(node, ast.Attribute))
    return [node for node in fields if node.attr == name]


def _without_gradients(script: ScriptText, node: ast.AST) -> Use:
    """What the blocks and decorators around a place in its function say; nothing: no flag."""
    scope, inner, parent = script.scope(node), node, script.parents.get(node)
    switches: list[ast.expr] = list(getattr(scope, "decorator_list", ()))
    while parent is not None and inner is not scope:
        if isinstance(parent, ast.With) and inner in parent.body:
            switches += [item.context_expr for item in parent.items]
        inner, parent = parent, script.parents.get(parent)
    found = Use(0)
    for switch in switches:
        found |= _switched(script, switch)
    teaches = found is Use.EVALUATION and _belongs_to_a_step(script, node)
    return Use.TRAINING if teaches else found


def _switched(script: ScriptText, switch: ast.expr) -> Use:
    """What a context or a decorator says about gradients."""
    call = switch if isinstance(switch, ast.Call) else None
    name = script.name(call.func if call else switch)
    if not name.startswith("torch."):
        return Use(0)
    name = name.rpartition(".")[2]
    if name == "set_grad_enabled" and call and call.args:
        if not isinstance(call.args[0], ast.Constant):
            return Use.TRAINING | Use.EVALUATION
        return Use(0) if call.args[0].value else Use.EVALUATION
    return Use.EVALUATION if name in ("no_grad", "inference_mode") else Use(0)


def _belongs_to_a_step(script: ScriptText, node: ast.AST) -> bool:
    """Whether the innermost loop around a place runs `backward` as often, and no `eval()`."""
    loop = _loop(script, node)
    beside = {
        call.func.attr
        for call in script.calls()
        if isinstance(call.func, ast.Attribute) and _loop(script, call) is loop
    }
    return "backward" in beside and "eval" not in beside


def _loop(script: ScriptText, node: ast.AST) -> ast.AST:
    """The innermost loop that holds a place, or its function, or the whole script."""
    node = script.parents[node]
    while not isinstance(node, _LOOPS):
        node = script.parents[node]
    return node


def _in_eval_mode(script: ScriptText, call: ast.Call) -> bool:
    """Whether `model.eval()` is the last switch above a call in a function without `backward`."""
    scope, model, mode = script.scope(call), ast.unparse(call.func), ""
    for other in sorted(script.calls(), key=lambda other: other.lineno):
        if isinstance(other.func, ast.Attribute) and script.scope(other) is scope:
            if other.func.attr == "backward":
                return False
            switches = other.func.attr in ("eval", "train") and other.lineno < call.lineno
            if switches and ast.unparse(other.func.value) == model:
                mode = "train" if other.args else other.func.attr
    return mode == "eval"
