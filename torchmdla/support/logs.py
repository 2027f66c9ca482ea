"""Python loggers by topic: ``torchmdla.groups``, ``torchmdla.fallback`` and so on."""

from __future__ import annotations

import logging
import os
import warnings
from typing import Literal, get_args

from torchmdla.errors import unknown_name

Topic = Literal["groups", "fallback", "compile", "cache", "timing"]
TOPICS: tuple[Topic, ...] = get_args(Topic)

_FORMAT = "%(asctime)s %(name)s: %(message)s"


def logger(topic: Topic | Literal["explain", "tuning"]) -> logging.Logger:
    """Return the logger of a topic."""
    return logging.getLogger(f"torchmdla.{topic}")


def set_logs(
    *, groups: bool = False, fallback: bool = False, compile: bool = False, cache: bool = False, timing: bool = False
) -> None:
    """Set the topics that are logged at level INFO; the other topics are turned off.

    Lines go to the standard error stream, or to the program's own ``logging`` handlers if it has any.
    ``TORCHMDLA_LOGS=groups,cache`` (or ``all``) does the same from the start of the process.

    Args:
        groups: whether to log the groups of a program, and the input types that each is compiled for.
        fallback: whether to log each group or operator that runs in PyTorch's interpreter, with the reason and the
            line.
        compile: whether to log each program that the compiler compiles or refuses.
        cache: whether to log each program that is found in memory or on disk, stored or removed.
        timing: whether to log the time of importing, compiling and loading, stage by stage.
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
    """Set the logs that ``TORCHMDLA_LOGS`` requests; warn of an unknown topic."""
    text = os.environ.get("TORCHMDLA_LOGS", "")
    names = {name.strip() for name in text.split(",") if name.strip()}
    if not names:
        return
    if unknown := sorted(names - {*TOPICS, "all"}):
        message = f"torchmdla: TORCHMDLA_LOGS: {unknown_name('topic', unknown[0], (*TOPICS, 'all'))}"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    set_logs(**{topic: topic in names or "all" in names for topic in TOPICS})
