"""The args and result of a callable as JSON text and back; see `values` for single values."""

from __future__ import annotations

import contextlib
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from signoff.workflow.errors import FieldError, InvalidInput, RegistrationError, Undecodable
from signoff.workflow.schemas import schemas_of
from signoff.workflow.tagged import MARK
from signoff.workflow.values import MISSING, ValueCodec, decode, dump, encode, json_schema, parse, value_codec

__all__ = ["MISSING", "Codec", "ValueCodec", "decode", "dump", "encode", "json_schema", "parse", "value_codec"]


class Codec:
    """Args and result of one callable. `first` parameters (step, session) are not part of the args."""

    def __init__(self, parameters: list[inspect.Parameter], result: Any, name: str) -> None:
        self.name = name
        self.signature = inspect.Signature(parameters)
        self.result = value_codec(result)
        self.parameters = {parameter.name: value_codec(parameter.annotation) for parameter in parameters}
        self._positional = tuple(
            item.name for item in parameters if item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD)
        )
        self._required = frozenset(
            item.name
            for item in parameters
            if item.default is MISSING and item.kind not in (item.VAR_POSITIONAL, item.VAR_KEYWORD)
        )
        self._by_name = frozenset(
            item.name for item in parameters if item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY)
        )
        self._prefixes = {item.name: f'"{item.name}":' for item in parameters}
        self._kinds = {item.name: item.kind for item in parameters}
        self._variadic = any(
            item.kind in (item.VAR_POSITIONAL, item.VAR_KEYWORD, item.POSITIONAL_ONLY) for item in parameters
        )

    @classmethod
    def for_callable(
        cls, fn: Callable[..., Any], *, first: int = 0, namespace: Mapping[str, Any] | None = None
    ) -> Codec:
        """Reads the annotations now; RegistrationError names an annotation that cannot be serialised."""
        signature = read_signature(fn)
        scope, name = _scope(fn, namespace), _name(fn)
        resolved = []
        for item in list(signature.parameters.values())[first:]:
            annotation = _resolve(item.annotation, scope, f"parameter {item.name!r} of {name}")
            if annotation is not MISSING:
                if item.kind is item.VAR_POSITIONAL:
                    annotation = types.GenericAlias(tuple, (annotation, ...))
                elif item.kind is item.VAR_KEYWORD:
                    annotation = types.GenericAlias(dict, (str, annotation))
            resolved.append(item.replace(annotation=annotation))
        return cls(resolved, _resolve(signature.return_annotation, scope, f"the result of {name}"), name)

    @classmethod
    def for_closure(cls, fn: Callable[..., Any], *, namespace: Mapping[str, Any] | None = None) -> Codec:
        """For a function that is called without args, so that its parameters (with defaults) are not stored."""
        signature = read_signature(fn)
        name = _name(fn)
        needed = [
            item.name
            for item in signature.parameters.values()
            if item.default is MISSING and item.kind not in (item.VAR_POSITIONAL, item.VAR_KEYWORD)
        ]
        if needed:
            raise InvalidInput(f"{name} is called without arguments, and needs {', '.join(needed)}")
        return cls([], _resolve(signature.return_annotation, _scope(fn, namespace), f"the result of {name}"), name)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Args by parameter name, as the call gave them; InvalidInput for what the signature refuses."""
        if not self._variadic and len(args) <= len(self._positional):
            bound = dict(zip(self._positional, args, strict=False))
            if not kwargs or (kwargs.keys() <= self._by_name and bound.keys().isdisjoint(kwargs)):
                bound.update(kwargs)
                if self._required <= bound.keys():
                    return bound
        try:
            return self.signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise InvalidInput(f"{self.name}: {error}", [self._call_error(args, kwargs, str(error))]) from None

    def _call_error(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], message: str) -> FieldError:
        unknown = [key for key in kwargs if key not in self._kinds]
        missing = [name for name in self._positional[len(args) :] if name in self._required and name not in kwargs]
        missing += [name for name in self._required if name not in self._positional and name not in kwargs]
        named = unknown[:1] or missing[:1]
        return FieldError(tuple(named), message)

    def encode_call(self, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> str | None:
        """JSON object text by parameter name, defaults not filled in; None without args.

        InvalidInput lists every bad field.
        """
        if not args and not kwargs and not self._required:
            return None
        return self._encode_bound(self.bind(args, kwargs or {}))

    def _encode_bound(self, bound: Mapping[str, Any]) -> str | None:
        parts: list[str] = []
        errors: list[FieldError] = []
        codecs, prefixes = self.parameters, self._prefixes
        for name, value in bound.items():
            try:
                parts.append(prefixes[name] + codecs[name].encode(value))
            except InvalidInput as error:
                errors += _inside(name, error)
        if errors:
            raise InvalidInput(f"{self.name}: wrong arguments", errors)
        return "{" + ",".join(parts) + "}" if parts else None

    def decode_arguments(self, text: str | None) -> dict[str, Any]:
        """Decoded args by parameter name; Undecodable."""
        if text is None:
            return {}
        try:
            raw = parse(text)
        except ValueError as error:
            raise Undecodable(f"{self.name}: recorded args are not JSON ({error})") from error
        if type(raw) is not dict:
            raise Undecodable(f"{self.name}: recorded args are not an object")
        values: dict[str, Any] = {}
        errors: list[FieldError] = []
        for name, item in raw.items():
            codec = self.parameters.get(name)
            if codec is None:
                errors.append(FieldError((name,), "no such parameter"))
                continue
            try:
                values[name] = codec.decode_raw(item)
            except Undecodable as error:
                errors += _inside(name, error)
        if not self._required <= raw.keys():
            errors += [FieldError((name,), "missing") for name in sorted(self._required - raw.keys())]
        if errors:
            raise Undecodable(f"{self.name}: recorded args do not fit", errors)
        return values

    def decode_call(self, text: str | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """(args, kwargs) to call the function with; Undecodable."""
        values = self.decode_arguments(text)
        if not self._variadic:
            return (), values
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        by_keyword = False  # after a gap only keywords are possible
        for name, kind in self._kinds.items():
            if name not in values:
                by_keyword = True
            elif kind is inspect.Parameter.VAR_KEYWORD:
                kwargs |= values[name]
            elif kind is inspect.Parameter.VAR_POSITIONAL:
                args += values[name]
            elif kind is inspect.Parameter.KEYWORD_ONLY or (
                by_keyword and kind is not inspect.Parameter.POSITIONAL_ONLY
            ):
                kwargs[name] = values[name]
            else:
                args.append(values[name])
        return tuple(args), kwargs

    def normalize(self, text: str | None) -> str | None:
        """Recorded args, decoded and encoded with today's annotations (R2); Undecodable."""
        if text is None:
            return None
        values = self.decode_arguments(text)
        try:
            return self._encode_bound({name: values[name] for name in self.parameters if name in values})
        except InvalidInput as error:
            raise Undecodable(f"{self.name}: recorded args do not fit", error.fields) from error

    def check_call(self, text: str | None) -> str | None:
        """Args from outside as JSON object text by name: validated, in the journal's form; InvalidInput."""
        try:
            return self._encode_bound(self.decode_arguments(text or "{}"))
        except Undecodable as error:
            raise InvalidInput(
                f"{self.name}: wrong arguments", error.fields or [FieldError((), error.message)]
            ) from error

    def encode_result(self, value: Any) -> str:
        try:
            return self.result.encode(value)
        except InvalidInput as error:
            raise InvalidInput(
                f"{self.name}: invalid result", error.fields or [FieldError((), error.message)]
            ) from error

    def decode_result(self, text: str | None) -> Any:
        return None if text is None else self.result.decode(text)

    @property
    def has_secret_args(self) -> bool:
        return any(codec.has_secret for codec in self.parameters.values())

    @property
    def has_secret_result(self) -> bool:
        return self.result.has_secret

    @property
    def has_secrets(self) -> bool:
        return self.has_secret_args or self.has_secret_result

    def args_schema(self) -> dict[str, Any]:
        """JSON schema of the args as one object, with the defaults that JSON can carry."""
        adapters = {name: codec.adapter for name, codec in self.parameters.items() if codec.adapter is not None}
        found, shared = schemas_of(adapters)
        properties = {name: self._with_default(name, found.get(name, {})) for name in self.parameters}
        schema = {
            "type": "object",
            "properties": properties,
            "required": sorted(self._required),
            "additionalProperties": False,
        }
        return {**schema, "$defs": shared} if shared else schema

    def _with_default(self, name: str, schema: dict[str, Any]) -> dict[str, Any]:
        parameter, codec = self.signature.parameters[name], self.parameters[name]
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            return {**schema, "default": [] if parameter.kind is parameter.VAR_POSITIONAL else {}}
        if parameter.default is MISSING or codec.has_secret:
            return schema
        with contextlib.suppress(InvalidInput):  # a default that its own annotation refuses is not shown
            value = parse(codec.encode(parameter.default))
            if not (isinstance(value, dict) and MARK in value):
                return {**schema, "default": value}
        return schema


