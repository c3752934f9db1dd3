"""Where does wellfed keep what has to outlive a process?"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

SYSTEM_STATE = "/var/lib/wellfed"
STATE_VARIABLE = "WELLFED_STATE_DIR"
"""Another folder, above all others."""


def state_folder(environment: Mapping[str, str]) -> str:
    """Return the folder for records of borrowed settings: /var/lib/wellfed for root, else below $XDG_STATE_HOME."""
    chosen = environment.get(STATE_VARIABLE)
    if not chosen and os.geteuid() == 0:
        chosen = SYSTEM_STATE
    if not chosen:
        home = os.path.join(environment.get("HOME", "/"), ".local/state")
        chosen = os.path.join(environment.get("XDG_STATE_HOME") or home, "wellfed")
    return os.path.join(chosen, "borrowed")


def has_records(folder: str) -> bool:
    """Say whether any launch has a record there, ended or not: most hosts have not even the folder."""
    try:
        return any(name[:1].isdigit() for name in os.listdir(folder))
    except OSError:
        return False
