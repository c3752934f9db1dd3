"""How are CPUs shared among ranks: one policy a file."""

from __future__ import annotations

import os

from wellfed.model.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from wellfed.placement.policies._base import Policy


def policy_names() -> tuple[str, ...]:
    """Return every policy there is, sorted."""
    files = os.listdir(os.path.dirname(__file__))
    return tuple(
        sorted(
            name.removesuffix(".py").replace("_", "-")
            for name in files
            if name.endswith(".py") and not name.startswith("_")
        )
    )


def policy_named(name: str) -> Policy:
    """Load one policy and no other; UsageError names the ones there are."""
    if name not in policy_names():
        raise UsageError(
            f"{name!r} is no policy", remedy=f"choose one of: {', '.join(policy_names())}"
        )
    # `__import__` because `importlib` would cost a launch an import of its own.
    module = __import__(f"wellfed.placement.policies.{name.replace('-', '_')}", fromlist=["POLICY"])
    policy: Policy = module.POLICY
    return policy