def _inside(name: str, error: InvalidInput | Undecodable) -> list[FieldError]:
    if not error.fields:
        return [FieldError((name,), error.message)]
    return [FieldError((name, *item.loc), item.message, item.input) for item in error.fields]


def _name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__qualname__", repr(fn))


def _scope(fn: Callable[..., Any], namespace: Mapping[str, Any] | None) -> dict[str, Any]:
    """The names that the annotations of a function may use."""
    module = vars(sys.modules[fn.__module__]) if fn.__module__ in sys.modules else {}
    return {**module, **getattr(fn, "__globals__", {}), **(namespace or {})}


def _resolve(annotation: Any, scope: dict[str, Any], where: str) -> Any:
    def holder() -> None: ...

    if annotation is not MISSING:
        holder.__annotations__ = {"it": annotation}
        try:
            annotation = typing.get_type_hints(holder, scope, scope, include_extras=True)["it"]
        except NameError as error:
            raise RegistrationError(
                f"the annotation {_written(annotation)} of {where} is not known when it is registered ({error}): "
                "define or import it before, and not only under TYPE_CHECKING"
            ) from error
        except (TypeError, SyntaxError) as error:
            raise RegistrationError(f"the annotation {_written(annotation)} of {where} is none: {error}") from error
    try:
        value_codec(annotation)
    except RegistrationError as error:
        raise RegistrationError(f"the annotation of {where} cannot be serialised: {error}") from error
    return annotation


def _written(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__forward_arg__", repr(annotation))


def read_signature(fn: Callable[..., Any]) -> inspect.Signature:
    """With names that are not known (yet) as forward references in annotations."""
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(fn, annotation_format=Format.FORWARDREF)
    return inspect.signature(fn)
