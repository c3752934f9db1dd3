"""Which environment variables a launch sets, removes or leaves as they are, and why."""

from __future__ import annotations

from wellfed.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class EnvironmentChange(Value):
    """One variable of a rank. Said aloud where it was set by somebody before."""

    name: str
    value: str | None
    """What the rank gets; None: the variable is removed."""
    before: str | None
    """What stood there, None where it was not set."""
    reason: str
    """One sentence: what it does to the job."""
    warning: bool = False
    """Whether what the person has set harms the placement, or what is done overrides it: worth a line on stderr."""

    @property
    def kept(self) -> bool:
        """Whether the variable stays as it was found."""
        return self.value == self.before


def changed(
    environment: Mapping[str, str], changes: tuple[EnvironmentChange, ...]
) -> dict[str, str]:
    """Return an environment with changes made, in their order."""
    result = dict(environment)
    for change in changes:
        if change.value is None:
            result.pop(change.name, None)
        else:
            result[change.name] = change.value
    return result
