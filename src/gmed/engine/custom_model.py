"""Custom models: any module from inputs to class logits, in place of a benchmark's.

A model is created only if the user passed it to this process: on the command line, in Python, or in an experiment file.
Reading its name from a file of results never loads it.
"""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import signature
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gmed.data import Dataset
from gmed.engine.grammar import parse_component
from gmed.errors import GmedError, UsageError
from gmed.io.state import checksum
from gmed.io.user_code import UserModule, ensure_loaded, read_module, read_user_module, user_module_of, user_modules_of
from gmed.learners import FineTune
from gmed.rng import seeded_torch
from gmed.streams import to_float

if TYPE_CHECKING:
    from gmed.engine.benchmarks import Benchmark

ModelLike = str | Callable[..., nn.Module] | nn.Module
"""A model as the user passes it: a reference to its factory, the factory, or the module itself."""


@dataclass(frozen=True)
class _Factory:
    """The factory of a model that was passed to this process, and its source; a module has none."""

    create: Callable[..., Any]
    source: UserModule | None


_FACTORIES: dict[ModelRef, _Factory] = {}


@dataclass(frozen=True)
class ModelRef:
    """A reference to the factory of a model, with everything that identifies it; the benchmark's name contains it all.

    Attributes
    ----------
    reference
        Where the factory is: ``net.py:small(width=64)`` or ``package.module:factory``; for a module, its class.
    digest
        The digest of the factory's source; for a module, of its weights too.

    Examples
    --------
    >>> model = ModelRef.from_user("torch.nn:Linear(in_features=2,out_features=3)")
    >>> model(), ModelRef.parse(model.qualify("split-mnist")) == ("split-mnist", model)
    (Linear(in_features=2, out_features=3, bias=True), True)
    """

    reference: str
    digest: str

    @classmethod
    def from_user(cls, model: ModelLike) -> ModelRef:
        """Return a reference to a model of the user, which this process can create from now on."""
        if isinstance(model, nn.Module):
            return cls._from_module(model)
        if isinstance(model, str):
            return cls._from_text(model)
        name = getattr(model, "__qualname__", None)
        if not callable(model) or name is None or "<" in name:
            raise UsageError(
                "a custom model must be a torch.nn.Module, a function or class at the top level of a file, or a "
                f"reference to one such as 'net.py:small', not {model!r}"
            )
        source = user_module_of(model)
        location = source.module if "." in source.module else source.name
        return cls._register(f"{location}:{name}", source.digest, _Factory(model, source))

    @classmethod
    def _from_text(cls, text: str) -> ModelRef:
        location, call = _split_reference(text)
        if not location or not call:
            raise UsageError(f"model {text!r}: write it as net.py:small or package.module:factory")
        component = parse_component(call, text)
        if location.endswith(".py"):
            source = read_user_module(location)
            module, location = ensure_loaded(source), source.name
        else:
            module = _package_module(location, text)
            source = user_module_of(module)
        function = _find_factory(module, component.name, source, text)
        factory = _Factory(partial(function, **component.parameters), source)
        return cls._register(f"{location}:{component}", source.digest, factory)

    @classmethod
    def _from_module(cls, model: nn.Module) -> ModelRef:
        kinds = {type(part) for part in model.modules()}
        texts = sorted({source.digest for source in user_modules_of(kinds)})
        weights = checksum(model.state_dict(), {"made of": repr(model), "sources": ",".join(texts)})
        original = copy.deepcopy(model)
        return cls._register(type(model).__qualname__, weights[:12], _Factory(partial(copy.deepcopy, original), None))

    @classmethod
    def _register(cls, reference: str, digest: str, factory: _Factory) -> ModelRef:
        model = cls(reference, digest)
        _FACTORIES[model] = factory
        return model

    @classmethod
    def parse(cls, name: str) -> tuple[str, ModelRef] | None:
        """Split a name into its benchmark and its model, or return ``None`` if it names no model. Nothing is loaded."""
        benchmark, _, rest = name.rpartition("[model=")
        reference, _, digest = rest.removesuffix("]").rpartition(",")
        if not (benchmark and reference and rest.endswith("]") and re.fullmatch("[0-9a-f]{12}", digest)):
            return None
        return benchmark, cls(reference, digest)

    def qualify(self, benchmark: str) -> str:
        """Return the name of a benchmark with this model in place of its own."""
        return f"{benchmark}[model={self.reference},{self.digest}]"

    def __call__(self) -> nn.Module:
        """Create the model, which must have been passed to this process."""
        factory = self._factory()
        try:
            model = factory.create()
        except GmedError:
            raise
        except Exception as error:
            raise UsageError(
                f"the model {self.reference} cannot be created: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(model, nn.Module):
            raise UsageError(f"{self.reference} must return a torch.nn.Module, not {type(model).__name__}")
        return model

    @property
    def is_here(self) -> bool:
        """Whether this process can create it."""
        return self in _FACTORIES

    @property
    def is_instance(self) -> bool:
        """Whether it was passed as a module, which other processes do not have."""
        return self.is_here and self._factory().source is None

    @property
    def has_import_path(self) -> bool:
        """Whether its name contains its location, so that the name is enough to pass it again.

        >>> ModelRef("net.py:small", "0123456789ab").has_import_path
        True
        >>> ModelRef("Sequential", "0123456789ab").has_import_path
        False
        """
        return ":" in self.reference

    def source(self) -> UserModule:
        """Return the source of its factory."""
        source = self._factory().source
        if source is None:
            raise UsageError(f"the model {self.reference} was passed as a module, which has no source file")
        return source

    def _factory(self) -> _Factory:
        if not self.is_here:
            raise UsageError(f"the model {self.reference} ({self.digest}) is not loaded; pass it again with --model")
        return _FACTORIES[self]

    def config(self) -> dict[str, str]:
        """Return what identifies it in run keys."""
        return {"name": self.reference, "digest": self.digest}


@dataclass(frozen=True)
class SentModel:
    """A reference to a model with its source, for a worker process."""

    reference: str
    source: UserModule

    def load(self) -> ModelRef:
        """Return the model, which this process can create from now on."""
        component = parse_component(_split_reference(self.reference)[1], self.reference)
        function = _attribute(ensure_loaded(self.source), component.name)
        if not callable(function):
            raise UsageError(f"{self.source.file} has no function or class {component.name} to create a model with")
        factory = _Factory(partial(function, **component.parameters), self.source)
        return ModelRef._register(self.reference, self.source.digest, factory)


def _split_reference(text: str) -> tuple[str, str]:
    r"""Split a reference at the colon after ``.py``, since a path may contain one too, otherwise at the first colon.

    >>> _split_reference(r"C:\nets\net.py:small(width=64)"), _split_reference("package.module:factory")
    (('C:\\nets\\net.py', 'small(width=64)'), ('package.module', 'factory'))
    """
    path, extension, call = text.partition(".py:")
    if extension:
        return f"{path}.py", call
    module, _, call = text.partition(":")
    return module, call


def _package_module(name: str, text: str) -> ModuleType:
    """Import a module of an installed package, unless it cannot contain a model: importing it executes its code."""
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts) or any(map(_is_special, parts)):
        raise UsageError(f"model {text!r}: {name} is not the name of an importable module")
    if parts[0] in sys.stdlib_module_names:
        raise UsageError(
            f"model {text!r}: {parts[0]} is in Python's standard library, which has no models; "
            "name a function in your own file or package, as in net.py:small"
        )
    try:
        return read_module(name)
    except UsageError as error:
        raise UsageError(f"{error}. A file needs its extension: {name.replace('.', '/')}.py:...") from error


