"""pydantic's models as inputs and results: kept by pydantic itself, with a path to what it refuses."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pytest
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    HttpUrl,
    PrivateAttr,
    RootModel,
    SecretStr,
    computed_field,
    field_serializer,
    field_validator,
    model_validator,
)

from taskrunner.authoring.signature import Signature
from taskrunner.core import payload
from taskrunner.core.errors import InvalidInput, InvalidResult

T = TypeVar("T")


class Colour(Enum):
    """An enum."""

    RED = "red"


class Hit(BaseModel):
    """A plain model."""

    url: str
    score: float


class Strict(BaseModel):
    """It takes what it says, and knows the forms of JSON."""

    model_config = ConfigDict(strict=True, extra="forbid")

    day: date
    ids: tuple[UUID, ...]
    colours: set[Colour] = Field(default_factory=set)


class Rich(BaseModel):
    """Types that only pydantic can write."""

    link: HttpUrl
    place: Path
    amount: Decimal
    at: datetime
    parts: dict[str, list[Hit]]
    either: Hit | Strict | int
    raw: bytes = b""
    _cache: object = PrivateAttr(default_factory=object)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def size(self) -> int:
        """How many parts there are."""
        return len(self.parts)


class Named(BaseModel):
    """Its JSON has another name."""

    page_count: int = Field(alias="pageCount")


class Page(BaseModel, Generic[T]):
    """A generic model."""

    items: list[T]


class Numbers(RootModel[list[int]]):
    """A model that is a list in JSON."""


class Checked(BaseModel):
    """It checks itself."""

    low: int
    high: int

    @model_validator(mode="after")
    def in_order(self) -> Checked:
        """Refuse a range that is none."""
        if self.low > self.high:
            message = "low must not be above high"
            raise ValueError(message)
        return self


class Tree(BaseModel):
    """A model of itself."""

    name: str
    children: list[Tree] = []


class Secret(BaseModel):
    """What it holds is not shown."""

    user: str
    password: SecretStr


class Hiding(BaseModel):
    """It leaves a field out of its JSON."""

    seen: int
    hidden: int = Field(default=0, exclude=True)


class Odd(BaseModel):
    """It writes something else than it is."""

    value: int

    @field_serializer("value")
    def more(self, value: int) -> int:
        """One more."""
        return value + 1


class Broken(BaseModel):
    """Its own code raises what no validator should."""

    value: int

    @field_validator("value")
    @classmethod
    def breaks(cls, _value: int) -> int:
        """Raise."""
        raise KeyError("no such value")


@dataclasses.dataclass
class Around:
    """A dataclass around models."""

    first: Hit | None
    rest: list[Hit]


class Options(TypedDict):
    """A TypedDict around a model."""

    by: dict[str, Hit]


class Struct(msgspec.Struct):
    """A Struct around a model."""

    hit: Hit


hit = Hit(url="a", score=0.5)
strict = Strict(day=date(2026, 1, 1), ids=(UUID(int=7),), colours={Colour.RED})


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Hit, hit),
        (Hit | None, None),
        (Hit | None, hit),
        (list[Hit], [hit, hit]),
        (dict[str, Hit], {"a": hit}),
        (tuple[Hit, int], (hit, 1)),
        (Around, Around(hit, [hit])),
        (Around, Around(None, [])),
        (Options, {"by": {"x": hit}}),
        (Struct, Struct(hit)),
        (Strict, strict),
        (Named, Named(pageCount=3)),
        (Page[Hit], Page[Hit](items=[hit])),
        (list[Page[int]], [Page[int](items=[1])]),
        (Numbers, Numbers([1, 2])),
        (Tree, Tree(name="a", children=[Tree(name="b", children=[Tree(name="c")])])),
        (Hiding, Hiding(seen=1)),
        (
            Rich,
            Rich(
                link=HttpUrl("https://example.org/x"),
                place=Path("/tmp/x"),  # noqa: S108 - nothing is made there
                amount=Decimal("1.10"),
                at=datetime(2026, 1, 1, tzinfo=UTC),
                parts={"a": [hit]},
                either=strict,
                raw=b"raw",
            ),
        ),
    ],
    ids=repr,
)
def test_a_model_comes_back_as_itself(annotation: object, value: object) -> None:
    """Alone and inside of lists, dicts, dataclasses, Structs and TypedDicts; the first time and on replay."""
    text, first = payload.record(value, annotation, name="x", error=InvalidResult)
    json.loads(text, parse_constant=pytest.fail)
    again = payload.decode(text, annotation, name="x", error=InvalidResult)
    assert plain(first) == plain(again) == plain(value)
    assert type(again) is type(value)


def plain(value: Any) -> Any:  # noqa: ANN401 - any value
    """A model without what is its own, such as a cache."""
    return value.model_dump() if isinstance(value, BaseModel) else value


@pytest.mark.parametrize(
    ("annotation", "value", "path", "rule"),
    [
        (Hit, {"url": "a", "score": "high"}, "x.score", "x.score='high': input should be a valid number"),
        (Hit, {"url": "a"}, "x.score", "x.score: is missing"),
        (Hit, 3, "x", "x=3: input should be an object"),
        (Hit | None, {"url": 3, "score": 1}, "x.url", "input should be a valid string"),
        (list[Hit], [hit, {"url": "a"}], "x[1].score", "is missing"),
        (dict[str, Hit], {"a": hit, "b": {"url": []}}, 'x["b"].url', "input should be a valid string"),
        (Around, Around(hit, [{"url": "a", "score": None}]), "x.rest[0].score", "input should be a valid number"),  # type: ignore[list-item]
        (Options, {"by": {"k": {"score": 1}}}, 'x.by["k"].url', "is missing"),
        (Strict, {"day": "someday", "ids": []}, "x.day", "input should be a valid date"),
        (Strict, {"day": "2026-01-01", "ids": ["7"]}, "x.ids[0]", "input should be a valid UUID"),
        (Strict, {"day": "2026-01-01", "ids": [], "more": 1}, "x.more", "extra inputs are not permitted"),
        (Page[Hit], {"items": [{"url": "a", "score": 1}, {"url": "b", "score": "c"}]}, "x.items[1].score", "number"),
        (Tree, {"name": "a", "children": [{"name": "b", "children": [{"name": 3}]}]}, "x.children[0].children[0].name",
         "x.children[0].children[0].name=3: input should be a valid string"),
        (Checked, {"low": 2, "high": 1}, "x", "value error, low must not be above high"),
        (list[Broken], [{"value": 1}], "x[0]", "cannot be made into its type: KeyError"),
        (Hit, Hit.model_construct(url=3, score=1.0), "x.url", "input should be a valid string"),
        (list[Hit], [hit, Hit(url="a", score=math.nan)], "x[1].score", "nan has no JSON form"),
        (Secret, Secret(user="a", password=SecretStr("b")), "x.password", "comes back from the model's JSON"),
        (Hiding, Hiding(seen=1, hidden=2), "x.hidden", "comes back from the model's JSON as another value"),
        (dict[str, Odd], {"a": Odd(value=1)}, 'x["a"].value', "comes back from the model's JSON as another value"),
        (Annotated[int, msgspec.Meta(ge=0)], hit, "x", "expected"),
        (Literal["a"], hit, "x", ""),
    ],
)  # fmt: skip
def test_what_a_model_refuses_is_refused_with_its_path(annotation: object, value: object, path: str, rule: str) -> None:
    """One sentence with the way to the place, through lists and dicts, and what pydantic says of it."""
    with pytest.raises(InvalidResult) as caught:
        payload.record(value, annotation, name="x", error=InvalidResult)
    text = str(caught.value)
    assert caught.value.path == path, text
    assert rule in text
    assert "\n" not in text
    assert "http" not in text


@pytest.mark.parametrize("annotation", [payload.UNTYPED, Any, object, dict[str, Any]])
def test_a_model_without_its_annotation_is_refused(annotation: object) -> None:
    """It would come back as a dict: the annotation has to say what it is."""
    with pytest.raises(InvalidResult, match="only plain JSON is taken, not a value of type Hit"):
        payload.record({"a": hit}, annotation, name="x", error=InvalidResult)


def test_the_digest_of_a_model_is_the_same_for_equal_ones() -> None:
    """Sets count in sorted order; another value is another digest, at any depth."""

    class Bag(BaseModel):
        words: set[str]
        hit: Hit

    words = [f"word {number}" for number in range(50)]
    one, other = Bag(words=set(words), hit=hit), Bag(words=set(), hit=hit)
    for word in reversed(words):
        other.words.add(word)
    assert payload.digest([one], {}) == payload.digest([other], {})
    assert payload.digest([[one]], {}) != payload.digest([[Bag(words=set(words), hit=Hit(url="b", score=1))]], {})


def ask(query: Hit, more: list[Hit] | None = None, *, options: Options | None = None) -> None:
    """A function as tasks are."""


def test_a_signature_takes_models() -> None:
    """A call becomes JSON and a call again, each argument of its annotated type; from a plain dict as well."""
    signature = Signature(ask)
    text = signature.encode((hit,), {"more": [hit], "options": {"by": {"a": hit}}})
    assert signature.decode(json.loads(text)) == ((), {"query": hit, "more": [hit], "options": {"by": {"a": hit}}})
    plain_text = signature.encode(({"url": "a", "score": 0.5},), {})
    assert signature.decode(json.loads(plain_text)) == ((), {"query": hit})
    with pytest.raises(InvalidInput) as caught:
        signature.encode((hit, [hit, {"url": "a", "score": "x"}]), {})
    assert (caught.value.path, str(caught.value)[:22]) == ("more[1].score", "more[1].score='x': inp")
    with pytest.raises(InvalidInput, match=r"^query\.score: is missing$"):
        signature.decode({"query": {"url": "a"}})


def test_two_models_in_one_union_are_refused_at_the_definition() -> None:
    """Which of them a value is cannot be told: inside of a model pydantic can, and there it is taken."""

    def either(one: Hit | Secret) -> None: ...

    with pytest.raises(InvalidInput, match="parameter 'one'"):
        Signature(either)


WITHOUT = """
import sys
sys.modules["pydantic"] = None  # as if it were not installed
import anyio, dataclasses
from taskrunner import TaskRunner

runner = TaskRunner(sys.argv[1])

@dataclasses.dataclass
class Query:
    text: str

@runner.task
async def ask(query: Query) -> list[Query]:
    return [query]

async def main():
    async with runner.working():
        print(await (await ask.enqueue(Query("tea"))).result())

anyio.run(main)
print(sorted(name for name in sys.modules if name.startswith("pydantic")))
"""


def test_it_works_without_pydantic(tmp_path: Path) -> None:
    """Nothing of ours needs or imports it."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-W", "error", "-c", WITHOUT, str(tmp_path / "agent.db")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (done.stdout, done.stderr) == ("[Query(text='tea')]\n['pydantic']\n", "")
