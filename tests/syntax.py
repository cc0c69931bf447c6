"""Finds a function in the syntax tree of a file by its dotted name; the zoo and the labs change such functions."""

from __future__ import annotations

import ast

Function = ast.FunctionDef | ast.AsyncFunctionDef


class NoSuchFunction(Exception):
    """A file does not have exactly one function of a name."""


def find_function(tree: ast.Module, symbol: str) -> Function:
    """Return the function of a dotted name, such as ``Class.function``. Raises NoSuchFunction."""
    scope: ast.AST = tree
    for name in symbol.split("."):
        found = [
            node
            for node in getattr(scope, "body", [])
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == name
        ]
        if len(found) != 1:
            raise NoSuchFunction(f"{symbol}: {name} is there {len(found)} times")
        scope = found[0]
    if not isinstance(scope, Function):
        raise NoSuchFunction(f"{symbol} is a class, not a function")
    return scope
