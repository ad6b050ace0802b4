"""Names functions that may be too long to read in one go. `make lint` runs it."""

import ast

from sources import FILES, name, tree

LINES = 60

for path in FILES:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            lines = node.end_lineno - node.lineno + 1
            if lines > LINES:
                place = f"src/{name(path)}:{node.lineno}"
                print(f"warning: {place}: {node.name} has {lines} lines: is it one thing?")
