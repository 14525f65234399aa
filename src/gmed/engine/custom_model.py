"""Models of one's own: any module from inputs to class logits, in place of a benchmark's.

A model is made only if somebody gave it in this process: on the command line, in Python, or in an experiment file. Its
name in a file of results is a name and nothing else.
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
"""A model as it is given: where to find what makes it, what makes it, or itself."""


@dataclass(frozen=True)
class _Maker:
    """What makes a model that was given in this process, and its source; a module that was given has none."""

    make: Callable[..., Any]
    source: UserModule | None


_MAKERS: dict[ModelRef, _Maker] = {}


@dataclass(frozen=True)
class ModelRef:
    """What makes a model, with everything that identifies it: all of it is in the name of the benchmark.

    Attributes
    ----------
    reference
        Where it is: ``net.py:small(width=64)`` or ``package.module:factory``, or the class of a module that was given.
    digest
        Of the source that makes it; of a module that was given, of its weights too.

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
        """The model that somebody means, which can be made in this process from now on."""
        if isinstance(model, nn.Module):
            return cls._object(model)
        if isinstance(model, str):
            return cls._found(model)
        name = getattr(model, "__qualname__", None)
        if not callable(model) or name is None or "<" in name:
            raise UsageError(
                "a model of your own is given as a module, as a function or class at the top level of a file, or as "
                f"where that is, 'net.py:small'; not as {model!r}"
            )
        source = user_module_of(model)
        where = source.module if "." in source.module else source.name
        return cls._known(f"{where}:{name}", source.digest, _Maker(model, source))

    @classmethod
    def _found(cls, text: str) -> ModelRef:
        where, what = _where_and_what(text)
        if not where or not what:
            raise UsageError(f"model {text!r}: write it as net.py:small or package.module:factory")
        part = parse_component(what, text)
        if where.endswith(".py"):
            source = read_user_module(where)
            module, where = ensure_loaded(source), source.name
        else:
            module = _package_module(where, text)
            source = user_module_of(module)
        factory = _factory(module, part.name, source, text)
        return cls._known(f"{where}:{part}", source.digest, _Maker(partial(factory, **part.parameters), source))

    @classmethod
    def _object(cls, model: nn.Module) -> ModelRef:
        kinds = {type(part) for part in model.modules()}
        texts = sorted({source.digest for source in user_modules_of(kinds)})
        weights = checksum(model.state_dict(), {"made of": repr(model), "sources": ",".join(texts)})
        kept = copy.deepcopy(model)
        return cls._known(type(model).__qualname__, weights[:12], _Maker(partial(copy.deepcopy, kept), None))

    @classmethod
    def _known(cls, reference: str, digest: str, maker: _Maker) -> ModelRef:
        found = cls(reference, digest)
        _MAKERS[found] = maker
        return found

    @classmethod
    def parse(cls, name: str) -> tuple[str, ModelRef] | None:
        """The benchmark and the model that a name says, or ``None`` if it says no model. Nothing is looked for."""
        benchmark, _, rest = name.rpartition("[model=")
        reference, _, digest = rest.removesuffix("]").rpartition(",")
        if not (benchmark and reference and rest.endswith("]") and re.fullmatch("[0-9a-f]{12}", digest)):
            return None
        return benchmark, cls(reference, digest)

    def qualify(self, benchmark: str) -> str:
        """The name of a benchmark with this model in place of its own."""
        return f"{benchmark}[model={self.reference},{self.digest}]"

    def __call__(self) -> nn.Module:
        """Make one. Somebody must have given it in this process."""
        maker = self._maker()
        try:
            made = maker.make()
        except GmedError:
            raise
        except Exception as error:
            raise UsageError(f"the model {self.reference} cannot be made: {type(error).__name__}: {error}") from error
        if not isinstance(made, nn.Module):
            raise UsageError(f"{self.reference} must return a torch.nn.Module, not {type(made).__name__}")
        return made

    @property
    def is_here(self) -> bool:
        """Whether it can be made in this process."""
        return self in _MAKERS

    @property
    def is_instance(self) -> bool:
        """Whether it was given as a module, which no other process has."""
        return self.is_here and self._maker().source is None

    @property
    def has_import_path(self) -> bool:
        """Whether it is named by where it is, so that it can be given again by its name alone.

        >>> ModelRef("net.py:small", "0123456789ab").has_import_path
        True
        >>> ModelRef("Sequential", "0123456789ab").has_import_path
        False
        """
        return ":" in self.reference

    def source(self) -> UserModule:
        """What makes it, where somebody has given that here."""
        source = self._maker().source
        if source is None:
            raise UsageError(f"the model {self.reference} was given as a module, which has no source")
        return source

    def _maker(self) -> _Maker:
        if not self.is_here:
            raise UsageError(f"the model {self.reference} ({self.digest}) is not here; give it again: --model")
        return _MAKERS[self]

    def config(self) -> dict[str, str]:
        """What of it decides a result."""
        return {"name": self.reference, "digest": self.digest}


