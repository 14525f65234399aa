"""Export of models to ONNX, with a check of the result."""

from __future__ import annotations

import copy
import logging
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from gmed.errors import InputError, UsageError
from gmed.io.files import write_bytes

TOLERANCE = 1e-4
"""Maximum difference of logits relative to the largest of them; the order of sums may differ."""


@torch.no_grad()
def export_onnx(model: nn.Module, path: str | Path, x: Tensor) -> float:
    """Write a model to an ONNX file, and check that onnxruntime computes the same outputs from it.

    The model is exported in evaluation mode, for batches of any size; it is not changed. Needs ``gmed[onnx]``.

    Parameters
    ----------
    model
        The model, such as ``learner.model``.
    path
        The file to write; it is not written if the check fails.
    x
        At least two inputs, on which the model and the file are compared.

    Returns
    -------
    float
        The largest difference between their logits.
    """
    if not isinstance(model, nn.Module):
        name = model.__name__ if isinstance(model, type) else type(model).__name__
        raise InputError(
            f"model must be a torch.nn.Module, such as learner.model, not {name}; "
            "an estimator cannot be exported, because it also scales inputs and encodes labels"
        )
    try:
        import onnxruntime
        import onnxscript  # noqa: F401 (torch needs it to export)
    except ImportError:
        raise UsageError("writing ONNX needs onnx, onnxscript and onnxruntime: pip install 'gmed[onnx]'") from None
    if not isinstance(x, Tensor) or x.ndim < 2 or len(x) < 2:
        raise InputError("x must be a batch of at least two inputs to check the file with")
    on_cpu = copy.deepcopy(model).cpu().eval()
    x = x.detach().to(next(on_cpu.parameters()).dtype).cpu()
    try:
        exported = _export(on_cpu, x)
        session = onnxruntime.InferenceSession(exported, providers=["CPUExecutionProvider"])
        actual = torch.cat([torch.from_numpy(session.run(None, {"x": part.numpy()})[0]) for part in (x[:1], x[1:])])
    except Exception as error:  # torch and onnxruntime raise many kinds
        raise UsageError(f"{type(model).__name__} cannot be exported to ONNX: {str(error).splitlines()[0]}") from error
    expected = on_cpu(x)
    difference = float((expected - actual).abs().max())
    if not difference <= TOLERANCE * max(1.0, float(expected.abs().max())):
        raise UsageError(f"{path}: not written: onnxruntime's logits differ from the model's by up to {difference:g}")
    write_bytes(Path(path), exported)
    return difference


def _export(model: nn.Module, x: Tensor) -> bytes:
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)  # it warns of operators of other libraries
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                model,
                (x,),
                dynamo=True,
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                input_names=["x"],
                output_names=["logits"],
                verbose=False,
            )
    finally:
        log.setLevel(level)
    assert program is not None
    return bytes(program.model_proto.SerializeToString())
