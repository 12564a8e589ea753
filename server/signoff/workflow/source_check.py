"""Reads a handler's source for what would differ on replay (D5).

In the handler's own body it is refused; in functions of the author that it calls it is a warning. A line that is right
all the same is marked with the comment `# signoff: allow`.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from signoff.workflow import source_names as names_of
from signoff.workflow import source_rules as rules
from signoff.workflow.errors import NondeterministicCode
from signoff.workflow.places import is_authors
from signoff.workflow.source_names import UNKNOWN

ALLOW = "signoff: allow"
_MUTATORS = frozenset(
    [
        "append",
        "extend",
        "insert",
        "remove",
        "pop",
        "clear",
        "sort",
        "reverse",
        "update",
        "setdefault",
        "popitem",
        "add",
        "discard",
        "appendleft",
        "popleft",
        "extendleft",
        "intersection_update",
        "difference_update",
        "symmetric_difference_update",
    ]
)
_CONTAINERS = (list, dict, set)
# What reads a set without caring for its order.
_ORDERLESS = frozenset({"len", "sorted", "set", "frozenset", "sum", "min", "max", "any", "all", "bool"})
_KEEP = "keep it in a local variable, or return it from a step"


class SourceCheckWarning(UserWarning):
    """A handler may differ on replay, or could not be read."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One place in the source."""

    file: str
    line: int
    what: str
    replacement: str
    level: Literal["error", "warning"] = "error"

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}: {self.replacement}"


def check_handler(fn: Callable[..., Any], name: str) -> list[Finding]:
    """The warnings, issued as SourceCheckWarning too; raises NondeterministicCode that lists all errors."""
    findings = sorted(read_handler(fn), key=lambda item: (item.file, item.line))
    errors = [item for item in findings if item.level == "error"]
    if errors:
        listed = "\n".join(f"  {item}" for item in errors)
        raise NondeterministicCode(
            f"workflow {name!r} would not replay:\n{listed}\n"
            f"A line that is right all the same is marked with the comment `# {ALLOW}`.",
            errors,
            workflow=name,
        )
    for item in findings:
        warnings.warn(f"workflow {name!r}: {item}", SourceCheckWarning, stacklevel=3)
    return findings


def read_handler(fn: Callable[..., Any]) -> Iterator[Finding]:
    """All findings of a handler and of what it calls."""
    fn = inspect.unwrap(fn)
    code = fn.__code__
    source = _Source.read(fn, fn.__module__)
    if source is None:
        yield Finding(
            code.co_filename,
            code.co_firstlineno,
            "no source to check",
            "define the handler in a module file",
            "warning",
        )
        return
    todo = [(source, "error")]
    seen = {code}
    while todo:
        source, level = todo.pop()
        reader = _Reader(source, is_handler=level == "error")
        reader.read()
        for finding in reader.findings:
            yield finding if level == "error" else replace(finding, level="warning")
        for callee in reader.calls:
            if callee.__code__ not in seen:
                seen.add(callee.__code__)
                called = _Source.read(callee, fn.__module__)
                if called is not None:
                    todo.append((called, "warning"))


@dataclass(frozen=True, slots=True)
class _Source:
    fn: Any
    node: ast.FunctionDef | ast.AsyncFunctionDef
    file: str
    offset: int
    lines: list[str]
    home: str  # the handler's module

    @classmethod
    def read(cls, fn: Any, home: str) -> _Source | None:
        try:
            lines, first = inspect.getsourcelines(fn)
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, TypeError, SyntaxError):
            return None
        node = tree.body[0] if tree.body else None
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return None
        return cls(fn, node, fn.__code__.co_filename, max(first, 1) - 1, lines, home)

    def allows(self, node: ast.AST) -> bool:
        start = getattr(node, "lineno", 1)
        end = getattr(node, "end_lineno", start) or start
        return any(ALLOW in line.partition("#")[2] for line in (self.lines[start - 1], self.lines[end - 1]))


