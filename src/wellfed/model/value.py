"""What is a frozen value, without what ``dataclasses`` costs a process that only launches another?"""

from __future__ import annotations

# ``import dataclasses`` pulls inspect, re, enum and tokenize: 17 ms of a 15 ms interpreter start on the
# machine where this was measured. ``wellfed run`` pays for every import once per rank, so the words of
# the model are built by this metaclass; type checkers treat it as the dataclass transform of PEP 681.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    from typing_extensions import dataclass_transform

    T = TypeVar("T", bound="Value")
else:

    def dataclass_transform(**_options):
        """Mark nothing at run time."""
        return lambda decorated: decorated


@dataclass_transform(frozen_default=True)
class ValueType(type):
    """The class of frozen value classes: annotated names become slots, in the order written."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> ValueType:
        """Turn annotations into slots and remember defaults."""
        own = tuple(namespace.get("__annotations__", ()))
        defaults = {field: namespace.pop(field) for field in own if field in namespace}
        namespace["__slots__"] = own
        made = super().__new__(mcs, name, bases, namespace)
        inherited = [base for base in made.__mro__[1:] if isinstance(base, ValueType)]
        made.value_fields = (inherited[0].value_fields if inherited else ()) + own
        made.value_defaults = (inherited[0].value_defaults if inherited else {}) | defaults
        return made

    value_fields: tuple[str, ...]
    value_defaults: dict[str, Any]


class Value(metaclass=ValueType):
    """A frozen record: fields are its annotations; equal when type and fields are."""

    def __init__(self, *args: Any, **named: Any) -> None:
        """Take fields by position or by name."""
        fields = type(self).value_fields
        defaults = type(self).value_defaults
        if len(args) > len(fields):
            raise TypeError(f"{type(self).__name__} takes {len(fields)} fields, not {len(args)}")
        put = object.__setattr__
        for field, value in zip(fields, args, strict=False):
            put(self, field, value)
        for field in fields[len(args) :]:
            if field in named:
                put(self, field, named.pop(field))
            elif field in defaults:
                put(self, field, defaults[field])
            else:
                raise TypeError(f"{type(self).__name__} needs the field {field!r}")
        if named:
            raise TypeError(
                f"{type(self).__name__} has no field {sorted(named)[0]!r}, or has it twice"
            )

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse: a value never changes, see `replace`."""
        raise AttributeError(f"{type(self).__name__} is frozen; use wellfed.model.value.replace")

    def __delattr__(self, name: str) -> None:
        """Refuse: a value never changes."""
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __eq__(self, other: object) -> bool:
        """Compare type and every field."""
        return type(other) is type(self) and as_tuple(other) == as_tuple(self)

    def __hash__(self) -> int:
        """Hash type and every field."""
        return hash((type(self), as_tuple(self)))

    def __repr__(self) -> str:
        """Show the constructor call that makes this value."""
        fields = ", ".join(f"{f}={getattr(self, f)!r}" for f in type(self).value_fields)
        return f"{type(self).__name__}({fields})"

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        """Pickle and copy through the constructor."""
        return type(self), as_tuple(self)


def as_tuple(value: Value) -> tuple[Any, ...]:
    """Return the fields of a value in their order."""
    return tuple(getattr(value, field) for field in type(value).value_fields)


def as_dict(value: Value) -> dict[str, Any]:
    """Return the fields of a value by name, not descending into other values."""
    return {field: getattr(value, field) for field in type(value).value_fields}


def replace(value: T, **changes: Any) -> T:
    """Return the same value with some fields changed."""
    return type(value)(**(as_dict(value) | changes))
