"""Learners: ``observe(x, y)`` one batch at a time, ``predict(x)`` at any time."""

# ruff: isort: skip_file
# the order of imports is that of the list of methods
from gmed.learners.base import Learner
from gmed.learners.batch import Batch
from gmed.learners.replay import Replay, ReplayOptions
from gmed.learners.base import TaskAware
from gmed.learners.finetune import FineTune
from gmed.learners.er import ER
from gmed.learners.er_adam import ERAdam
from gmed.learners.mir import MIR
from gmed.learners.er_aug import ERAug
from gmed.learners.er_tricks import ERTricks
from gmed.learners.gss import GSS
from gmed.learners.agem import AGEM
from gmed.learners.bgd import BGD
from gmed.learners.cn_dpm import CNDPM
from gmed.learners.gem import GEM
from gmed.learners.hal import HAL
from gmed.learners.prog_nn import ProgNN
from gmed.learners.comp_cl import CompCL
import gmed.learners.finetune  # noqa: F401 (it registers)

__all__ = [
    "AGEM",
    "BGD",
    "CNDPM",
    "ER",
    "GEM",
    "GSS",
    "HAL",
    "MIR",
    "Batch",
    "CompCL",
    "ERAdam",
    "ERAug",
    "ERTricks",
    "FineTune",
    "Learner",
    "ProgNN",
    "Replay",
    "ReplayOptions",
    "TaskAware",
]
