"""Python's logs, by topic: loggers ``torchmdla.groups``, ``torchmdla.fallback`` and so on."""

from __future__ import annotations

import logging
import os
import warnings
from typing import Literal, get_args

Topic = Literal["groups", "fallback", "compile", "cache", "timing"]
TOPICS: tuple[Topic, ...] = get_args(Topic)

_FORMAT = "%(asctime)s %(name)s: %(message)s"


def logger(topic: Topic | Literal["explain", "tuning"]) -> logging.Logger:
    """The logger of a topic."""
    return logging.getLogger(f"torchmdla.{topic}")


def set_logs(
    *, groups: bool = False, fallback: bool = False, compile: bool = False, cache: bool = False, timing: bool = False
) -> None:
    """Chooses what is logged, at level INFO; what is not named is no longer.

    Lines go to the standard error stream, or where the program's own ``logging`` handlers put them if it has any.
    ``TORCHMDLA_LOGS=groups,cache`` (or ``all``) does the same from the start of the process.

    Args:
        groups: the groups of a program, and what each is compiled for.
        fallback: each group, or operator of one, that runs in PyTorch's interpreter, with the reason and the line.
        compile: each program that the compiler compiles or refuses.
        cache: each program found in memory or on disk, stored or removed.
        timing: what importing, compiling and loading took, stage by stage.
    """
    wanted = {"groups": groups, "fallback": fallback, "compile": compile, "cache": cache, "timing": timing}
    for topic in TOPICS:
        logger(topic).setLevel(logging.INFO if wanted[topic] else logging.NOTSET)
    root = logging.getLogger("torchmdla")
    if any(wanted.values()) and not root.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(_FORMAT))
        root.addHandler(handler)


def set_from_environment() -> None:
    """What ``TORCHMDLA_LOGS`` asks for; warns of a topic that there is not."""
    text = os.environ.get("TORCHMDLA_LOGS", "")
    names = {name.strip() for name in text.split(",") if name.strip()}
    if not names:
        return
    if unknown := sorted(names - {*TOPICS, "all"}):
        message = f"torchmdla: TORCHMDLA_LOGS has no topic {unknown[0]!r}; there are {', '.join(TOPICS)} and all"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    set_logs(**{topic: topic in names or "all" in names for topic in TOPICS})
