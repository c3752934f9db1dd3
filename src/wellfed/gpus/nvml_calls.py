"""How is NVML asked, so that a live driver and a recording answer the same questions?"""

from __future__ import annotations

from wellfed.gpus.nvml_log import Call, Handle, Refused
from wellfed.model.cpuset import CpuSet
from wellfed.model.errors import MalformedTextError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Protocol, TypeVar

    from wellfed.gpus.nvml_log import Answer, Argument

    T = TypeVar("T")
else:
    Protocol = object

BITS_PER_WORD = 64
"""NVML writes sets into arrays of unsigned long (nvml.h, nvmlDeviceGetCpuAffinity)."""


class Calls(Protocol):
    """NVML, live or recorded. An error of NVML is an answer, not an exception: one GPU never hides the others."""

    def call(self, function: str, *arguments: Argument) -> Answer:
        """Ask one function of ``libnvidia-ml.so.1`` by its symbol, with its inputs only."""


class RecordedCalls:
    """NVML as it answered when a host was recorded."""

    def __init__(self, calls: Iterable[Call]) -> None:
        """Take the calls of a recording; of two for the same question the later one holds."""
        self._answers = {(call.function, call.arguments): call.answer for call in calls}

    def call(self, function: str, *arguments: Argument) -> Answer:
        """Return the recorded answer; what was not asked then is `NOT_RECORDED`, which is not "Not Supported"."""
        return self._answers.get((function, arguments), Refused("NOT_RECORDED"))


class RecordingCalls:
    """Asks somebody else, and remembers every call in order; the same question is asked once."""

    def __init__(self, asked: Calls) -> None:
        """Take whom to ask."""
        self._asked = asked
        self._answers: dict[tuple[str, tuple[Argument, ...]], Answer] = {}

    def call(self, function: str, *arguments: Argument) -> Answer:
        """Ask, or repeat what was answered before."""
        key = (function, arguments)
        if key not in self._answers:
            self._answers[key] = self._asked.call(function, *arguments)
        return self._answers[key]

    @property
    def calls(self) -> tuple[Call, ...]:
        """Everything that was asked, in order."""
        return tuple(Call(*question, answer) for question, answer in self._answers.items())


class LiveCalls:
    """The driver of this host, through the module ``pynvml`` of nvidia-ml-py."""

    def __init__(self, pynvml: Any, *, num_cpu_ids: int, num_node_ids: int) -> None:
        """Take the module, and how large CPU and node numbers can get on this host.

        NVML fills as many words as it is given and says nothing of what did not fit, so the sizes come from the
        highest possible number, not from how many CPUs are online: with CPUs 0-3 and 128-131 there are 8, and 3 words.
        """
        self._pynvml = pynvml
        self._num_words = {
            "nvmlDeviceGetCpuAffinity": -(-num_cpu_ids // BITS_PER_WORD),
            "nvmlDeviceGetCpuAffinityWithinScope": -(-num_cpu_ids // BITS_PER_WORD),
            "nvmlDeviceGetMemoryAffinity": -(-num_node_ids // BITS_PER_WORD),
        }
        self._codes = {
            value: name for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_")
        }
        self._devices: dict[Handle, Any] = {}
        self._names: dict[int, Handle] = {}

    def call(self, function: str, *arguments: Argument) -> Answer:
        """Ask the driver. The only place where an error of NVML turns from an exception into a value."""
        bound = self._bound(function)
        if bound is None:
            return Refused("NVML_ERROR_FUNCTION_NOT_FOUND")
        inputs = [self._devices[a] if isinstance(a, Handle) else a for a in arguments]
        if function in self._num_words:
            inputs.insert(1, self._num_words[function])
        try:
            return self._plain(function, arguments, bound(*inputs))
        except self._pynvml.NVMLError as refusal:
            number = refusal.value
            return Refused(self._codes.get(number, f"NVML_ERROR_{number}"))
        except UnicodeDecodeError:
            return Refused("NOT_TEXT")

    def _bound(self, function: str) -> Any:
        """Find the Python function for a symbol: nvidia-ml-py hides some versions behind the plain name."""
        plain, version, digits = function.rpartition("_v")
        names = [function, plain] if version and digits.isdigit() else [function]
        return next(
            (vars(self._pynvml)[name] for name in names if name in vars(self._pynvml)), None
        )

    def _plain(self, function: str, arguments: tuple[Argument, ...], raw: Any) -> Answer:
        """Turn what ctypes gave into what a recording can hold."""
        if raw is None or isinstance(raw, int | str):
            return raw
        if function in self._num_words:
            mask = sum(word << BITS_PER_WORD * place for place, word in enumerate(raw))
            return str(CpuSet.of_mask(mask))
        if isinstance(raw, list | tuple):
            return tuple(raw)
        if isinstance(raw, self._pynvml.c_nvmlDevice_t):
            return self._named(function, arguments, raw)
        return {field: _text_or_number(getattr(raw, field)) for field, *_ in raw._fields_}

    def _named(self, function: str, arguments: tuple[Argument, ...], device: Any) -> Handle:
        """Name a device by how it was found; NVML gives the same pointer for the same device."""
        import ctypes

        pointer = ctypes.cast(device, ctypes.c_void_p).value or 0
        if pointer not in self._names:
            if function == "nvmlDeviceGetHandleByIndex_v2":
                name = f"gpu{arguments[0]}"
            elif function == "nvmlDeviceGetMigDeviceHandleByIndex":
                parent = arguments[0]
                assert isinstance(parent, Handle)
                name = f"{parent.name}mig{arguments[1]}"
            else:
                name = f"device{len(self._names)}"
            self._names[pointer] = Handle(name)
            self._devices[Handle(name)] = device
        return self._names[pointer]


def ask(calls: Calls, kind: type[T], function: str, *arguments: Argument) -> T | Refused:
    """Ask for an answer of one kind; MalformedTextError where a recording holds another."""
    answer = calls.call(function, *arguments)
    if isinstance(answer, Refused):
        return answer
    if isinstance(answer, kind):
        return answer
    raise MalformedTextError(
        f"the NVML recording answers {function} with {answer!r}; wanted: {_KINDS[kind]}",
        remedy="record the host again",
    )


def ask_set(calls: Calls, function: str, *arguments: Argument) -> CpuSet | Refused:
    """Ask for a set of CPUs or nodes."""
    answer = ask(calls, str, function, *arguments)
    return answer if isinstance(answer, Refused) else CpuSet.parse(answer)


_KINDS: dict[type, str] = {
    int: "a number",
    str: "a quoted text",
    tuple: "an array",
    dict: "an object",
    Handle: "a handle such as gpu0",
}


def _text_or_number(raw: Any) -> int | str:
    found: int | str = raw.decode() if isinstance(raw, bytes) else raw
    return found
