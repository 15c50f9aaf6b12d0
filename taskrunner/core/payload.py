"""Typed JSON: how a value goes into the store, and how it comes back as what it was.

msgspec writes and reads it (dataclasses, TypedDict, msgspec.Struct, datetime, Decimal, UUID, Enum, bytes as base64 …).
What it would write although strict JSON has no word for it (NaN, endless integers) is refused here, and the path named.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from taskrunner.core import places
from taskrunner.core.errors import InvalidInput, InvalidResult, PayloadTooLarge, error_text
from taskrunner.core.hints import UNTYPED, returns_of
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
    "record",
    "require_plain",
    "returns_of",
    "to_tree",
    "why_unsupported",
]

Refusal: TypeAlias = type[InvalidInput] | type[InvalidResult]
"""Which error says no: `InvalidInput` for what comes in, `InvalidResult` for what a task or a step gives back."""

SCALARS: Final = frozenset({str, int, float, bool, type(None)})

_DIGITS_TO_ZERO = bytes(48 if 48 <= byte <= 57 else 32 for byte in range(256))  # noqa: PLR2004 - "0" to "9", else a blank
_NINETEEN_DIGITS = b"0" * 19
_NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")  # a float 64 of MessagePack whose exponent is all ones
_HUGE = re.compile(rb"\xcf[\x80-\xff]")  # an unsigned integer 64 of MessagePack from 2**63 on
_BRACES_TO_BRACKETS = bytes.maketrans(b"{}", b"[]")
_ALL_BUT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_hook = places.as_scalar
_encode = msgspec.json.Encoder(enc_hook=_hook).encode
_encode_sorted = msgspec.json.Encoder(enc_hook=_hook, order="sorted").encode
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


def require_plain(value: object, *, name: str, error: Refusal) -> None:
    """Refuse what does not come back from JSON as itself: all but dicts with text keys, lists, texts, numbers, None.

    Raises:
        InvalidInput: (or `InvalidResult`, as `error` says) a tuple, a set, a dataclass, an integer key, …
    """
    if found := places.fault(value, plain=True):
        places.close_coroutines(value)
        raise _refused(name, *found, error)


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
        return msgspec.convert(again, annotation, str_keys=text_keys)

    try:
        return attempt(tree)
    except msgspec.ValidationError as unfit:
        raise _refused(name, *places.located(str(unfit), tree, attempt), error) from None
    except Exception as broken:  # noqa: BLE001 - a user's __post_init__ may raise anything
        raise _refused(name, [], f"cannot be made into its type: {error_text(broken)}", error) from None


def decode(text: str, annotation: Any, *, name: str, error: Refusal) -> Any:  # noqa: ANN401 - as annotated
    """Read JSON as the annotated type; as plain JSON where there is no annotation (or `Any`, or `object`).

    Raises:
        InvalidInput: (or `InvalidResult`, as `error` says) it does not fit, or the text is not JSON.
    """
    try:
        read = _decoder_of(annotation)
        return read(text)
    except msgspec.ValidationError as unfit:
        found = places.located(str(unfit), _decode_plain(text), lambda again: read(_encode(again)))
        raise _refused(name, *found, error) from None
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

    Without an annotation it has to be plain JSON, or it would come back as something else.

    Raises:
        InvalidInput: (or `InvalidResult`, as `error` says) it cannot be kept as it is.
        PayloadTooLarge: it is larger than `limit` bytes, and `error` is `InvalidInput`.
    """
    typed, kind = not is_untyped(annotation), type(value)
    if kind in SCALARS and (kind is annotation or not typed):  # JSON gives them back as they are
        return encode(value, name=name, error=error, limit=limit), value
    if not typed:
        require_plain(value, name=name, error=error)
    text = encode(value, name=name, error=error, limit=limit)
    if typed:
        fit(value, annotation, name=name, error=error)
    return text, decode(text, annotation, name=name, error=error)


def is_untyped(annotation: Any) -> bool:  # noqa: ANN401 - any annotation
    """Whether an annotation says nothing about a value's form: there is none, it is `Any`, `object`, a type variable.

    So does a type whose own annotations cannot be resolved at run time.
    """
    try:
        return _decoder_of(annotation) is _decode_plain
    except TypeError:  # no type that msgspec knows: a type all the same
        return False


def why_unsupported(annotation: Any) -> str | None:  # noqa: ANN401 - any annotation
    """Why values of this type cannot be kept as JSON; None when they can."""
    if is_untyped(annotation):
        return None
    try:
        unknown = _unknown_class(msgspec.inspect.type_info(annotation), set())
    except Exception as broken:  # noqa: BLE001 - msgspec says why by TypeError, a user's class by anything
        return f"msgspec cannot keep it as JSON ({str(broken).partition(' - type ')[0]})"
    if unknown is None:
        return None
    inside = "it" if unknown is annotation else unknown.__qualname__
    return f"{inside} has no JSON form (use JSON, a dataclass, a TypedDict or a msgspec.Struct)"


def digest(args: Sequence[object], kwargs: Mapping[str, object]) -> str:
    """A short text that tells one call's arguments from another's; keys and sets count in sorted order.

    An argument without a JSON form (a client, a connection) counts by its type's name.
    """
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
        return _encode_sorted(msgspec.to_builtins(value, str_keys=True, order="deterministic", enc_hook=_hook))
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


def _refused(name: str, parts: list[places.Part], rule: str, error: Refusal) -> InvalidInput | InvalidResult:
    path = places.render(name, parts)
    return error(f"{path or 'the arguments'}: {rule}", path=path)


def _decoder_of(annotation: Any) -> Callable[[bytes | str], Any]:  # noqa: ANN401 - any annotation
    try:
        hash(annotation)
    except TypeError:  # such as Annotated with a list
        return _new_decoder(annotation)
    return _cached_decoder(annotation)


def _new_decoder(annotation: Any) -> Callable[[bytes | str], Any]:  # noqa: ANN401 - any annotation
    if annotation is UNTYPED or annotation is Any or annotation is object or isinstance(annotation, TypeVar):
        return _decode_plain
    try:
        return msgspec.json.Decoder(annotation).decode
    except NameError:  # an annotation inside the type cannot be resolved at run time
        return _decode_plain


_cached_decoder = lru_cache(maxsize=1_024)(_new_decoder)


def _unknown_class(info: object, seen: set[int]) -> type | None:
    """The first class in a type's description that msgspec would hand to a hook."""
    if id(info) in seen:
        return None
    seen.add(id(info))
    if isinstance(info, msgspec.inspect.CustomType):
        return None if info.cls is object else info.cls
    inner = info if isinstance(info, tuple) else ()
    if isinstance(info, msgspec.inspect.Type | msgspec.inspect.Field):
        inner = tuple(getattr(info, name) for name in info.__struct_fields__)
    found = (_unknown_class(part, seen) for part in inner)
    return next((unknown for unknown in found if unknown is not None), None)