def _find_factory(module: ModuleType, path: str, source: UserModule, text: str) -> Callable[..., Any]:
    """Return a subclass of ``nn.Module``, or a function that is defined in the file or package that the user names.

    A file or package also contains names that it imports, such as ``os``; users never mean to call those.
    """
    factory = None if any(map(_is_special, path.split("."))) else _attribute(module, path)
    function = factory.__func__ if isinstance(factory, MethodType) else factory
    if isinstance(factory, type) and issubclass(factory, nn.Module):
        return factory
    if factory is None or not callable(factory):
        raise UsageError(f"model {text!r}: {source.file} has no function or class {path} to create a model with")
    if not isinstance(function, FunctionType):
        raise UsageError(
            f"model {text!r}: {path} is neither a function nor a class derived from torch.nn.Module; "
            "write a function that returns the model"
        )
    home, package = function.__module__, source.module if source.folder is None else module.__name__.partition(".")[0]
    if home != source.module and (source.folder is None or (home or "").partition(".")[0] != package):
        raise UsageError(
            f"model {text!r}: {path} is defined in {home}, not in {source.name if source.folder is None else package}; "
            "write a function there that returns the model"
        )
    if package == "torch":  # some of them execute Python code passed as text
        raise UsageError(
            f"model {text!r}: this is a function of torch; name a class derived from torch.nn.Module, or call the "
            "function in your own file, as in net.py:small"
        )
    if source.folder is not None and not _returns_module(function):
        raise UsageError(
            f"model {text!r}: a function of an installed package must be annotated as returning a model, "
            f"def {path.rpartition('.')[2]}(...) -> torch.nn.Module; otherwise call it in a function in your own file, "
            "as in net.py:small"
        )
    checked: Callable[..., Any] = factory
    return checked


def _returns_module(function: FunctionType) -> bool:
    try:
        annotation = signature(function, eval_str=True).return_annotation
    except Exception:  # evaluating the user's annotations may raise anything
        return False
    return isinstance(annotation, type) and issubclass(annotation, nn.Module)


def _attribute(module: ModuleType, path: str) -> Any:
    """Return an attribute of a module or of a class in it, but never of another module in it.

    >>> import os
    >>> _attribute(os, "system") is os.system, _attribute(os, "path.join")
    (True, None)
    """
    value: Any = module
    for name in path.split("."):
        value = getattr(value, name, None) if value is module or isinstance(value, type) else None
    return value


def _is_special(name: str) -> bool:
    return name.startswith("__")


def check_model_compatible(benchmark: Benchmark, data: Dataset) -> None:
    """Create a model and train it for one step on two examples of the data; raise an error if they do not fit.

    >>> from gmed.engine.benchmarks import get_benchmark
    >>> mnist = get_benchmark("split-mnist")
    >>> check_model_compatible(mnist, mnist.dataset())
    """
    with seeded_torch(0, "weights"):
        model = benchmark.make_model()
    x, y = to_float(torch.from_numpy(data.x_train[[0, 1]])), torch.from_numpy(data.y_train[[0, 1]])
    try:
        learner = FineTune(model, lr=1e-6)
        logits = learner.logits(x)
        if logits.shape[1] != data.num_classes:
            raise UsageError(
                f"it returns {logits.shape[1]} logits for each input, but there are {data.num_classes} classes"
            )
        if not torch.isfinite(logits).all():
            raise UsageError("its output is not finite before training; check its initial weights")
        learner.observe(x, y)
    except GmedError as error:
        raise UsageError(f"the model does not fit {benchmark.name}: {error}") from error
