"""Old names, which still work for one release, and warn once with the new name.

Modules that moved are in :data:`MOVED`. Names within a module, attributes of a class and parameters of a function are
declared where they are defined, by :func:`old_names`, :func:`old_attributes` and :func:`old_parameters`.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable
from functools import wraps
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)

MOVED: dict[str, str] = {
    "gmed.cli.epilogs": "gmed.cli.app",
    "gmed.cli.static": "gmed.cli",
    "gmed.cli.tune": "gmed.cli.run",
    "gmed.data.archive": "gmed.data.download",
    "gmed.data.catalogue": "gmed.data.registry",
    "gmed.data.decoded": "gmed.data.image_cache",
    "gmed.data.fetch": "gmed.data.download",
    "gmed.data.idx": "gmed.data.mnist",
    "gmed.data.image": "gmed.data.images",
    "gmed.data.image_folders": "gmed.data.images",
    "gmed.data.image_source": "gmed.data.images",
    "gmed.data.in_memory": "gmed.data.arrays",
    "gmed.data.own": "gmed.data.custom",
    "gmed.data.pickled_images": "gmed.data.mini_imagenet",
    "gmed.data.places": "gmed.data.paths",
    "gmed.data.plain_pickle": "gmed.data.safe_pickle",
    "gmed.data.progress": "gmed.data.dataset",
    "gmed.data.raw": "gmed.data.custom",
    "gmed.data.records": "gmed.data.cifar",
    "gmed.data.remove": "gmed.data.paths",
    "gmed.data.stamps": "gmed.data.paths",
    "gmed.data.table": "gmed.data.tabular",
    "gmed.data.writing": "gmed.data.paths",
    "gmed.editing.edit": "gmed.editing.base",
    "gmed.engine.benchmark_id": "gmed.engine.benchmarks",
    "gmed.engine.cluster": "gmed.engine.executors.dask",
    "gmed.engine.executor": "gmed.engine.executors.local",
    "gmed.engine.fitting": "gmed.engine.custom_model",
    "gmed.engine.group": "gmed.engine.batched",
    "gmed.engine.kept_streams": "gmed.engine.benchmarks",
    "gmed.engine.memory_footprint": "gmed.engine.result",
    "gmed.engine.overhead": "gmed.engine.result",
    "gmed.engine.own_model": "gmed.engine.custom_model",
    "gmed.engine.parts": "gmed.engine.grammar",
    "gmed.engine.room": "gmed.engine.batched",
    "gmed.engine.run": "gmed.engine.runner",
    "gmed.engine.stages": "gmed.engine.bench",
    "gmed.engine.stream_cache": "gmed.engine.benchmarks",
    "gmed.engine.terms": "gmed.engine.config",
    "gmed.engine.together": "gmed.engine.batched",
    "gmed.engine.worker": "gmed.engine.executors.worker",
    "gmed.io.memory_limit": "gmed.io.files",
    "gmed.learners.decisions": "gmed.learners.draws",
    "gmed.learners.er_t": "gmed.learners.er_tricks",
    "gmed.learners.expanding": "gmed.learners.expandable",
    "gmed.learners.forgetting": "gmed.learners.removal",
    "gmed.learners.given": "gmed.learners._validation",
    "gmed.learners.learner": "gmed.learners.base",
    "gmed.learners.repeated": "gmed.kernels.cuda_graphs",
    "gmed.learners.snapshot": "gmed.learners._rollback",
    "gmed.learners.state": "gmed.io.state",
    "gmed.learners.task_aware": "gmed.learners.base",
    "gmed.learners.task_modular": "gmed.learners.expandable",
    "gmed.learners.tasks_apart": "gmed.learners.expandable",
    "gmed.memory.host": "gmed.memory.pinned",
    "gmed.memory.memory": "gmed.memory.base",
    "gmed.models.as_built": "gmed.models.introspection",
    "gmed.models.columns": "gmed.models.progressive",
    "gmed.models.components": "gmed.models.growth",
    "gmed.models.compositions": "gmed.models.compositional",
    "gmed.models.experts": "gmed.models.expert_mixture",
    "gmed.models.factored": "gmed.kernels.low_rank",
    "gmed.models.fused_unit": "gmed.kernels.conv_bn_relu_autograd",
    "gmed.models.known_layers": "gmed.models.introspection",
    "gmed.models.mixture": "gmed.models.expert_mixture",
    "gmed.models.modes": "gmed.models.functional",
    "gmed.models.passes": "gmed.kernels.pass_counter",
    "gmed.models.unit": "gmed.kernels.conv_bn_relu",
    "gmed.models.unit_kernels": "gmed.kernels.triton_kernels",
    "gmed.online.settings": "gmed.online.config",
    "gmed.online.units": "gmed.online.scaling",
    "gmed.paper.analysis": "gmed.paper.probes",
    "gmed.paper.artifacts.accuracy_tables": "gmed.paper.artifacts.tables",
    "gmed.paper.artifacts.memory_sizes": "gmed.paper.artifacts.accuracy_figures",
    "gmed.paper.artifacts.sensitivity": "gmed.paper.artifacts.accuracy_figures",
    "gmed.paper.artifacts.training_time": "gmed.paper.artifacts.tables",
    "gmed.paper.artifacts.tsne": "gmed.paper.artifacts.edited_examples",
    "gmed.paper.edit_history": "gmed.paper.probes",
    "gmed.paper.numbers": "gmed.paper.published",
    "gmed.paper.targets": "gmed.paper.catalog",
    "gmed.plan": "gmed.paper.plan",
    "gmed.randomness": "gmed.rng",
    "gmed.replay": "gmed.augmentation",
    "gmed.replay.augmentation": "gmed.augmentation",
    "gmed.report.charts.curves": "gmed.report.charts.tasks",
    "gmed.report.charts.edits": "gmed.report.edits",
    "gmed.report.charts.memory_over_time": "gmed.report.charts.tasks",
    "gmed.report.charts.paired_differences": "gmed.report.charts.seeds",
    "gmed.report.charts.seed_distribution": "gmed.report.charts.seeds",
    "gmed.report.charts.task_matrices": "gmed.report.charts.tasks",
    "gmed.report.charts.tuning_grid": "gmed.report.charts.tuning",
    "gmed.report.commands": "gmed.report.provenance",
    "gmed.report.comparisons": "gmed.report.tables",
    "gmed.report.paper_tables": "gmed.report.tables",
    "gmed.report.probe_cache": "gmed.report.edits",
    "gmed.reproduce": "gmed.paper.tables",
    "gmed.results.comparisons": "gmed.results.stats",
    "gmed.results.document": "gmed.results.export",
    "gmed.results.markdown": "gmed.results.tables",
    "gmed.results.progress": "gmed.results.claims",
    "gmed.results.results_json": "gmed.results.export",
    "gmed.results.statistics": "gmed.results.stats",
    "gmed.results.sweep": "gmed.results.claims",
    "gmed.results.under_way": "gmed.results.claims",
    "gmed.results.wording": "gmed.results.formatting",
    "gmed.retrieval.mir": "gmed.retrieval",
    "gmed.retrieval.retrieval": "gmed.retrieval",
    "gmed.retrieval.uniform": "gmed.retrieval",
    "gmed.streams.fuzzy": "gmed.streams.variants",
    "gmed.streams.iid": "gmed.streams.variants",
    "gmed.streams.tasked": "gmed.streams.split",
    "gmed.streams.validation": "gmed.streams.variants",
    "gmed.studies": "gmed.paper.artifacts",
    "gmed.tensorboard": "gmed.integrations.tensorboard",
    "gmed.tune": "gmed.tuning",
    "gmed.version": "gmed._version",
}
"""New modules by their old names."""


RENAMED: dict[str, dict[str, str]] = {
    "gmed.rng": {"generator": "make_rng", "torch_seeded": "seeded_torch"},
    "gmed.errors": {"whole_number": "check_int", "finite_number": "check_float"},
    "gmed.models": {
        "Columns": "ProgressiveNet",
        "Compositions": "CompositionalNet",
        "Mixture": "ExpertMixture",
        "Passes": "PassCounter",
        "evaluating": "eval_mode",
        "grow_outputs": "expand_outputs",
        "keeps_its_inputs": "preserves_inputs",
        "leaves_nothing_to_chance": "is_deterministic",
        "treats_examples_independently": "is_batch_independent",
    },
    "gmed.memory": {"keep_finite": "where_finite"},
    "gmed.memory.base": {"keep_finite": "where_finite"},
    "gmed.editing": {"Moment": "EditContext"},
    "gmed.editing.base": {"Moment": "EditContext"},
    "gmed.streams": {"held_out": "validation_stream", "pixels": "to_float", "tasked": "by_task"},
    "gmed.streams.split": {"tasked": "by_task"},
    "gmed.engine": {"Terms": "ExecutionConfig"},
    "gmed.engine.executors.dask": {"Cluster": "DaskExecutor"},
    "gmed.online": {
        "AsTheyAre": "IdentityScaler",
        "Labels": "LabelEncoder",
        "Settings": "ClassifierConfig",
        "Standardiser": "RunningScaler",
    },
    "gmed.results": {"Sweep": "SweepClaims"},
    "gmed.report": {"Contents": "ReportData", "find_contents": "collect"},
    "gmed.paper.artifacts": {
        "Asked": "Request",
        "Finding": "ArtifactResult",
        "Number": "Measurement",
        "STUDIES": "ARTIFACTS",
        "Study": "Artifact",
        "get_study": "get_artifact",
    },
    "gmed.data.custom": {"OwnData": "CustomDataRef", "OwnDataset": "TaskDataset", "read_own": "load_custom"},
    "gmed.online.scaling": {"AsTheyAre": "IdentityScaler", "Standardiser": "RunningScaler"},
    "gmed.tuning": {"Tuned": "TuningResult"},
    "gmed.callbacks": {"Watcher": "Callback"},
    "gmed.integrations.tensorboard": {"TensorBoardCurves": "TensorBoardCallback"},
}
"""New names of functions and classes by their old ones, by the module they are public in."""

ATTRIBUTES: dict[str, dict[str, str]] = {}
"""New names of attributes and methods by their old ones, by the class."""

PARAMETERS: dict[str, dict[str, str]] = {}
"""New names of parameters by their old ones, by the function."""


def warn(old: str, new: str, stacklevel: int = 3) -> None:
    """Warn that a name has changed."""
    warnings.warn(
        f"{old} is now {new}; the old name will be removed in the next release", DeprecationWarning, stacklevel
    )


class _OldModules(MetaPathFinder, Loader):
    """Find modules by their old names."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in MOVED else None

    def create_module(self, spec: ModuleSpec) -> None:
        warn(spec.name, MOVED[spec.name], stacklevel=6)

    def exec_module(self, module: ModuleType) -> None:
        """Replace this module by the one with the new name."""
        sys.modules[module.__name__] = importlib.import_module(MOVED[module.__name__])


def find_old_modules() -> None:
    """Let modules be imported by their old names too."""
    if not any(isinstance(finder, _OldModules) for finder in sys.meta_path):
        sys.meta_path.append(_OldModules())


def old_names(module: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module in :data:`RENAMED`.

    >>> import gmed.rng
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     gmed.rng.generator is gmed.rng.make_rng, str(caught[0].message)
    (True, 'gmed.rng.generator is now gmed.rng.make_rng; the old name will be removed in the next release')
    """
    names = RENAMED[module]

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
        ATTRIBUTES[part.__qualname__] = names
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


def old_hyperparameters(**names: str) -> Callable[[C], C]:
    """Let a class take parameters by their old names too, and have them as attributes.

    >>> @old_hyperparameters(told="task_at_test")
    ... class Learner:
    ...     def __init__(self, *, task_at_test=False): self.task_at_test = task_at_test
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")
    ...     Learner(told=True).task_at_test, Learner().told
    (True, False)
    """

    def decorate(part: C) -> C:
        constructor: Any = part
        constructor.__init__ = old_parameters(**names)(constructor.__init__)
        return old_attributes(**names)(part)

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
        PARAMETERS[function.__qualname__.removesuffix(".__init__")] = names

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
