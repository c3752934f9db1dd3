"""Which port of this host is free for ranks to meet at?"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket as _socket
else:
    # The C module itself: `socket` around it imports selectors and enum.
    import _socket


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nobody listens on now; the first rank takes it a moment later."""
    probe = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    try:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    finally:
        probe.close()
    return port
