"""Values as JSON text and back: what comes back is equal and of the annotated type.

A value stands in the journal in the JSON that pydantic writes for its annotation, as long as that brings it back equal;
encoding checks it. Where JSON cannot (bytes, infinities, secrets, a date in a `date | str`), the exact form of `tagged`
is written. Without an annotation a value must be plain JSON. A fast path serves plain strings, numbers and booleans.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import pydantic_core
from pydantic import (
    BaseModel,
    PydanticSchemaGenerationError,
    PydanticUndefinedAnnotation,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import PydanticSerializationError

from signoff.workflow.errors import FieldError, InvalidInput, RegistrationError, Undecodable
from signoff.workflow.tagged import MARK, Unencodable, class_key, pack, same, unpack

MISSING: Any = inspect.Parameter.empty
_UNTYPED = (MISSING, Any, object)
_MARKED = '{"' + MARK + '":'
_dumps = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode
_quote = json.encoder.encode_basestring_ascii
_to_json, _from_json = pydantic_core.to_json, pydantic_core.from_json


def parse(text: str) -> Any:
    """JSON text to plain values; ValueError when it is none."""
    try:
        return _from_json(text)
    except ValueError:
        return json.loads(text)  # takes what the fast parser refuses: lone surrogates


def dump(raw: Any) -> str:
    """Plain JSON values to text; the caller knows that they are plain."""
    if type(raw) is str and raw.isascii():
        return _quote(raw)
    try:
        return _to_json(raw, inf_nan_mode="strings").decode()
    except (PydanticSerializationError, ValueError):
        return _dumps(raw)  # lone surrogates, as escapes


class ValueCodec:
    """Encodes and decodes values of one annotation."""

    __slots__ = ("_adapter", "_classes", "_has_secret", "_plain", "annotation")

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation
        # For an exact type of the fast path: that type, whose values are their own JSON.
        self._plain: type | None = annotation if annotation in (str, int, float, bool) else None
        if annotation is None or annotation is type(None):
            self._plain = type(None)
        self._adapter: TypeAdapter[Any] | None = None if annotation in _UNTYPED else _adapter(annotation)
        self._classes: dict[str, type] | None = None
        self._has_secret: bool | None = None

    @property
    def classes(self) -> Mapping[str, type]:
        if self._classes is None:
            self._classes = {} if self._adapter is None else _known_classes(self._adapter)
        return self._classes

    @property
    def has_secret(self) -> bool:
        if self._has_secret is None:
            self._has_secret = self._adapter is not None and _names_secret(self._adapter)
        return self._has_secret

    def encode(self, value: Any) -> str:
        """JSON text; InvalidInput with the fields that do not fit the annotation or cannot be stored."""
        if type(value) is self._plain:
            if value is None:
                return "null"
            if self._plain is str:
                return dump(value)
            if self._plain is bool:
                return "true" if value else "false"
            number: Any = value
            if -_BIG < number < _BIG:  # not for NaN and infinity, nor for ints that JSON parsers may refuse
                return repr(value)
        if self._adapter is None:
            return _encode_plain(value)
        try:
            valid = self._adapter.validate_python(value)
        except ValidationError as error:
            raise InvalidInput("the value does not fit its annotation", _fields(error)) from error
        return self._encode_valid(valid)

    def _encode_valid(self, valid: Any) -> str:
        adapter = self._adapter
        assert adapter is not None
        with contextlib.suppress(
            Exception
        ):  # whatever a type's own serializer or validator raises: the exact form may do
            text = adapter.dump_json(valid, by_alias=False, round_trip=True, warnings=False).decode()
            if not text.startswith(_MARKED) and same(valid, adapter.validate_json(text, by_alias=True, by_name=True)):
                return text
        try:
            text = _MARKED + dump(pack(valid, self.classes)) + "}"
            back = self._decode_marked(parse(text))
        except Unencodable as error:
            raise InvalidInput("the value cannot be stored", [FieldError(error.loc, error.message)]) from error
        except Exception as error:  # as above, and there is no other form left
            raise InvalidInput(f"the value cannot be stored: it does not come back ({error})") from error
        if not same(valid, back):
            raise InvalidInput(f"the value cannot be stored: it would come back as {_short(back)}, not {_short(valid)}")
        return text

    def decode(self, text: str) -> Any:
        """The value; Undecodable when the text does not fit the annotation."""
        plain = self._plain
        try:
            if plain is not None or self._adapter is None:
                raw = parse(text)
                if type(raw) is plain:
                    return raw
                if self._adapter is None:
                    return self._decode_marked(raw) if text.startswith(_MARKED) else raw
            if text.startswith(_MARKED):
                return self._decode_marked(parse(text))
            return self._adapter.validate_json(text, by_alias=True, by_name=True)
        except ValidationError as error:
            raise Undecodable("the stored value does not fit its annotation", _fields(error)) from error
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
            raise Undecodable(f"the stored value does not fit its annotation: {error}") from error

    def decode_raw(self, raw: Any) -> Any:
        """As `decode`, from parsed JSON."""
        if type(raw) is self._plain:
            return raw
        if self._adapter is None and not (type(raw) is dict and MARK in raw):
            return raw
        return self.decode(dump(raw))

    def check(self, text: str) -> str:
        """JSON from outside, validated and in the form that the journal keeps; InvalidInput with the fields."""
        try:
            return self.encode(self.decode(text))
        except Undecodable as error:
            raise InvalidInput("the value does not fit", error.fields or [FieldError((), error.message)]) from error

    def json_schema(self) -> dict[str, Any]:
        return {} if self._adapter is None else self._adapter.json_schema()

    def _decode_marked(self, raw: Any) -> Any:
        value = unpack(raw[MARK], self.classes)
        return (
            value
            if self._adapter is None
            else self._adapter.validate_python(value, strict=False, by_alias=True, by_name=True)
        )


_BIG = 2**63
_codecs: dict[Any, ValueCodec] = {}


def value_codec(annotation: Any) -> ValueCodec:
    """The codec of an annotation, made once. RegistrationError if pydantic cannot handle the annotation."""
    try:
        return _codecs[annotation]
    except KeyError:
        codec = _codecs[annotation] = ValueCodec(annotation)
        return codec
    except TypeError:  # an unhashable annotation, Annotated[int, [...]]
        return ValueCodec(annotation)


def encode(value: Any, annotation: Any = MISSING) -> str:
    return value_codec(annotation).encode(value)


def decode(text: str, annotation: Any = MISSING) -> Any:
    return value_codec(annotation).decode(text)


def json_schema(annotation: Any) -> dict[str, Any]:
    return value_codec(annotation).json_schema()


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
        parameters = list(inspect.signature(fn).parameters.values())[first:]
        scope = {**vars(sys.modules.get(fn.__module__, typing)), **getattr(fn, "__globals__", {}), **(namespace or {})}
        name = getattr(fn, "__qualname__", repr(fn))
        resolved = []
        for item in parameters:
            annotation = _resolve(item.annotation, scope, f"parameter {item.name!r} of {name}")
            if annotation is not MISSING:
                if item.kind is item.VAR_POSITIONAL:
                    annotation = types.GenericAlias(tuple, (annotation, ...))
                elif item.kind is item.VAR_KEYWORD:
                    annotation = types.GenericAlias(dict, (str, annotation))
            resolved.append(item.replace(annotation=annotation))
        result = _resolve(inspect.signature(fn).return_annotation, scope, f"the result of {name}")
        return cls(resolved, result, name)

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

    def args_schema(self) -> dict[str, Any]:
        """JSON schema of the args as one object."""
        properties = {name: codec.json_schema() for name, codec in self.parameters.items()}
        return {
            "type": "object",
            "properties": properties,
            "required": sorted(self._required),
            "additionalProperties": False,
        }


def _inside(name: str, error: InvalidInput | Undecodable) -> list[FieldError]:
    if not error.fields:
        return [FieldError((name,), error.message)]
    return [FieldError((name, *item.loc), item.message, item.input) for item in error.fields]


def _resolve(annotation: Any, scope: dict[str, Any], where: str) -> Any:
    if isinstance(annotation, str):
        try:
            annotation = eval(annotation, scope)  # the author's own annotation, as typing does it
        except NameError as error:
            raise RegistrationError(
                f"the annotation {annotation!r} of {where} is not known when it is registered ({error}): "
                "define or import it before, and not only under TYPE_CHECKING"
            ) from error
    try:
        value_codec(annotation)
    except RegistrationError as error:
        raise RegistrationError(f"the annotation of {where} cannot be serialised: {error}") from error
    return annotation


def _adapter(annotation: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(annotation)
    except (PydanticSchemaGenerationError, PydanticUserError, PydanticUndefinedAnnotation) as error:
        raise RegistrationError(str(error).split("\n", 1)[0]) from error


def _known_classes(adapter: TypeAdapter[Any]) -> dict[str, type]:
    """Classes named in the schema. A name that two classes share is left out: it would be a guess."""
    found: dict[str, set[type]] = {}
    todo: list[Any] = [adapter.core_schema]
    seen: set[int] = set()
    while todo:
        item = todo.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, dict):
            cls = item.get("cls")
            if isinstance(cls, type):
                found.setdefault(class_key(cls), set()).add(cls)
            if item.get("type") == "call" and isinstance(item.get("function"), type):  # a NamedTuple
                found.setdefault(class_key(item["function"]), set()).add(item["function"])
            todo.extend(value for key, value in item.items() if key not in ("cls", "metadata", "serialization"))
        elif isinstance(item, list | tuple):
            todo.extend(item)
    return {key: classes.pop() for key, classes in found.items() if len(classes) == 1}


def _names_secret(adapter: TypeAdapter[Any]) -> bool:
    text = repr(adapter.core_schema)
    return "SecretStr" in text or "SecretBytes" in text or "pydantic.types.Secret" in text


def _encode_plain(value: Any) -> str:
    """Without an annotation: plain JSON, checked all the way down."""
    try:
        exact = _check_plain(value, ())
    except Unencodable as error:
        raise InvalidInput(
            "without an annotation a value must be plain JSON", [FieldError(error.loc, error.message)]
        ) from error
    except RecursionError as error:
        raise InvalidInput("the value is nested too deep") from error
    return dump(value) if exact else _MARKED + dump(pack(value, {})) + "}"


def _check_plain(value: Any, loc: tuple[str | int, ...]) -> bool:
    """Whether JSON brings it back as it is; Unencodable if it is not of JSON's types."""
    kind = type(value)
    if value is None or kind is str or kind is bool:
        return True
    if kind is int:
        return bool(-_BIG < value < _BIG) or value.bit_length() < 10_000
    if kind is float:
        return math.isfinite(value)
    if kind is list:
        return all([_check_plain(item, (*loc, place)) for place, item in enumerate(value)])  # noqa: C419  # all are checked
    if kind is dict:
        exact = MARK not in value
        for key, item in value.items():
            if type(key) is not str:
                raise Unencodable(loc, f"the key {key!r} is no string")
            exact &= _check_plain(item, (*loc, key))
        return exact
    raise Unencodable(loc, f"{kind.__qualname__} is not plain JSON: annotate it to store it")


def _fields(error: ValidationError) -> list[FieldError]:
    return [
        FieldError(
            tuple(item["loc"]), item["msg"], item.get("input") if not isinstance(item.get("input"), BaseModel) else None
        )
        for item in error.errors(include_url=False, include_context=False)
    ]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
