"""Stand-ins for modules that a reference imports but that recording never needs. One that is used fails.

`env.toml` names them, each with the reason why nothing of it is called. A name of a stub can be imported,
passed about, subclassed and asked for with `isinstance`; calling it raises `StubCalled`. A reference that
needs more at import time (a decorator, a constant) gets a module of that name in this folder.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).parent


class StubCalled(RuntimeError):
    """Something real was about to be computed by a stand-in."""


class Name:
    """Any attribute of a stubbed module."""

    def __init__(self, path: str, reason: str) -> None:
        self._path, self._reason = path, reason

    def __getattr__(self, name: str) -> Name:
        if name.startswith("__"):
            raise AttributeError(name)
        return Name(f"{self._path}.{name}", self._reason)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise StubCalled(f"{self._path} is a stub ({self._reason}), and was called")

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return ()

    def __instancecheck__(self, instance: Any) -> bool:
        return False

    def __getitem__(self, item: Any) -> Name:
        return self

    def __or__(self, other: Any) -> Any:
        return other

    __ror__ = __or__


class Finder(MetaPathFinder, Loader):
    """Finds the stubbed packages and everything below them."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        self.reasons = reasons

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in self.reasons:
            return None
        written = HERE / f"{fullname}.py"
        if written.exists():
            return importlib.util.spec_from_file_location(fullname, written)
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        reason = self.reasons[module.__name__.partition(".")[0]]

        def attribute(name: str) -> Name:
            if name.startswith("__"):
                raise AttributeError(name)
            return Name(f"{module.__name__}.{name}", reason)

        module.__dict__["__getattr__"] = attribute
        module.__dict__["__version__"] = "0"


def install(reasons: Mapping[str, str]) -> None:
    """Put stubs in place of modules: name -> why nothing of it is called. An empty reason is an error."""
    for name, reason in reasons.items():
        if not reason.strip():
            raise ValueError(f"the stub {name!r} has no reason")
        if name in sys.modules:
            raise ValueError(f"{name!r} is imported already: a stub would come too late")
    sys.meta_path.insert(0, Finder(reasons))
