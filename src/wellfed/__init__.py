"""Keep GPUs fed: names only, each loaded when it is first used."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from wellfed.model.binding import Binding as Binding
    from wellfed.model.errors import WellfedError as WellfedError
    from wellfed.workflows.bind import bind as bind

__version__ = "0.1.0"

__all__ = ["Binding", "WellfedError", "__version__", "bind"]


def __getattr__(name: str) -> object:
    """Load a public name. Importing it costs a training script nothing before it is called."""
    if name == "bind":
        from wellfed.workflows.bind import bind

        return bind
    if name == "Binding":
        from wellfed.model.binding import Binding

        return Binding
    if name == "WellfedError":
        from wellfed.model.errors import WellfedError

        return WellfedError
    raise AttributeError(f"module 'wellfed' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
