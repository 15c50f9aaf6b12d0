"""A task function's signature: how a call becomes its input, and an input a call again."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from inspect import Parameter
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Final, get_args

import msgspec

from taskrunner.core import payload
from taskrunner.core import pydantic_models as models
from taskrunner.core.errors import InvalidInput
from taskrunner.core.hints import UNTYPED, hints_of, is_async, is_generator, unresolved

if TYPE_CHECKING:
    from taskrunner.core.model import JSON

_CONTEXT: Final = "TaskContext"  # known by name: its module stands beside this one and knows tasks
_PACKAGE: Final = "taskrunner"
_BY_POSITION: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME: Final = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
_MANY: Final = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_SCALARS: Final = (str, int, float, bool)
_QUOTED = re.compile(r"'([^']*)'")


class Signature:
    """What a task function takes and returns, checked once when the task is defined.

    `wants_context`: it takes the `TaskContext`, as its first argument, which is no part of the input.
    `returns`: its return annotation, once awaited, or `UNTYPED`. `is_async`: a call of it has to be awaited.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        """Read the signature of `fn`.

        Raises:
            InvalidInput: it has none that can be read, it is a generator, or one of its types has no JSON form.
        """
        self.name: str = getattr(fn, "__name__", type(fn).__name__)
        parameters = self._parameters_of(fn)
        hints = hints_of(fn)
        self.is_async = is_async(fn)
        self.wants_context = bool(parameters) and _takes_context(parameters[0], hints)
        self._parameters = parameters[1:] if self.wants_context else parameters
        self.returns = payload.returns_of(fn)
        self._require_json_form("its result", self.returns)
        annotations = {one.name: self._annotation(one, hints) for one in self._parameters}
        self._open = [
            (one.name, hint if payload.is_untyped(hint) else _whole(one, hint))
            for one in self._parameters
            if payload.leaves_open(hint := annotations[one.name])
        ]
        self._form = _form(self._parameters, annotations)
        self._decode_form = msgspec.json.Decoder(self._form, dec_hook=models.load).decode
        self._scalars = {name: hint for name, hint in annotations.items() if any(hint is one for one in _SCALARS)}
        self._needed = {one.name for one in self._parameters if one.default is Parameter.empty}
        self._slots = [(slot, one.name) for slot, one in _slots(self._parameters)]
        self._positional = _names_in_order(self._parameters)

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Turn the arguments of a call into the JSON text of an object by parameter name.

        Defaults are in it only if given; `*args` are a list and `**kwargs` an object, each under its own name.

        Raises:
            InvalidInput: the call does not fit the signature, an argument is not of its annotated type or has no JSON
                form; `path` names the place.
        """
        given = self._by_name(args, kwargs)
        if self._fits_at_sight(given):
            return payload.encode(given, name="", error=InvalidInput)
        for name, whole in self._open:
            if name in given and type(given[name]) not in payload.SCALARS:
                payload.require_plain_where_open(given[name], whole, name=name, error=InvalidInput)
        text = payload.encode(given, name="", error=InvalidInput)
        try:
            msgspec.convert(payload.to_tree(given), self._form, dec_hook=models.load)
            self._decode_form(text)
        except Exception:  # noqa: BLE001 - what is wrong, and where, is found out the slow way
            self._bound(args, kwargs)
            payload.fit(given, self._form, name="", error=InvalidInput)
            payload.decode(text, self._form, name="", error=InvalidInput)
        return text

    def _fits_at_sight(self, given: Mapping[str, Any]) -> bool:
        """Whether all that is needed is given, and each is a text, a number or a truth value of its annotated type."""
        scalars = self._scalars
        for name, value in given.items():
            if scalars.get(name) is not type(value):
                return False
        return self._needed <= given.keys()

    def decode(self, input: JSON, /) -> tuple[tuple[Any, ...], dict[str, Any]]:  # noqa: A002 - the column's name
        """Turn a stored input into the arguments of a call, each of its annotated type and without the context.

        Raises:
            InvalidInput: it does not fit the signature; `path` names the place.
        """
        form = payload.convert(input, self._form, name="", error=InvalidInput, text_keys=True)
        values = {name: getattr(form, slot) for slot, name in self._slots}
        if self._positional is not None:  # each has a name to be given by
            return (), {name: value for name, value in values.items() if value is not msgspec.UNSET}
        rest = next((one.name for one in self._parameters if one.kind is Parameter.VAR_POSITIONAL), None)
        all_by_position = bool(rest and values[rest])
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for one in self._parameters:
            value = values[one.name]
            if one.kind is Parameter.VAR_POSITIONAL:
                args.extend(value or ())
            elif one.kind is Parameter.VAR_KEYWORD:
                self._spread(one.name, value or {}, kwargs)
            elif one.kind is Parameter.POSITIONAL_ONLY or (all_by_position and one.kind in _BY_POSITION):
                args.append(one.default if value is msgspec.UNSET else value)
            elif value is not msgspec.UNSET:
                kwargs[one.name] = value
        return tuple(args), kwargs

    def _parameters_of(self, fn: Callable[..., Any]) -> list[Parameter]:
        if is_generator(fn):
            message = f"{self.name} is a generator: a task returns one result"
            raise InvalidInput(message)
        try:
            return list(inspect.signature(fn).parameters.values())
        except (TypeError, ValueError):
            message = f"{self.name} has no signature that Python can read: wrap it in a function of your own"
            raise InvalidInput(message) from None

    def _annotation(self, parameter: Parameter, hints: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any annotation
        hint = _hint(parameter, hints)
        if _is_context(hint):
            message = f"{self.name}: the context has to be the first parameter, and {parameter.name!r} is not"
            raise InvalidInput(message, path=parameter.name)
        if isinstance(hint, str):  # it cannot be resolved at run time, and says nothing
            return unresolved(hint, f"parameter `{parameter.name}`")
        self._require_json_form(f"parameter {parameter.name!r}", hint, path=parameter.name)
        return hint

    def _require_json_form(self, what: str, hint: Any, *, path: str = "") -> None:  # noqa: ANN401 - any annotation
        if reason := payload.why_unsupported(hint):
            name = hint.__qualname__ if isinstance(hint, type) else str(hint)
            message = f"{self.name}: {what} is annotated {name}: {reason}"
            raise InvalidInput(message, path=path)

    def _by_name(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by name; unknown and missing names are left for the check against the form."""
        names = self._positional
        if names is not None and len(args) <= len(names):
            given = dict(zip(names, args, strict=False))
            given.update(kwargs)
            if len(given) == len(args) + len(kwargs):
                return given
        return self._bound(args, kwargs)

    def _bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        try:
            given = dict(inspect.Signature(self._parameters).bind(*args, **kwargs).arguments)
        except TypeError as unfit:
            named = _QUOTED.search(str(unfit))
            message = f"{self.name}: {unfit}"
            raise InvalidInput(message, path=named[1] if named else "") from None
        for one in self._parameters:
            if one.kind is Parameter.VAR_POSITIONAL and one.name in given:
                given[one.name] = list(given[one.name])
        return given

    def _spread(self, name: str, extra: Mapping[str, Any], kwargs: dict[str, Any]) -> None:
        taken = {one.name for one in self._parameters if one.kind in _BY_NAME}
        if twice := taken & extra.keys():
            path = f"{name}.{min(twice)}"
            message = f"{path}: {min(twice)!r} is a parameter of its own"
            raise InvalidInput(message, path=path)
        kwargs.update(extra)


