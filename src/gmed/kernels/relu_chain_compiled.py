"""The chain of linear layers and ReLU compiled from C, each part of a step as one call (relu_chain.c).

It is used if the extra ``gmed[fast]``, which contains a compiler, is installed, or if ``GMED_CC`` names a compiler.
Compiled code is cached by its source, its flags and the processor.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from gmed.kernels.low_rank import LowRankGradient, OuterFactors
from gmed.kernels.pass_counter import record_pass
from gmed.kernels.relu_chain import ReLUChain

SOURCE = Path(__file__).with_name("relu_chain.c")
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-shared", "-fPIC")

_REALS = {torch.float32: ("float", ctypes.c_float), torch.float64: ("double", ctypes.c_double)}


class _Chain(ctypes.Structure):
    _fields_ = (
        ("layers", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("widths", "weights", "biases", "rectified")),
    )


class CompiledChain(ReLUChain):
    """The same chain, with each part of a step as one call of compiled code."""

    @property
    def arithmetic(self) -> str:
        return "compiled"

    def loss_and_gradient(self, x: Tensor, y: Tensor, sizes: Sequence[int] = ()) -> tuple[Tensor, LowRankGradient]:
        x, y = x.detach().flatten(1).contiguous(), y.contiguous()
        n = x.shape[0]
        outputs, grads, loss = self._empty(n), self._empty(n), self.real()
        first = sizes[0] if sizes else n
        if not self.library.gradient(
            *(self._struct, x.data_ptr(), y.data_ptr(), _pointers(outputs), _pointers(grads), n, first),
            ctypes.byref(loss),
        ):
            return super().loss_and_gradient(x, y, sizes)  # torch names the invalid label
        record_pass(self.model, n, n)
        factors = map(OuterFactors, (x, *outputs), grads)
        return x.new_tensor(loss.value), LowRankGradient(self, dict(zip(self.linear, factors, strict=True)))

    def is_bounded(self, factors: Mapping[str, OuterFactors]) -> bool:
        inputs, grads, n = _split(factors)
        bound: float = self.library.bound(self._struct, inputs, grads, n)
        return bound <= torch.finfo(self.weights[0].dtype).max

    def sgd_step(self, factors: Mapping[str, OuterFactors], parameters: Mapping[str, Tensor], step: float) -> None:
        given = [p.data_ptr() for p in parameters.values()]
        if given != [p.data_ptr() for pair in self._parameters for p in pair if p is not None]:
            super().sgd_step(factors, parameters, step)
            return
        inputs, grads, n = _split(factors)
        self.library.sgd_step(self._struct, inputs, grads, n, self.real(step))
        increment_version(list(parameters.values()))

    def outputs_ahead(self, x: Tensor, gradient: LowRankGradient, step: float) -> tuple[Tensor, Tensor]:
        x, (inputs, grads, n) = x.detach().flatten(1).contiguous(), _split(gradient.factors)
        m = x.shape[0]
        outputs, gram = self._empty(2 * m), x.new_empty(m, n)
        self.library.forward_ahead(
            *(self._struct, x.data_ptr(), inputs, grads, _pointers(outputs), gram.data_ptr(), m, n, self.real(step))
        )
        record_pass(self.model, 2 * m, 0)
        return outputs[-1][:m], outputs[-1][m:]

    def input_gradient(
        self, x: Tensor, y: Tensor, gradient: LowRankGradient | None, step: float, before: float, after: float
    ) -> Tensor:
        rows, y = x.detach().flatten(1).contiguous(), y.contiguous()
        inputs, grads, n = (None, None, 0) if gradient is None else _split(gradient.factors)
        m = rows.shape[0]
        passed = m if gradient is None else 2 * m
        outputs, backward, gram, result = (
            self._empty(passed),
            self._empty(passed),
            rows.new_empty(m, max(n, 1)),
            torch.empty_like(rows),
        )
        if not self.library.input_gradient(
            *(self._struct, rows.data_ptr(), y.data_ptr(), inputs, grads, _pointers(outputs), _pointers(backward)),
            *(gram.data_ptr(), result.data_ptr(), m, n, self.real(step), self.real(before), self.real(after)),
        ):
            return super().input_gradient(x, y, gradient, step, before, after)
        record_pass(self.model, passed, passed)
        return result.view(x.shape)

    def _empty(self, rows: int) -> list[Tensor]:
        """Return an uninitialized tensor for the output of every layer."""
        return [weight.new_empty(rows, weight.shape[0]) for weight in self.weights]

    @property
    def _parameters(self) -> list[tuple[Tensor, Tensor | None]]:
        return list(zip(self.weights, self.biases, strict=True))

    @cached_property
    def library(self) -> Any:
        return _library(self.weights[0].dtype)

    @cached_property
    def real(self) -> Any:
        """The C type of the numbers."""
        return _REALS[self.weights[0].dtype][1]

    @cached_property
    def _struct(self) -> Any:
        """The description of the chain that the compiled functions read."""
        count = len(self.weights)
        widths = (ctypes.c_int64 * (count + 1))(self.weights[0].shape[1], *(w.shape[0] for w in self.weights))
        biases = (ctypes.c_void_p * count)(*(None if b is None else b.data_ptr() for b in self.biases))
        rectified = (ctypes.c_int64 * count)(*self.rectified)
        self._kept = widths, _pointers(self.weights), biases, rectified
        return ctypes.byref(_Chain(count, *map(ctypes.addressof, self._kept)))


def fused_chain(model: nn.Module) -> ReLUChain | None:
    """Return a model as a hand-differentiated chain, compiled if possible; ``None`` for any other model."""
    chain = ReLUChain.of(model)
    if chain is not None and _library(chain.weights[0].dtype) is not None:
        tensors = [*chain.weights, *(bias for bias in chain.biases if bias is not None)]
        if all(tensor.is_contiguous() for tensor in tensors):
            chain.__class__ = CompiledChain
    return chain


def _pointers(tensors: Sequence[Tensor]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))


def _split(factors: Mapping[str, OuterFactors]) -> tuple[Any, Any, int]:
    """Return pointers to the inputs and to the gradients of outputs, and the number of examples."""
    pairs = factors.values()
    inputs, grads = [pair.input for pair in pairs], [pair.grad_output for pair in pairs]
    return _pointers(inputs), _pointers(grads), inputs[0].shape[0]


@cache
def compiler() -> tuple[str, ...]:
    """Return the command of the C compiler to use: ``GMED_CC`` (empty for none), else that of the extra, if any."""
    if (command := os.environ.get("GMED_CC")) is not None:
        return tuple(shlex.split(command))
    return (sys.executable, "-m", "ziglang", "cc") if find_spec("ziglang") is not None else ()


@cache
def _library(dtype: torch.dtype) -> Any:
    """Return the compiled functions for numbers of a type, or ``None`` if they cannot be compiled on this machine."""
    if not compiler():
        return None
    try:
        library = ctypes.CDLL(str(_compiled(_REALS[dtype][0])))
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "stderr", None) or str(error)
        warnings.warn(f"{' '.join(compiler())} cannot compile kernels on this machine ({reason.strip()})", stacklevel=2)
        return None
    real, pointer, size = _REALS[dtype][1], ctypes.c_void_p, ctypes.c_long
    signatures: dict[str, tuple[Any, Sequence[Any]]] = {
        "gradient": (ctypes.c_int, (*[pointer] * 5, size, size, pointer)),
        "sgd_step": (None, (*[pointer] * 3, size, real)),
        "bound": (ctypes.c_double, (*[pointer] * 3, size)),
        "forward_ahead": (None, (*[pointer] * 6, size, size, real)),
        "input_gradient": (ctypes.c_int, (*[pointer] * 9, size, size, real, real, real)),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _compiled(real: str) -> Path:
    """Return the shared library for a type of numbers, compiled unless it is cached."""
    command = (*compiler(), f"-DREAL={real}", *FLAGS)
    text = SOURCE.read_bytes() + repr((command, platform.platform(), _processor())).encode()
    folder = Path(os.environ.get("GMED_CACHE") or Path("~/.cache/gmed").expanduser()) / "kernels"
    target = folder / f"{hashlib.sha256(text).hexdigest()[:32]}.so"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            built = Path(scratch) / "library.so"
            subprocess.run([*command, "-o", str(built), str(SOURCE), "-lm"], check=True, capture_output=True, text=True)
            built.replace(target)
    return target


def _processor() -> str:
    """Return the features of the processor for which code is compiled."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0].splitlines()
        return " ".join(line for line in lines if line.startswith(("flags", "Features", "model name")))
    except OSError:
        return platform.processor()
