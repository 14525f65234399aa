"""Old names, kept for one release: they still work, and warn once of the new one.

Modules that moved are in :data:`MOVED`. Names within a module, attributes of a class and parameters of a function are
declared where they are defined, by :func:`old_names`, :func:`old_attributes` and :func:`old_parameters`.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Mapping
from functools import wraps
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)

MOVED: dict[str, str] = {}
"""New modules by their old names."""


def warn(old: str, new: str, stacklevel: int = 3) -> None:
    """Warn that a name has changed."""
    warnings.warn(f"{old} is now {new}; the old name goes with the next release", DeprecationWarning, stacklevel)


class _OldModules(MetaPathFinder, Loader):
    """Find modules by their old names."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        warn(spec.name, MOVED[spec.name], stacklevel=6)
        return importlib.import_module(MOVED[spec.name])

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module ran when it was imported by its new name."""


def find_old_modules() -> None:
    """Let modules be imported by their old names too."""
    if not any(isinstance(finder, _OldModules) for finder in sys.meta_path):
        sys.meta_path.append(_OldModules())


def old_names(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module whose names have changed, new ones by old ones.

    >>> import gmed.deprecated
    >>> getattr_ = old_names("gmed.deprecated", {"Finder": "find_old_modules"})
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     getattr_("Finder") is gmed.deprecated.find_old_modules, str(caught[0].message)
    (True, 'gmed.deprecated.Finder is now gmed.deprecated.find_old_modules; the old name goes with the next release')
    """

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warn(f"{module}.{name}", f"{module}.{names[name]}")
        return getattr(sys.modules[module], names[name])

    return find


def old_attributes(**names: str) -> Callable[[C], C]:
    """Let attributes and methods of a class be used, and overridden in subclasses, by their old names too.

    >>> @old_attributes(forget="remove")
    ... class Memory:
    ...     def remove(self): return "removed"
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")
    ...     class Mine(Memory):
    ...         def forget(self): return super().forget() + " by mine"
    ...     Memory().forget(), Mine().remove()
    ('removed', 'removed by mine')
    """

    def decorate(part: C) -> C:
        for old, new in names.items():
            setattr(part, old, _alias(part, old, new))
        inherited: Any = part.__init_subclass__

        def init_subclass(cls: type, **options: Any) -> None:
            inherited.__func__(cls, **options) if hasattr(inherited, "__func__") else inherited(**options)
            for old, new in names.items():
                if old in vars(cls):
                    warn(f"{cls.__name__}.{old}", f"{cls.__name__}.{new}")
                    setattr(cls, new, vars(cls)[old])

        part.__init_subclass__ = classmethod(init_subclass)  # type: ignore[assignment,arg-type]
        return part

    return decorate


def _alias(owner: type, old: str, new: str) -> property:
    def get(self: Any) -> Any:
        warn(f"{type(self).__name__}.{old}", f"{type(self).__name__}.{new}")
        lineage = type(self).__mro__
        overriding = [cls for cls in lineage[: lineage.index(owner)] if old in vars(cls)]
        return getattr(super(overriding[-1], self), new) if overriding else getattr(self, new)  # from super().old

    def set_(self: Any, value: Any) -> None:
        warn(f"{type(self).__name__}.{old}", f"{type(self).__name__}.{new}")
        setattr(self, new, value)

    return property(get, set_)


def old_parameters(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let parameters of a function be given by their old names too.

    >>> @old_parameters(age="edit_count")
    ... def edit(x, *, edit_count=0): return x, edit_count
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")
    ...     edit(1, age=2)
    (1, 2)
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for old in names.keys() & kwargs.keys():
                new = names[old]
                if new in kwargs:
                    raise TypeError(f"{function.__name__}() takes {new} once, not as {old} too")
                warn(f"{function.__name__}({old}=)", f"{function.__name__}({new}=)")
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return call

    return decorate
