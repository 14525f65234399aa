"""Models of one's own: any module from inputs to class logits, in place of a benchmark's."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from torch import nn

from gmed.engine.parts import parse_part
from gmed.engine.sources import Source, file_source, have, known_source, read_module, source_of, sources_of
from gmed.errors import GmedError, UsageError
from gmed.learners.state import checksum

Given = str | Callable[..., nn.Module] | nn.Module
"""A model as it is given: where to find what makes it, what makes it, or itself."""

_NAME = re.compile(r"(?P<benchmark>.+)\[model=(?P<reference>.+),(?P<digest>[0-9a-f]{12})\]")

_OBJECTS: dict[OwnModel, nn.Module] = {}


@dataclass(frozen=True)
class OwnModel:
    """What makes a model, with everything that identifies it: all of it is in the name of the benchmark.

    Attributes
    ----------
    reference
        Where it is: ``net.py:small(width=64)`` or ``package.module:factory``, or the class of a module that was given.
    digest
        Of the source that makes it; of a module that was given, of its weights too.

    Examples
    --------
    >>> model = OwnModel.given("torch.nn:Linear(in_features=2,out_features=3)")
    >>> model(), OwnModel.named(model.on("split-mnist")) == ("split-mnist", model)
    (Linear(in_features=2, out_features=3, bias=True), True)
    """

    reference: str
    digest: str

    @classmethod
    def given(cls, model: Given) -> OwnModel:
        """The model that somebody means."""
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
        source = source_of(model)
        return cls(f"{source.module if '.' in source.module else source.name}:{name}", source.digest)

    @classmethod
    def _found(cls, text: str) -> OwnModel:
        where, what = _where_and_what(text)
        if not where or not what:
            raise UsageError(f"model {text!r}: write it as net.py:small or package.module:factory")
        if where.endswith(".py"):
            source = file_source(where)
            module, where = have(source), source.name
        else:
            try:
                module = read_module(where)
            except UsageError as error:
                raise UsageError(
                    f"{error}. A file is written with its ending: {where.replace('.', '/')}.py:..."
                ) from error
            source = source_of(module)
        part = parse_part(what, text)
        if not callable(_attribute(module, part.name)):
            raise UsageError(f"model {text!r}: {source.file} has nothing called {part.name} that could make a model")
        return cls(f"{where}:{part}", source.digest)

    @classmethod
    def _object(cls, model: nn.Module) -> OwnModel:
        kinds = {type(part) for part in model.modules()}
        texts = sorted({source.digest for source in sources_of(kinds)})
        weights = checksum(model.state_dict(), {"made of": repr(model), "sources": ",".join(texts)})
        found = cls(type(model).__qualname__, weights[:12])
        _OBJECTS[found] = copy.deepcopy(model)
        return found

    @classmethod
    def named(cls, name: str) -> tuple[str, OwnModel] | None:
        """The benchmark and the model that a name says, or ``None`` if it says no model."""
        found = _NAME.fullmatch(name)
        return (found["benchmark"], cls(found["reference"], found["digest"])) if found else None

    def on(self, benchmark: str) -> str:
        """The name of a benchmark with this model in place of its own."""
        return f"{benchmark}[model={self.reference},{self.digest}]"

    def __call__(self) -> nn.Module:
        """Make one. What makes it must be here."""
        if self.is_object:
            return copy.deepcopy(_OBJECTS[self])
        source, part = self.source(), parse_part(_where_and_what(self.reference)[1], self.reference)
        try:
            made = _attribute(sys.modules[source.module], part.name)(**part.parameters)
        except GmedError:
            raise
        except Exception as error:
            raise UsageError(f"the model {self.reference} cannot be made: {type(error).__name__}: {error}") from error
        if not isinstance(made, nn.Module):
            raise UsageError(f"{self.reference} must return a torch.nn.Module, not {type(made).__name__}")
        return made

    @property
    def is_object(self) -> bool:
        """Whether it was given as a module, which no other process has."""
        return self in _OBJECTS

    @property
    def is_findable(self) -> bool:
        """Whether it is named by where it is, so that it can be given again by its name alone.

        >>> OwnModel("net.py:small", "0123456789ab").is_findable, OwnModel("Sequential", "0123456789ab").is_findable
        (True, False)
        """
        return ":" in self.reference

    def source(self) -> Source:
        """What makes it, which must have been read here."""
        found = known_source(self.digest)
        if found is None:
            raise UsageError(f"the model {self.reference} ({self.digest}) is not here; give it again: --model")
        return found

    def config(self) -> dict[str, str]:
        """What of it decides a result."""
        return {"name": self.reference, "digest": self.digest}


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


def _attribute(module: ModuleType, path: str) -> Any:
    found: Any = module
    for name in path.split("."):
        found = getattr(found, name, None)
    return found
