"""What went wrong, in one sentence, and what to type next."""

from __future__ import annotations


class WellfedError(Exception):
    """Every error that a person can cause or mend; the command line prints it and its remedy, and exits 2."""

    def __init__(self, message: str, *, remedy: str) -> None:
        """Say what was found and what was wanted in ``message``, and what to do in ``remedy``."""
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle with the remedy, which is keyword-only."""
        return _rebuild, (type(self), self.message, self.remedy)


def _rebuild(kind: type[WellfedError], message: str, remedy: str) -> WellfedError:
    return kind(message, remedy=remedy)


class UsageError(WellfedError):
    """The words on the command line or the arguments of a call do not fit together."""


class MalformedTextError(WellfedError):
    """A text that should be a CPU list, a mask, a size or a document is not one."""


class RecordingError(WellfedError):
    """A recorded host is damaged, hostile or not a recording."""


class TopologyError(WellfedError):
    """A host contradicts itself, or lacks what the question needs."""


class GpuError(WellfedError):
    """A GPU that was asked for is not there, or cannot be asked."""


class PlacementError(WellfedError):
    """No placement fulfils what was asked for."""


class BindingError(WellfedError):
    """The kernel refused or silently changed a binding."""

    def __init__(self, message: str, *, remedy: str, errno_name: str | None = None) -> None:
        """Keep the kernel's answer where there was one: ``EINVAL``, ``EPERM``."""
        super().__init__(message, remedy=remedy)
        self.errno_name = errno_name


class LaunchError(WellfedError):
    """A command could not be started as asked."""

    def __init__(self, message: str, *, remedy: str, exit_code: int = 2) -> None:
        """Keep the shell's conventions: 126 not executable, 127 not found, 2 anything before launch."""
        super().__init__(message, remedy=remedy)
        self.exit_code = exit_code


class IsolationError(WellfedError):
    """This host does not let us make the cgroup or scope that was asked for."""
