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
"""The largest difference of logits that passes, measured by the largest of them: the order of sums may differ."""


@torch.no_grad()
def export_onnx(model: nn.Module, path: str | Path, x: Tensor) -> float:
    """Write a model as an ONNX file, and check that onnxruntime computes from it what the model does.

    The model is written in evaluation mode, for batches of any size; it is not changed itself. Needs ``gmed[onnx]``.

    Parameters
    ----------
    model
        Such as ``learner.model``.
    path
        Where to; nothing is left there if the check fails.
    x
        Some inputs, on which both are compared: at least two.

    Returns
    -------
    float
        The largest difference between the logits of both.
    """
    if not isinstance(model, nn.Module):
        name = model.__name__ if isinstance(model, type) else type(model).__name__
        raise InputError(
            f"model must be a torch.nn.Module, such as learner.model, not {name}; "
            "an estimator cannot be exported, because it also scales inputs and names classes"
        )
    try:
        import onnxruntime
        import onnxscript  # noqa: F401 (torch needs it to export)
    except ImportError:
        raise UsageError("writing ONNX needs onnx, onnxscript and onnxruntime: pip install 'gmed[onnx]'") from None
    if not isinstance(x, Tensor) or x.ndim < 2 or len(x) < 2:
        raise InputError("x must be a batch of at least two inputs, on which the file is checked")
    here = copy.deepcopy(model).cpu().eval()
    x = x.detach().to(next(here.parameters()).dtype).cpu()
    try:
        written = _exported(here, x)
        session = onnxruntime.InferenceSession(written, providers=["CPUExecutionProvider"])
        theirs = torch.cat([torch.from_numpy(session.run(None, {"x": part.numpy()})[0]) for part in (x[:1], x[1:])])
    except Exception as error:  # torch and onnxruntime raise many kinds
        raise UsageError(f"{type(model).__name__} cannot be written as ONNX: {str(error).splitlines()[0]}") from error
    ours = here(x)
    apart = float((ours - theirs).abs().max())
    if not apart <= TOLERANCE * max(1.0, float(ours.abs().max())):
        raise UsageError(f"{path}: not written: onnxruntime's logits differ from the model's by up to {apart:g}")
    write_bytes(Path(path), written)
    return apart


def _exported(model: nn.Module, x: Tensor) -> bytes:
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)  # it tells of operators that other libraries would bring
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