@dataclass(frozen=True)
class SentModel:
    """A model that one process was given, for another that computes for it."""

    reference: str
    source: UserModule

    def load(self) -> ModelRef:
        """Return the model, which can then be made in this process."""
        part = parse_component(_where_and_what(self.reference)[1], self.reference)
        factory = _attribute(ensure_loaded(self.source), part.name)
        if not callable(factory):
            raise UsageError(f"{self.source.file} has nothing called {part.name} that could make a model")
        maker = _Maker(partial(factory, **part.parameters), self.source)
        return ModelRef._known(self.reference, self.source.digest, maker)


def _where_and_what(text: str) -> tuple[str, str]:
    r"""The two sides of a reference: of the colon after a file's ending, since a path may have one too; else the first.

    >>> _where_and_what(r"C:\nets\net.py:small(width=64)"), _where_and_what("package.module:factory")
    (('C:\\nets\\net.py', 'small(width=64)'), ('package.module', 'factory'))
    """
    where, ending, what = text.partition(".py:")
    if ending:
        return f"{where}.py", what
    where, _, what = text.partition(":")
    return where, what


def _package_module(name: str, text: str) -> ModuleType:
    """The module of an installed package. Importing it runs it, so what cannot have a model in it is not imported."""
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts) or any(map(_is_special, parts)):
        raise UsageError(f"model {text!r}: {name} is not the name of a module that can be imported")
    if parts[0] in sys.stdlib_module_names:
        raise UsageError(
            f"model {text!r}: {parts[0]} is part of Python itself, and no model is in there; "
            "name a function in a file or package of yours that makes it, as in net.py:small"
        )
    try:
        return read_module(name)
    except UsageError as error:
        raise UsageError(f"{error}. A file is written with its ending: {name.replace('.', '/')}.py:...") from error


def _factory(module: ModuleType, path: str, source: UserModule, text: str) -> Callable[..., Any]:
    """A class of modules, or a function that is defined in the file or package that somebody points at.

    A file or package can name much that is not its own, such as ``os``: calling that is never meant.
    """
    found = None if any(map(_is_special, path.split("."))) else _attribute(module, path)
    function = found.__func__ if isinstance(found, MethodType) else found
    if isinstance(found, type) and issubclass(found, nn.Module):
        return found
    if found is None or not callable(found):
        raise UsageError(f"model {text!r}: {source.file} has nothing called {path} that could make a model")
    if not isinstance(function, FunctionType):
        raise UsageError(
            f"model {text!r}: {path} is neither a function nor a class derived from torch.nn.Module; "
            "write a function that makes the model"
        )
    home, whole = function.__module__, source.module if source.folder is None else module.__name__.partition(".")[0]
    if home != source.module and (source.folder is None or (home or "").partition(".")[0] != whole):
        raise UsageError(
            f"model {text!r}: {path} is defined in {home}, not in {source.name if source.folder is None else whole}; "
            "write a function there that makes the model"
        )
    if whole == "torch":  # some run Python that they are given as text
        raise UsageError(
            f"model {text!r}: a function of torch; name a class derived from torch.nn.Module, or call the function in "
            "one of your own, as in net.py:small"
        )
    if source.folder is not None and not _returns_module(function):
        raise UsageError(
            f"model {text!r}: a function of an installed package must say that it returns a model, "
            f"def {path.rpartition('.')[2]}(...) -> torch.nn.Module; otherwise call it in a function of your own, "
            "as in net.py:small"
        )
    made: Callable[..., Any] = found
    return made


def _returns_module(function: FunctionType) -> bool:
    try:
        made = signature(function, eval_str=True).return_annotation
    except Exception:  # whatever evaluating somebody's annotations raises
        return False
    return isinstance(made, type) and issubclass(made, nn.Module)


def _attribute(module: ModuleType, path: str) -> Any:
    """What a module holds under a name, or a class in it does; never what another module in it holds.

    >>> import os
    >>> _attribute(os, "system") is os.system, _attribute(os, "path.join")
    (True, None)
    """
    found: Any = module
    for name in path.split("."):
        found = getattr(found, name, None) if found is module or isinstance(found, type) else None
    return found


def _is_special(name: str) -> bool:
    return name.startswith("__")


def check_model_compatible(benchmark: Benchmark, data: Dataset) -> None:
    """Make a model and one step with it on two examples of the data, or say what it is that does not fit.

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
                f"it returns {logits.shape[1]} logits for each input; there are {data.num_classes} classes"
            )
        if not torch.isfinite(logits).all():
            raise UsageError("its output is not finite before it has learned anything; look at its weights")
        learner.observe(x, y)
    except GmedError as error:
        raise UsageError(f"the model does not fit {benchmark.name}: {error}") from error
