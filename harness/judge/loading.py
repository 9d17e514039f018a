"""The file under test as a module: loaded once, under a private name."""

import hashlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, Self

from harness.base.errors import SubmissionError, nearest
from harness.content.submission import Submission


def load_module(path: Path) -> ModuleType:
    """
    Import the file at `path` under a name made from its path, so that no two files meet.

    Whatever the file itself raises passes through untouched.
    """
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    name = f"_kata_{path.stem}_{digest}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise SubmissionError(f"{path}: expected a Python file, found none.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@dataclass(frozen=True, kw_only=True)
class Loadable(Submission):
    """A submission whose code can be called; it is imported when it is first asked for."""

    @classmethod
    def of(cls, found: Submission) -> Self:
        """The same submission, not imported yet."""
        return cls(**{one.name: getattr(found, one.name) for one in fields(found)})

    @cached_property
    def module(self) -> ModuleType:
        """
        The loaded file.

        Raises:
            SubmissionError: a function that kata.toml names is missing.
        """
        module = load_module(self.path)
        for name in self.kata.functions:
            if not callable(found := getattr(module, name, None)):
                others = [other for other in vars(module) if not other.startswith(("__", name))]
                what = "none" if found is None else repr(found)
                raise SubmissionError(
                    f"{self.path}: expected a function `{name}` (kata.toml `functions`), found "
                    f"{what}.{nearest(name, others)}"
                )
        return module

    def named(self, function: str) -> Callable[..., Any]:
        """One of the kata's functions."""
        return getattr(self.module, function)  # type: ignore[no-any-return]

    @property
    def entry(self) -> Callable[..., Any]:
        """The first of the kata's functions: the one the shared checks call."""
        return getattr(self.module, self.kata.functions[0])  # type: ignore[no-any-return]
