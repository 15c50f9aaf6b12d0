"""What is hidden where values leave the store for people: a log, an error's text, a terminal.

The store itself keeps inputs, results and steps as they are, for a task needs them. What is hidden is the value under
a key that was named, at any depth; and, in every text of the same task, that value wherever it turns up again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import translate
from typing import Any, Final, TypeAlias

from taskrunner.core.errors import InvalidInput
from taskrunner.core.hints import is_async
from taskrunner.core.places import shown

Redact: TypeAlias = "Sequence[str] | Callable[[Any], Any]"

HIDDEN: Final = "[redacted]"
EVERYTHING: Final = "*"
"""The key that hides whole documents. It stands in the store for a function, which only the program itself can call."""

SHORTEST: Final = 6
"""Characters of a value that is looked for in texts: a shorter one would be found where nobody meant it."""

_MOST_SECRETS: Final = 1_000
_DEEPEST: Final = 200


class Redaction:
    """What is to be hidden. Without keys and without a function nothing is."""

    def __init__(self, keys: Iterable[str] = (), function: Callable[[Any], Any] | None = None) -> None:
        self.keys = tuple(keys) if function is None else (EVERYTHING,)
        """As the store keeps them, for commands that do not have the program."""
        self.is_active = bool(self.keys)
        self._function = function
        self._names = re.compile("|".join(translate(_folded(key)) for key in self.keys) or r"(?!)")
        self._secrets: dict[str, None] = {}

    def apart(self, *documents: object) -> Redaction:
        """The same for one task, with the values that its documents hold under the keys."""
        if not self.is_active:
            return self
        mine = Redaction(self.keys if self._function is None else (), self._function)
        mine._secrets.update(self._secrets)
        for document in documents:
            mine.learn(document)
        return mine

    def learn(self, document: object) -> None:
        """Remember what a document holds under the keys, to hide it in texts."""
        if self._function is None and self.keys and EVERYTHING not in self.keys:
            for secret in self._found(document, _DEEPEST):
                if len(secret) >= SHORTEST and len(self._secrets) < _MOST_SECRETS:
                    self._secrets.update(dict.fromkeys((secret, repr(secret)[1:-1], json.dumps(secret)[1:-1])))

    def value(self, document: Any) -> Any:  # noqa: ANN401 - any JSON, and what else people log
        """A document as it may be seen."""
        if not self.is_active or document is None:
            return document
        if self._function is not None:
            return self._by_function(document)
        return HIDDEN if EVERYTHING in self.keys else self._seen(document, _DEEPEST)

    def under(self, name: str, document: Any) -> Any:  # noqa: ANN401 - as above
        """As `value`, of what has a name itself, such as a step's."""
        return HIDDEN if self._is_hidden(name) and document is not None else self.value(document)

    def text(self, text: str) -> str:
        """A text as it may be seen."""
        if self._function is not None:
            seen = self._by_function(text)
            return seen if isinstance(seen, str) else HIDDEN
        for secret in sorted(self._secrets, key=len, reverse=True):
            if secret in text:
                text = text.replace(secret, HIDDEN)
        return text

    def _by_function(self, document: Any) -> Any:  # noqa: ANN401 - as the function returns
        try:
            return self._function(document) if self._function is not None else document
        except Exception:  # noqa: BLE001 - what cannot be looked through is not shown
            return HIDDEN

    def _is_hidden(self, name: object) -> bool:
        return self._function is None and self._names.match(_folded(str(name))) is not None

    def _seen(self, value: Any, depth: int) -> Any:  # noqa: ANN401 - any value
        if depth == 0:
            return HIDDEN
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {
                self.text(name) if isinstance(name, str) else name: HIDDEN
                if self._is_hidden(name) and item is not None
                else self._seen(item, depth - 1)
                for name, item in value.items()
            }
        if isinstance(value, list | tuple | set | frozenset):
            return [self._seen(item, depth - 1) for item in value]
        if value is None or isinstance(value, bool | int | float):
            return HIDDEN if str(value) in self._secrets else value
        return self._object(value)

    def _object(self, value: object) -> object:
        """What else people log: itself, if its text tells nothing that is to be hidden."""
        try:
            told = str(value)
        except Exception:  # noqa: BLE001 - anybody's __str__
            return value
        seen = self.text(told)
        return value if seen is told else seen

    def _found(self, value: object, depth: int, *, hidden: bool = False) -> Iterator[str]:
        if depth == 0:
            return
        if isinstance(value, Mapping):
            for name, item in value.items():
                yield from self._found(item, depth - 1, hidden=hidden or self._is_hidden(name))
        elif isinstance(value, list | tuple):
            for item in value:
                yield from self._found(item, depth - 1, hidden=hidden)
        elif hidden and isinstance(value, str | int | float):
            yield str(value)


NOTHING: Final = Redaction()


def redaction_of(redact: Redact) -> Redaction:
    """Make what the option `redact` says.

    Raises:
        InvalidInput: it is neither names of keys nor a plain function.
    """
    if callable(redact):
        if is_async(redact):
            message = f"redact={shown(redact)}: a plain function is wanted, for nobody would await another"
            raise InvalidInput(message, path="redact")
        return Redaction(function=redact)
    if isinstance(redact, str) or not isinstance(redact, Sequence | set | frozenset):
        message = f"redact={shown(redact)}: a list of keys is wanted, such as ['password', '*_token'], or a function"
        raise InvalidInput(message, path="redact")
    for key in redact:
        if not isinstance(key, str) or not key.strip() or not key.isprintable():
            message = f"redact: {shown(key)} is no name of a key"
            raise InvalidInput(message, path="redact")
    return Redaction(redact)


def _folded(name: str) -> str:
    """A key as it is compared: `Api-Key` is `api_key`."""
    return name.casefold().replace("-", "_")