def _slots(parameters: list[Parameter]) -> list[tuple[str, Parameter]]:
    """Field names of our own: a parameter may be called what a Struct's field may not."""
    return [(f"p{number}", one) for number, one in enumerate(parameters)]


def _form(parameters: list[Parameter], annotations: Mapping[str, Any]) -> type[msgspec.Struct]:
    """A Struct that takes exactly these arguments; one that is not given is UNSET."""
    fields: list[Any] = []
    for slot, one in _slots(parameters):
        hint = annotations[one.name]
        hint = _whole(one, Any if payload.is_untyped(hint) else hint)
        needed = one.default is Parameter.empty and one.kind not in _MANY
        fields.append((slot, hint) if needed else (slot, hint, msgspec.UNSET))
    rename = {slot: one.name for slot, one in _slots(parameters)}
    return msgspec.defstruct("Input", fields, kw_only=True, forbid_unknown_fields=True, rename=rename)


def _whole(parameter: Parameter, hint: Any) -> Any:  # noqa: ANN401 - any annotation
    """The type of all that a parameter takes: a list for `*args`, an object for `**kwargs`."""
    if parameter.kind is Parameter.VAR_POSITIONAL:
        return GenericAlias(list, (hint,))
    return GenericAlias(dict, (str, hint)) if parameter.kind is Parameter.VAR_KEYWORD else hint


def _names_in_order(parameters: list[Parameter]) -> tuple[str, ...] | None:
    """The names that positional arguments stand for; None when only `inspect` can tell which argument goes where."""
    if any(one.kind not in _BY_NAME for one in parameters):
        return None
    return tuple(one.name for one in parameters if one.kind is Parameter.POSITIONAL_OR_KEYWORD)


def _hint(parameter: Parameter, hints: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any annotation
    """The annotation, resolved if it can be: else its text, or `UNTYPED`."""
    if parameter.name in hints:
        return hints[parameter.name]
    return UNTYPED if parameter.annotation is Parameter.empty else parameter.annotation


def _takes_context(parameter: Parameter, hints: Mapping[str, Any]) -> bool:
    hint = _hint(parameter, hints)
    if parameter.kind not in _BY_POSITION:
        return False
    return parameter.name == "ctx" if hint is UNTYPED else _is_context(hint)


def _is_context(hint: Any) -> bool:  # noqa: ANN401 - any annotation
    if isinstance(hint, str):
        return any(part.strip(" '\"").rpartition(".")[2] == _CONTEXT for part in hint.split("|"))
    classes = [one for one in (hint, *get_args(hint)) if isinstance(one, type)]
    return any(
        base.__name__ == _CONTEXT and base.__module__.partition(".")[0] == _PACKAGE
        for one in classes
        for base in one.__mro__
    )
