"""Keys of runs come from declared ids and parameters, not from Python names."""

import json
import lzma
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

import gmed
from gmed import editing, learners, memory
from gmed.engine import BENCHMARKS, BenchmarkId, RunSpec, get_benchmark, resolve
from gmed.engine.benchmarks import MODELS, STREAMS
from gmed.errors import UsageError
from gmed.registry import EDITS, METHODS, TABLES, part_id

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


def parts() -> set[type]:
    """Every class of this package that a registered part is made of."""
    registered = [entry.part for table in TABLES.values() for entry in table.values()]
    registered += [entry.memory for entry in METHODS.values() if entry.memory is not None]
    lineage = {kind for part in registered for kind in part.__mro__ if kind.__module__.startswith("gmed.")}
    return {kind for kind in lineage if "version" in vars(kind) or hasattr(kind, "part_kind")}


def test_every_part_with_a_version_declares_its_id():
    for part in parts():
        if "version" in vars(part) or part in {entry.part for entry in METHODS.values()}:
            assert "id" in vars(part), part


@contextmanager
def renamed(*made):
    """Give these classes and functions other names in Python."""
    before = [one.__name__ for one in made]
    for one in made:
        one.__name__ = "Renamed"
    try:
        yield
    finally:
        for one, name in zip(made, before, strict=True):
            one.__name__ = name


def test_keys_do_not_depend_on_names_in_python():
    content = json.loads(lzma.decompress((RESULTS / "expansion.json.xz").read_bytes()))
    wanted = dict(zip(content["keys"], content["runs"], strict=True))
    every = [
        *((run["benchmark"], run["method"], run["seed"], key) for key, run in wanted.items()),
        ("split-mnist", "er+gmed", 0, "43fb6e4a8405a45d27fa1ca75001dac0"),
    ]
    with renamed(*parts(), *STREAMS.values(), *MODELS.values()):
        for benchmark, method, seed, key in every:
            assert RunSpec.make(benchmark, method, seed).key == key


def test_saved_files_do_not_depend_on_names_in_python(tmp_path):
    learner = learners.ER(gmed.models.MLP(4, 3, classes=2), lr=0.1, memory=memory.Reservoir(5))
    learner.save(tmp_path / "er.safetensors")
    with renamed(learners.ER):
        learner.load(tmp_path / "er.safetensors")
    with pytest.raises(UsageError):
        learners.FineTune(gmed.models.MLP(4, 3, classes=2), lr=0.1).load(tmp_path / "er.safetensors")


def test_class_ids_are_not_inherited():
    class Own(learners.ER):
        """Somebody's."""

    assert part_id(learners.ER) == "ER" and part_id(Own) == "Own"


def test_parameters_can_be_renamed(registry_restored):
    @gmed.register("old-edit")
    @dataclass(frozen=True)
    class Old(editing.Edit):
        """Before."""

        strength: float = 1.0

        def edit(self, x_m, y_m, edit_count, context):
            return x_m

    benchmark = get_benchmark("split-mnist")
    config = resolve(benchmark, "er+old-edit(strength=2.0)").config()["edit"]

    @gmed.register("new-edit")
    @dataclass(frozen=True)
    class New(editing.Edit):
        """After."""

        parameter_ids: ClassVar[dict[str, str]] = {"stride": "strength"}
        stride: float = 1.0

        def edit(self, x_m, y_m, edit_count, context):
            return x_m

    renamed = resolve(benchmark, "er+new-edit(stride=2.0)")
    assert renamed.config()["edit"] == {**config, "name": "new-edit"}
    assert resolve(benchmark, "er+new-edit(strength=2.0)") == renamed
    assert renamed.name == "er+new-edit(stride=2.0)"
    with pytest.raises(UsageError, match="stride is given twice, also as strength"):
        resolve(benchmark, "er+new-edit(stride=2.0,strength=2.0)")


def test_parameters_of_an_order_and_of_a_model_can_be_renamed(registry_restored):
    def order(stream, seed, rounds: int = 1):
        return stream

    def model(network, breadth: int = 2):
        return network

    made = {"order": order, "model": model}
    methods = [gmed.register(name, **{name: maker}) for name, maker in made.items()]
    for register in methods:
        register(type("Own", (learners.FineTune,), {"__doc__": "Somebody's."}))
    benchmark = get_benchmark("split-mnist")
    before = {name: resolve(benchmark, name).config()["base"] for name in made}
    order.parameter_ids, model.parameter_ids = {"rounds": "passes"}, {"breadth": "width"}
    assert before["order"]["rounds"] == resolve(benchmark, "order").config()["base"]["passes"] == 1
    assert resolve(benchmark, "model(width=3)").config()["base"]["width"] == 3


@pytest.mark.parametrize(
    "name",
    [
        *BENCHMARKS,
        "split-mnist[model=net.py:small(width=8),0123456789ab]",
        "split-mnist-fuzzy[model=net.py:small,0123456789ab]",
        "iris.csv[label=kind,by-class,2 tasks,4->3,0123456789ab]-fuzzy",
        "iris.csv[label=kind,by-class,2 tasks,4->3,0123456789ab]-tuning[model=net.py:small,0123456789ab]",
    ],
)
def test_benchmark_names_round_trip(name):
    found = BenchmarkId.parse(name)
    assert str(found) == name and get_benchmark(name).id == found
    assert (found.fuzzy, found.tuning) == ("-fuzzy" in name, "-tuning" in name)
    assert (found.model is not None) == ("[model=" in name)


def test_component_inherits_benchmark_defaults_of_its_base(registry_restored):
    @gmed.register("my-er-aug", memory=memory.Reservoir, on_benchmarks={"rotated-mnist": {"crop": 2}})
    class MyERAug(learners.ERAug):
        """Another."""

    found = {
        name: resolve(get_benchmark(name), "my-er-aug").base.parameters for name in ("split-mnist", "rotated-mnist")
    }
    assert (found["split-mnist"]["rotation"], found["split-mnist"]["crop"]) == (20.0, 1)
    assert (found["rotated-mnist"]["rotation"], found["rotated-mnist"]["crop"]) == (0.0, 2)
    assert EDITS["gmed"].defaults_on("rotated-mnist", "mnist") == {"alpha": 1.0, "beta": 0.01}
