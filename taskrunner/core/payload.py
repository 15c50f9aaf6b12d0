"""Typed JSON: how a value goes into the store, and how it comes back as what it was.

msgspec writes and reads it (dataclasses, TypedDict, msgspec.Struct, datetime, Decimal, UUID, Enum, bytes as base64 …).
What it would write although strict JSON has no word for it (NaN, endless integers) is refused here, and the path named.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, Never, TypeAlias, TypeVar

import msgspec

from taskrunner.core import places, shapes
from taskrunner.core import pydantic_models as models
from taskrunner.core.errors import InvalidInput, InvalidResult, PayloadTooLarge, error_text
from taskrunner.core.hints import UNTYPED, Untyped, returns_of
from taskrunner.core.places import MAX_DEPTH

__all__ = [
    "MAX_DEPTH",
    "SCALARS",
    "UNTYPED",
    "Refusal",
    "check_size",
    "convert",
    "decode",
    "digest",
    "encode",
    "fit",
    "is_untyped",
    "leaves_open",
    "record",
    "require_plain",
    "require_plain_where_open",
    "returns_of",
    "to_tree",
    "why_unsupported",
]

Refusal: TypeAlias = type[InvalidInput] | type[InvalidResult]
"""Which error says no: `InvalidInput` for what comes in, `InvalidResult` for what a task or a step gives back."""

SCALARS: Final = frozenset({str, int, float, bool, type(None)})

_NAMED: Final = SCALARS - {type(None)}  # the values that an error shows
_NO_CHOICE: Final = "invalid enum value"

_DIGITS_TO_ZERO = bytes(48 if 48 <= byte <= 57 else 32 for byte in range(256))  # noqa: PLR2004 - "0" to "9", else a blank
_NINETEEN_DIGITS = b"0" * 19
_NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")  # a float 64 of MessagePack whose exponent is all ones
_HUGE = re.compile(rb"\xcf[\x80-\xff]")  # an unsigned integer 64 of MessagePack from 2**63 on
_BRACES_TO_BRACKETS = bytes.maketrans(b"{}", b"[]")
_ALL_BUT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


class _Reader(NamedTuple):
    """How JSON is read as one annotation says, and what that leaves open."""

    read: Callable[[bytes | str], Any]
    shape: shapes.Shape | None


_NOTHING: Final = hashlib.blake2b(digest_size=8).hexdigest()  # the digest of no arguments


def _hook(value: object) -> Any:  # noqa: ANN401 - plain JSON
    """What msgspec writes for a value whose type it does not know."""
    return models.dump(value) if models.is_model(type(value)) else places.as_scalar(value)


def _careful_hook(value: object) -> Any:  # noqa: ANN401 - as above
    """As `_hook`, and refuses a model that would come back as another value."""
    if models.is_model(type(value)) and (found := models.fault(value)):
        raise models.Misfit(*found)
    return _hook(value)


def _sorting_hook(value: object) -> Any:  # noqa: ANN401 - as above
    return models.dump_in_order(value) if models.is_model(type(value)) else places.as_scalar(value)


_encode = msgspec.json.Encoder(enc_hook=_careful_hook).encode
_encode_sorted = msgspec.json.Encoder(enc_hook=_sorting_hook, order="sorted").encode
_decode_plain = msgspec.json.Decoder().decode


def encode(value: object, *, name: str, error: Refusal, limit: int | None = None) -> str:
    """Write `value` as strict JSON.

    `name` begins the path in an error: `name.field`, `name[2]`, `name["key"]`; with an empty name the path begins with
    the key. `limit` is in bytes of UTF-8; None: no limit.

    Raises:
        InvalidInput: (or `InvalidResult`, as `error` says) something in it has no JSON form: NaN, an infinity, an
            integer outside -2**63 … 2**63-1, a lone surrogate, more than 100 levels, a cycle, an object of a type that
            msgspec does not know.
        PayloadTooLarge: it is larger than `limit`, and `error` is `InvalidInput`.
    """
    try:
        data = _encode(value)
    except Exception as broken:  # noqa: BLE001 - msgspec's own errors, and whatever a user's attribute or hook raises
        raise _no_json(value, name, error, type(broken).__qualname__) from None
    if _may_break_a_rule(value, data) and (found := places.fault(value)):
        raise _refused(name, *found, error)
    text = data.decode()
    if limit is not None:
        check_size(text, limit, name=name, error=error)
    return text


def check_size(text: str, limit: int, *, name: str, error: Refusal) -> None:
    """Refuse JSON of more than `limit` bytes.

    Raises:
        PayloadTooLarge: it is larger, and `error` is `InvalidInput`.
        InvalidResult: it is larger, and `error` says so.
    """
    size = len(text) if text.isascii() else len(text.encode())
    if size > limit:
        kind = PayloadTooLarge if issubclass(error, InvalidInput) else error
        what = name or "the arguments"
        message = f"{what}: {size:,} bytes of JSON are more than the {limit:,} that max_payload allows"
        raise kind(message, path=name)


def require_plain(value: object, *, name: str, error: Refusal, when: str = UNTYPED.why) -> None:
    """Refuse what does not come back from JSON as itself: all but dicts with text keys, lists, texts, numbers, None.

    `when` says why it has to, as the sentence of the refusal begins.

    Raises:
        InvalidInput: (or `InvalidResult`, as `error` says) a tuple, a set, a dataclass, an integer key, …
    """
    if found := places.fault(value, plain=when):
        places.close_coroutines(value)
        raise _refused(name, *found, error)


def require_plain_where_open(value: object, annotation: Any, *, name: str, error: Refusal) -> None:  # noqa: ANN401
    """As `require_plain`, for the parts of a value of which its annotation says nothing: all, or those under an `Any`.

    Raises:
        InvalidInput: (or `InvalidResult`, as `error` says) as `require_plain`.
    """
    reader = _reader_of(annotation)
    if reader.read is _decode_plain:
        require_plain(value, name=name, error=error, when=_why_untyped(annotation))
    elif reader.shape and (found := reader.shape.fault(value)):
        places.close_coroutines(value)
        raise _refused(name, *found, error)


def leaves_open(annotation: Any) -> bool:  # noqa: ANN401 - any annotation
    """Whether an annotation says nothing about some part of its values, or about all of them."""
    return is_untyped(annotation) or _reader_of(annotation).shape is not None


def fit(value: object, annotation: Any, *, name: str, error: Refusal) -> None:  # noqa: ANN401 - any annotation
    """Refuse an encodable value that is not of the annotated type, such as bytes where a text should be.

    JSON alone does not tell: bytes are a text in it, and so is a datetime.

    Raises:
        InvalidInput: (or `InvalidResult`, as `error` says) with the path of the offending place.
    """
    try:
        tree = to_tree(value)
    except Exception as broken:  # noqa: BLE001 - as in `encode`
        raise _no_json(value, name, error, type(broken).__qualname__) from None
    convert(tree, annotation, name=name, error=error, text_keys=False)


def to_tree(value: object) -> Any:  # noqa: ANN401 - any plain value
    """`value` as dicts, lists and scalars, as in JSON, except that texts which JSON made up are still their objects."""
    return msgspec.to_builtins(value, builtin_types=places.LEAVES, enc_hook=_hook)


def convert(tree: object, annotation: Any, *, name: str, error: Refusal, text_keys: bool) -> Any:  # noqa: ANN401
    """Turn a tree of plain values into the annotated type.

    `text_keys` says that the keys of its dicts went through JSON: an integer key is a text there.

    Raises:
        InvalidInput: (or `InvalidResult`, as `error` says) it is not of that type.
    """

    def attempt(again: object) -> Any:  # noqa: ANN401 - as annotated
        return msgspec.convert(again, annotation, str_keys=text_keys, dec_hook=models.load)

    try:
        return attempt(tree)
    except msgspec.ValidationError as unfit:
        raise _unfit(name, unfit, tree, attempt, annotation, error) from None
    except Exception as broken:  # noqa: BLE001 - a user's __post_init__ may raise anything
        raise _refused(name, [], f"cannot be made into its type: {error_text(broken)}", error) from None


def decode(text: str, annotation: Any, *, name: str, error: Refusal) -> Any:  # noqa: ANN401 - as annotated
    """Read JSON as the annotated type; as plain JSON where there is no annotation (or `Any`, or `object`).

    Raises:
        InvalidInput: (or `InvalidResult`, as `error` says) it does not fit, or the text is not JSON.
    """
    try:
        read = _reader_of(annotation).read
        return read(text)
    except msgspec.ValidationError as unfit:
        tree = _decode_plain(text)
        raise _unfit(name, unfit, tree, lambda again: read(_encode(again)), annotation, error) from None
    except msgspec.DecodeError as broken:
        raise _refused(name, [], f"not JSON: {broken}", error) from None
    except Exception as broken:  # noqa: BLE001 - a user's __post_init__ may raise anything
        raise _refused(name, [], f"cannot be made into its type: {error_text(broken)}", error) from None


def record(
    value: object,
    annotation: Any,  # noqa: ANN401 - any annotation
    *,
    name: str,
    error: Refusal,
    limit: int | None = None,
) -> tuple[str, Any]:
    """Write a value as JSON and read it again by its annotation: the text, and the value that every replay will see.

    What its annotation leaves open, the parts under an `Any` or an `object` or all of it if there is none, has to be
    plain JSON, or it would come back as something else: also inside the fields of a TypedDict, a dataclass or a Struct.

    Raises:
        InvalidInput: (or `InvalidResult`, as `error` says) it cannot be kept as it is.
        PayloadTooLarge: it is larger than `limit` bytes, and `error` is `InvalidInput`.
    """
    reader, kind = _reader_of(annotation), type(value)
    typed = reader.read is not _decode_plain
    if kind in SCALARS and (kind is annotation or not typed):  # JSON gives them back as they are
        return encode(value, name=name, error=error, limit=limit), value
    if not typed or reader.shape is not None:
        require_plain_where_open(value, annotation, name=name, error=error)
    text = encode(value, name=name, error=error, limit=limit)
    if typed and not (reader.shape and reader.shape.is_plain):  # of plain JSON, reading it tells as much
        fit(value, annotation, name=name, error=error)
    return text, decode(text, annotation, name=name, error=error)


def is_untyped(annotation: Any) -> bool:  # noqa: ANN401 - any annotation
    """Whether an annotation says nothing about a value's form: there is none, it is `Any`, `object`, a type variable.

    So does a type whose own annotations cannot be resolved at run time.
    """
    return _reader_of(annotation).read is _decode_plain


def why_unsupported(annotation: Any) -> str | None:  # noqa: ANN401 - any annotation
    """Why values of this type cannot be kept as JSON; None when they can."""
    if is_untyped(annotation):
        return None
    try:
        unknown = shapes.unknown_class(annotation)
    except Exception as broken:  # noqa: BLE001 - msgspec says why by TypeError, a user's class by anything
        return f"msgspec cannot keep it as JSON ({str(broken).partition(' - type ')[0]})"
    if unknown is None:
        return None
    inside = "it" if unknown is annotation else unknown.__qualname__
    return f"{inside} has no JSON form (use JSON, a dataclass, a TypedDict, a msgspec.Struct or a pydantic model)"


def digest(args: Sequence[object], kwargs: Mapping[str, object]) -> str:
    """A short text that tells one call's arguments from another's; keys and sets count in sorted order.

    An argument without a JSON form (a client, a connection) counts by its type's name.
    """
    if not args and not kwargs:
        return _NOTHING
    parts = [_fingerprint(argument) for argument in args]
    parts += [key.encode("utf-8", "surrogatepass") + b"=" + _fingerprint(kwargs[key]) for key in sorted(kwargs)]
    return hashlib.blake2b(b"\n".join(parts), digest_size=8).hexdigest()


def _fingerprint(value: object) -> bytes:
    try:
        return _encode_sorted(value)
    except Exception:  # noqa: BLE001 - whatever stands in the way of its JSON form
        return _fingerprint_with_any_keys(value)


def _fingerprint_with_any_keys(value: object) -> bytes:
    try:  # the sorting encoder refuses keys that are no texts
        return _encode_sorted(msgspec.to_builtins(value, str_keys=True, order="deterministic", enc_hook=_sorting_hook))
    except Exception:  # noqa: BLE001 - as above
        kind = type(value)
        return f"<{kind.__module__}.{kind.__qualname__}>".encode()


def _may_break_a_rule(value: object, data: bytes) -> bool:
    """Whether JSON that msgspec wrote may stand for something that it should not: quick, and never wrongly False."""
    size, null = len(data), b"null" in data
    digits = size >= len(_NINETEEN_DIGITS) and _NINETEEN_DIGITS in data.translate(_DIGITS_TO_ZERO)
    if null or digits:
        # A null may have been a NaN, and nineteen digits are a huge integer or an innocent text: MessagePack tells.
        try:
            packed = msgspec.msgpack.encode(value, enc_hook=_hook)
        except Exception:  # noqa: BLE001 - an integer beyond 64 bits, or something else to be looked at closely
            return True
        if (null and _NOT_FINITE.search(packed)) or (digits and _HUGE.search(packed)):
            return True
    return size > MAX_DEPTH and data.count(b"[") + data.count(b"{") > MAX_DEPTH and _is_deep(data)


def _is_deep(data: bytes) -> bool:
    outside_texts = data.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2]
    brackets = b"".join(outside_texts).translate(_BRACES_TO_BRACKETS, _ALL_BUT_BRACKETS)
    for _ in range(MAX_DEPTH):  # each round takes away the innermost level
        brackets = brackets.replace(b"[]", b"")
        if not brackets:
            return False
    return True


def _no_json(value: object, name: str, error: Refusal, broken: str) -> InvalidInput | InvalidResult:
    found = places.fault(value)
    places.close_coroutines(value)
    parts, rule = found or ([], f"a value of type {places.type_name(value)} cannot be written as JSON ({broken})")
    return _refused(name, parts, rule, error)


def _unfit(  # noqa: PLR0917 - what both ways of reading know of the value
    name: str,
    unfit: msgspec.ValidationError,
    tree: object,
    attempt: Callable[[object], object],
    annotation: Any,  # noqa: ANN401 - any annotation
    error: Refusal,
) -> InvalidInput | InvalidResult:
    """What is said of a value that does not fit, with the path, the value itself and the choices there are."""
    parts, rule = places.located(str(unfit), tree, attempt)
    misfit = unfit.__cause__ if isinstance(unfit.__cause__, models.Misfit) else None
    if misfit is not None:
        parts, rule = [*parts, *places.parts_of(misfit.way)], misfit.rule
    choices = shapes.choices(annotation, parts) if rule.startswith(_NO_CHOICE) else None
    if choices is not None:
        rule = f"must be one of {choices}"
    value = places.found_at(tree, parts)
    named = type(value) in _NAMED and (choices is not None or misfit is not None or rule.startswith("expected"))
    path = places.render(name, parts)
    return error(f"{path or 'the arguments'}{f'={places.shown(value)}' if named else ''}: {rule}", path=path)


def _refused(name: str, parts: list[places.Part], rule: str, error: Refusal) -> InvalidInput | InvalidResult:
    path = places.render(name, parts)
    return error(f"{path or 'the arguments'}: {rule}", path=path)


def _reader_of(annotation: Any) -> _Reader:  # noqa: ANN401 - any annotation
    try:
        hash(annotation)
    except TypeError:  # such as Annotated with a list
        return _new_reader(annotation)
    return _cached_reader(annotation)


def _new_reader(annotation: Any) -> _Reader:  # noqa: ANN401 - any annotation
    if isinstance(annotation, Untyped | TypeVar) or annotation is Any or annotation is object:
        return _Reader(_decode_plain, None)
    try:
        read = msgspec.json.Decoder(annotation, dec_hook=models.load).decode
    except NameError:  # an annotation inside the type cannot be resolved at run time
        return _Reader(_decode_plain, None)
    except TypeError as unsupported:  # no type that msgspec knows: a type all the same
        return _Reader(_refusing(str(unsupported)), None)
    return _Reader(read, shapes.shape_of(annotation))


_cached_reader = lru_cache(maxsize=1_024)(_new_reader)


def _refusing(message: str) -> Callable[[bytes | str], Any]:
    def refuse(_text: bytes | str) -> Never:
        raise TypeError(message)

    return refuse


def _why_untyped(annotation: Any) -> str:  # noqa: ANN401 - any annotation
    return annotation.why if isinstance(annotation, Untyped) else UNTYPED.why