class _Reader(ast.NodeVisitor):
    """One function: its findings, and the author's functions that it calls."""

    def __init__(self, source: _Source, *, is_handler: bool) -> None:
        self.source = source
        self.findings: list[Finding] = []
        self.calls: list[Any] = []
        self._is_handler = is_handler
        self._called: ast.expr | None = None  # the expression that is being called
        fn = source.fn
        cells = fn.__closure__ or ()
        self._outer = {
            name: cell.cell_contents
            for name, cell in zip(fn.__code__.co_freevars, cells, strict=True)
            if names_of.is_filled(cell)
        }
        self._scope = {**vars(builtins), **fn.__globals__, **self._outer}
        self._own = set(names_of.bound_names(source.node)) - names_of.declared(source.node)
        self._import_names = dict(names_of.imports(source.node))
        self._imports = {
            name: value for name, path in self._import_names.items() if (value := names_of.loaded(path)) is not UNKNOWN
        }
        arguments = [*source.node.args.posonlyargs, *source.node.args.args]
        self._step = arguments[0].arg if is_handler and arguments else None
        self._wait_sets = set(names_of.wait_sets(source.node, self._is_asyncio_wait))
        self._in_closure: set[ast.AST] = set()

    def read(self) -> None:
        node = self.source.node
        for name, place in names_of.written_globals(node):
            self._found(place, f"writes the global {name}", _KEEP)
        self._mark_closures(node)
        for statement in node.body:
            self.visit(statement)

    # -- what is reported

    def _found(self, node: ast.AST, what: str, replacement: str, level: Literal["error", "warning"] = "error") -> None:
        if not self.source.allows(node):
            line = self.source.offset + getattr(node, "lineno", 1)
            finding = Finding(self.source.file, line, what, replacement, level)
            if finding not in self.findings:
                self.findings.append(finding)

    # -- names

    def _value(self, node: ast.AST) -> Any:
        """The object that a dotted name stands for when the handler is defined; UNKNOWN for local ones."""
        if isinstance(node, ast.Name):
            if node.id in self._imports:
                return self._imports[node.id]
            return UNKNOWN if node.id in self._own else self._scope.get(node.id, UNKNOWN)
        if isinstance(node, ast.Attribute):
            owner = self._value(node.value)
            if owner is UNKNOWN:
                return UNKNOWN
            # Not of instances: reading a property would run the author's code.
            if inspect.ismodule(owner):
                return getattr(owner, node.attr, UNKNOWN)
            if isinstance(owner, type):
                found = inspect.getattr_static(owner, node.attr, UNKNOWN)
                return found.__func__ if isinstance(found, staticmethod | classmethod) else found
        return UNKNOWN

    def _dotted(self, node: ast.AST) -> str | None:
        if isinstance(node, ast.Attribute):
            owner = self._value(node.value)
            if isinstance(owner, type):
                return self._class_attribute(owner, node.attr)
            base = self._dotted(node.value)
            value = self._value(node)
            own = None if value is UNKNOWN or not inspect.ismodule(value) else rules.dotted_name(value)
            return own or (None if base is None else f"{base}.{node.attr}")
        value = self._value(node)
        if value is UNKNOWN:
            return self._import_names.get(node.id) if isinstance(node, ast.Name) else None
        return rules.dotted_name(value)

    @staticmethod
    def _class_attribute(owner: type, name: str) -> str | None:
        for cls in owner.__mro__:
            if name in vars(cls):
                base = rules.dotted_name(cls)
                return None if base is None else f"{base}.{name}"
        return None

    def _root(self, node: ast.AST) -> ast.Name | None:
        while isinstance(node, ast.Attribute | ast.Subscript):
            node = node.value
        return node if isinstance(node, ast.Name) else None

    def _check_reference(self, node: ast.Name | ast.Attribute) -> bool:
        dotted = self._dotted(node)
        hit = None if dotted is None else rules.lookup(dotted)
        if hit is None:
            return False
        called = self._called is node
        value = self._value(node)
        if not called and (value is not UNKNOWN and rules.is_harmless_reference(value)):
            return False
        if hit.name in ("random.Random", "numpy.random.default_rng") and self._seeded:
            return True
        if called and isinstance(value, type) and issubclass(value, BaseException):
            return True
        self._found(node, ast.unparse(node) + ("()" if called else ""), hit.replacement)
        return True

    _seeded = False  # the call that is being looked at has arguments

    # -- visits

    def visit_Call(self, node: ast.Call) -> None:
        self._seeded = bool(node.args or node.keywords)
        self._called = node.func
        self.visit(node.func)
        self._called = None
        value = self._value(node.func)
        if value is not UNKNOWN:
            callee = inspect.unwrap(value) if isinstance(value, types.FunctionType) else None
            if callee is not None and is_authors(callee.__module__, home=self.source.home):
                self.calls.append(callee)
            if value is builtins.hash or value is builtins.id:
                self._found(node, f"{value.__name__}() differs between processes", "use a value of your own", "warning")
        if isinstance(node.func, ast.Attribute):
            self._check_method(node, node.func)
        passed = node.func.id if isinstance(node.func, ast.Name) else ""
        for argument in [*node.args, *(item.value for item in node.keywords)]:
            if argument in self._in_closure:
                self._check_closure(argument)
                continue
            if passed in _ORDERLESS and self._is_wait_set(argument):
                continue
            if passed in ("list", "tuple", "iter", "enumerate", "next", "map", "zip") and self._is_wait_set(argument):
                self._found_wait_set(argument)
                continue
            self.visit(argument)

    def _check_method(self, node: ast.Call, func: ast.Attribute) -> None:
        if func.attr in rules.METHODS:
            self._found(node, f".{func.attr}()", rules.METHODS[func.attr])
        root = self._root(func.value)
        if func.attr in _MUTATORS and root is not None and isinstance(self._value(root), _CONTAINERS):
            self._found(node, f"changes the global {root.id}", _KEEP)
        if func.attr == "pop" and self._is_wait_set(func.value):
            self._found_wait_set(func.value)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._check_reference(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Load):
            if not self._check_reference(node):
                self._called = None
                self.visit(node.value)
        else:
            self._check_global_store(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if not isinstance(node.ctx, ast.Load):
            self._check_global_store(node)
        self.generic_visit(node)

    def _check_global_store(self, node: ast.Attribute | ast.Subscript) -> None:
        root = self._root(node)
        if root is not None and self._value(root) is not UNKNOWN:
            self._found(node, f"writes the global {root.id}", _KEEP)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.visit(node.target)
        if node.value is not None:
            self.visit(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node in self._in_closure:
            self._check_closure(node)
            return
        for default in [*node.args.defaults, *filter(None, node.args.kw_defaults), *node.decorator_list]:
            self.visit(default)
        for statement in node.body:
            self.visit(statement)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        if node in self._in_closure:
            self._check_closure(node)
        else:
            self.generic_visit(node)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        for statement in node.body:  # the type that is caught is only named
            self.visit(statement)

    def visit_For(self, node: ast.For) -> None:
        self._check_iterated(node.iter)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self._check_iterated(node.iter)
        self.generic_visit(node)

    def visit_Starred(self, node: ast.Starred) -> None:
        if isinstance(node.ctx, ast.Load):
            self._check_iterated(node.value)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if self._is_wait_set(node.value) and any(isinstance(target, ast.Tuple | ast.List) for target in node.targets):
            self._found_wait_set(node.value)
        self.generic_visit(node)

    def _check_iterated(self, node: ast.expr) -> None:
        if self._is_wait_set(node):
            self._found_wait_set(node)
        elif isinstance(node, ast.Set | ast.SetComp) or (
            isinstance(node, ast.Call) and self._value(node.func) in (set, frozenset)
        ):
            self._found(
                node,
                "iterates over a set, whose order differs between processes",
                "use sorted(...) or a list",
                "warning",
            )

    # -- asyncio.wait

    def _is_asyncio_wait(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Await):
            node = node.value
        return isinstance(node, ast.Call) and self._dotted(node.func) in ("asyncio.wait", "asyncio.tasks.wait")

    def _is_wait_set(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Name):
            return node.id in self._wait_sets
        return (
            isinstance(node, ast.Subscript) and isinstance(node.value, ast.Await) and self._is_asyncio_wait(node.value)
        )

    def _found_wait_set(self, node: ast.AST) -> None:
        self._found(
            node,
            f"iterates over {ast.unparse(node)}, a set of asyncio.wait without order",
            "use await step.wait(...), whose lists are ordered",
        )

    # -- step.do

    def _mark_closures(self, node: ast.AST) -> None:
        """What runs as an action, not in the handler: the functions given to step.do."""
        named: set[str] = set()
        for call in ast.walk(node):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "do"):
                continue
            if not self._is_step(call.func.value):
                continue
            given = [*call.args[1:2], *(item.value for item in call.keywords if item.arg == "fn")]
            for argument in given:
                self._in_closure.add(argument)
                if isinstance(argument, ast.Name):
                    named.add(argument.id)
        for function in ast.walk(node):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and function.name in named:
                self._in_closure.add(function)
            elif (
                isinstance(function, ast.Assign)
                and isinstance(function.value, ast.Lambda)
                and any(isinstance(target, ast.Name) and target.id in named for target in function.targets)
            ):
                self._in_closure.add(function.value)

    def _is_step(self, node: ast.AST) -> bool:
        # step.with_options(...).do(...), and variables that hold such a step
        while isinstance(node, ast.Call | ast.Attribute):
            node = node.func if isinstance(node, ast.Call) else node.value
        return self._step is not None and isinstance(node, ast.Name) and (node.id == self._step or node.id in self._own)

    def _check_closure(self, node: ast.AST) -> None:
        if not isinstance(node, ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef):
            return
        advice = "return the value instead: on replay the function does not run"
        for inner in ast.walk(node):
            if isinstance(inner, ast.Nonlocal | ast.Global):
                self._found(inner, f"a step.do function assigns the captured {', '.join(inner.names)}", advice)
        inside = set(names_of.bound_names(node))
        for inner in ast.walk(node):
            if isinstance(inner, ast.Attribute | ast.Subscript) and isinstance(inner.ctx, ast.Store | ast.Del):
                root = self._root(inner)
                if root is not None and root.id in self._own and root.id not in inside:
                    self._found(inner, f"a step.do function assigns into the captured {root.id}", advice)
            if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr in _MUTATORS:
                root = self._root(inner.func.value)
                if root is not None and root.id not in inside and root.id in self._literal_containers:
                    self._found(inner, f"a step.do function changes the captured {root.id}", advice)

    @property
    def _literal_containers(self) -> set[str]:
        """Local names that hold a list, dict or set made right there."""
        made = set()
        for node in ast.walk(self.source.node):
            if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(
                node.value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp
            ):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                made |= {target.id for target in targets if isinstance(target, ast.Name)}
        return made
