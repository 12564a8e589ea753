"""Which names a function binds, declares, imports and writes, read from its syntax tree."""

from __future__ import annotations

import ast
import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

UNKNOWN: Any = object()  # stands for what is known only when the function runs


def is_filled(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:  # a name that is assigned only later
        return False
    return True


def bound_names(function: ast.AST) -> Iterator[str]:
    """Names that a function and those inside of it bind."""
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node is not function:
            yield node.name
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
            yield node.name or ""
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name.split(".", 1)[0]


def declared(function: ast.AST) -> set[str]:
    return {name for node in ast.walk(function) if isinstance(node, ast.Global) for name in node.names}


def written_globals(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, ast.AST]]:
    """Names declared global, or nonlocal by the handler itself, where they are written."""
    outer = declared(function)
    own = {name for node in own_nodes(function) if isinstance(node, ast.Nonlocal) for name in node.names}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del) and node.id in outer | own:
            yield node.id, node


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Without those of inner functions."""
    todo = list(ast.iter_child_nodes(function))
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            todo.extend(ast.iter_child_nodes(node))


def imports(function: ast.AST) -> Iterator[tuple[str, str]]:
    """Names that the function imports itself, with the dotted names of what they stand for."""
    for node in ast.walk(function):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".", 1)[0]
                yield alias.asname or top, alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def loaded(path: str) -> Any:
    """The object of a dotted name, as far as it is loaded already or of the standard library."""
    module, _, attribute = path.rpartition(".")
    if path in sys.modules:
        return sys.modules[path]
    if path.split(".", 1)[0] in sys.stdlib_module_names:
        with contextlib.suppress(ImportError):
            return importlib.import_module(path)
        with contextlib.suppress(ImportError):
            return getattr(importlib.import_module(module), attribute, UNKNOWN)
    return getattr(sys.modules.get(module), attribute, UNKNOWN)


def wait_sets(function: ast.AST, is_wait: Callable[[ast.AST], bool]) -> Iterator[str]:
    """Names that hold the sets of an asyncio.wait."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and is_wait(node.value):
            for target in node.targets:
                if isinstance(target, ast.Tuple | ast.List):
                    yield from (item.id for item in target.elts if isinstance(item, ast.Name))
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript) and is_wait(node.value.value):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
