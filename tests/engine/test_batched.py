"""Learners trained as a group equal the same learners trained alone, bit for bit."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from gmed.editing import GMED, OptimalEdit, RandomEdit
from gmed.engine import ExecutionConfig, RunSpec, run_one, runner
from gmed.engine.batched import BatchedTrainer, group_runs
from gmed.engine.runner import run_group
from gmed.engine.training import Counts, train
from gmed.errors import DivergedError, UsageError
from gmed.kernels import conv_bn_relu
from gmed.learners import AGEM, BGD, ER, GEM, MIR, CompCL, ERAdam, ERAug, FineTune, ProgNN
from gmed.memory import Reservoir, TaskRing, pinned
from gmed.models import PassCounter, ResNet18
from gmed.streams import Stream
from helpers import states_equal

CPU = ExecutionConfig(device="cpu")


@pytest.fixture
def grouped(monkeypatch):
    """Have learners advance together on a CPU too."""
    monkeypatch.setattr(runner, "GROUPED_ON", {"cpu", "cuda"})


FORESEEN = {
    "finetune": lambda m, s: FineTune(m, lr=0.1, seed=s),
    "er": lambda m, s: ER(m, lr=0.1, memory=Reservoir(25), seed=s),
    "er+gmed": lambda m, s: ER(m, lr=0.1, memory=Reservoir(25), editing=GMED(alpha=2.0, beta=0.1, gamma=0.9), seed=s),
    "er, two updates": lambda m, s: ER(m, lr=0.1, memory=Reservoir(25), updates_per_batch=2, seed=s),
    "mir+gmed": lambda m, s: MIR(
        m, lr=0.1, memory=Reservoir(25), subsample=12, replay_size=4, editing=GMED(alpha=2.0, beta=0.1), seed=s
    ),
    "er+random-edit": lambda m, s: ER(m, lr=0.1, memory=Reservoir(25), editing=RandomEdit(stride=0.3), seed=s),
    "er, extra edits": lambda m, s: ER(
        m, lr=0.1, memory=Reservoir(25), editing=GMED(alpha=2.0, beta=0, extra=4), seed=s
    ),
    "mir, extra edits": lambda m, s: MIR(
        m, lr=0.1, memory=Reservoir(25), subsample=12, replay_size=4, editing=GMED(alpha=2.0, beta=0, extra=20), seed=s
    ),
    "er-aug": lambda m, s: ERAug(m, lr=0.1, memory=Reservoir(25), rotation=20.0, crop=1, flip=True, seed=s),
    "er by adam": lambda m, s: ERAdam(m, lr=0.1, adam_lr=0.01, memory=Reservoir(25), seed=s),
    "agem": lambda m, s: AGEM(m, lr=0.1, memory=Reservoir(25), ref_batch_size=9, seed=s),
    "prog-nn": lambda m, s: ProgNN(m, adam_lr=0.01, seed=s),
    "comp-cl": lambda m, s: CompCL(m, adam_lr=0.01, structure_steps=3, seed=s),
}


def model(seed, device="cpu"):
    torch.manual_seed(seed)
    layers = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 4)
    return nn.Sequential(*layers).to(device)


def stream(seed, length, device="cpu"):
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 256, (length, 1, 4, 4), dtype=torch.uint8, generator=g)
    return Stream(x, torch.randint(4, (length,), generator=g), (), (length,), 4).to(torch.device(device))


def alone(learner, stream, batch_size, cuts):
    for task, (start, stop) in enumerate(pairwise(cuts)):
        for at in range(start, stop, batch_size):
            end = min(at + batch_size, stop)
            learner.observe(stream.x[at:end].float() / 255, stream.y[at:end], *told(learner, task))
    return learner.state_dict()


def told(learner, task):
    return (task,) if learner.task_aware else ()


def together(learners, streams, batch_size, cuts, ends=True):
    group = BatchedTrainer(learners, streams, batch_size, rows=5)
    for task, (start, stop) in enumerate(pairwise(cuts)):
        reached = list(group.train(start, stop, *told(learners[0], task)))
        assert not ends or reached[-1:] == ([stop] if stop > start else [])
    return group


@pytest.mark.slow
@pytest.mark.parametrize("name", FORESEEN)
def test_batched_learners_equal_single_learners(name):
    cuts = [0, 63, 64, 250, 1300]  # odd batches, a task of one example, more steps than tables have rows
    learners = [FORESEEN[name](model(seed), seed) for seed in range(3)]
    group = together(learners, [stream(seed, 1300) for seed in range(3)], 7, cuts)
    assert group.capturable
    for seed, learner in enumerate(learners):
        assert states_equal(learner.state_dict(), alone(FORESEEN[name](model(seed), seed), stream(seed, 1300), 7, cuts))


@pytest.mark.slow
@settings(max_examples=25)
@example("er", 10, [5, 60])  # the first task is shorter than a batch
@given(st.sampled_from(sorted(FORESEEN)), st.integers(1, 12), st.lists(st.integers(0, 90), min_size=1, max_size=4))
def test_batched_training_is_independent_of_evaluation_points(name, batch_size, lengths):
    cuts = [0]
    for length in lengths:
        cuts.append(cuts[-1] + length)
    learner = FORESEEN[name](model(1), 1)
    together([learner], [stream(1, max(cuts[-1], 1))], batch_size, cuts)
    reference = FORESEEN[name](model(1), 1)
    assert states_equal(learner.state_dict(), alone(reference, stream(1, max(cuts[-1], 1)), batch_size, cuts))


CUTS = [0, 63, 64, 250, 400]
STEP_BY_STEP = {
    "bgd": lambda m, s: BGD(m, samples=2, seed=s),
    "dropout": lambda m, s: ER(nn.Sequential(nn.Dropout(), m), lr=0.1, memory=Reservoir(25), seed=s),
}


def predict_then_learn(learner, stream, batch_size, cuts):
    """By its definition: predict, count, learn."""
    right = 0
    for task, (start, stop) in enumerate(pairwise(cuts)):
        for at in range(start, stop, batch_size):
            x, y = stream.x[at : min(at + batch_size, stop)].float() / 255, stream.y[at : min(at + batch_size, stop)]
            right += int((learner.predict(x) == y).sum())
            learner.observe(x, y, *told(learner, task))
    return right


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FORESEEN, *STEP_BY_STEP])
def test_prequential_predictions_precede_training(name):
    """With batch-norm, whose statistics predictions use and leave alone, in stretches and step by step."""
    make = {**FORESEEN, **STEP_BY_STEP}[name]
    learners, plain = ([make(model(seed), seed) for seed in range(2)] for _ in range(2))
    streams = [stream(seed, 400) for seed in range(2)]
    counts = [Counts(PassCounter(), torch.zeros((), dtype=torch.int64)) for _ in learners]
    group = BatchedTrainer(learners, streams, 7, counts, rows=5)
    for task, (start, stop) in enumerate(pairwise(CUTS)):
        list(group.train(start, stop, *told(learners[0], task)))
    assert all(count.correct is None for count in together(plain, streams, 7, CUTS).counts)
    for seed in range(2):
        assert int(counts[seed].correct) == predict_then_learn(make(model(seed), seed), streams[seed], 7, CUTS)
        assert states_equal(learners[seed].state_dict(), plain[seed].state_dict())
    assert group.capturable == (name in FORESEEN)


def test_predictions_by_hand():
    """A model that always says class 1, and hardly learns: what is right is how often class 1 comes."""
    weights = nn.Linear(16, 4)
    with torch.no_grad():
        weights.weight.zero_()
        weights.bias.copy_(torch.tensor([0.0, 9.0, 0.0, 0.0]))
    learner = FORESEEN["finetune"](nn.Sequential(nn.Flatten(), weights), 0)
    learner.lr = 1e-9
    flow = stream(0, 120)
    counts = Counts(None, torch.zeros((), dtype=torch.int64))
    group = BatchedTrainer([learner], [flow], 10, [counts], rows=5)
    list(group.train(0, 120))
    assert int(counts.correct) == int((flow.y == 1).sum()) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", FORESEEN)
def test_passes_of_captured_steps_are_counted_exactly(name):
    learners = [FORESEEN[name](model(seed), seed) for seed in range(2)]
    group = together(learners, [stream(seed, 400) for seed in range(2)], 7, CUTS)
    for seed in range(2):
        watched, flow = FORESEEN[name](model(seed), seed), stream(seed, 400)
        watched.passes = PassCounter()
        for task, (start, stop) in enumerate(pairwise(CUTS)):
            for at in range(start, stop, 7):
                rows = slice(at, min(at + 7, stop))
                watched.observe(flow.x[rows].float() / 255, flow.y[rows], *told(watched, task))
        assert group.counts[seed].passes == watched.passes
        assert states_equal(watched.state_dict(), learners[seed].state_dict())


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FORESEEN, *STEP_BY_STEP])
def test_training_loop_equals_a_plain_loop(name):
    make = {**FORESEEN, **STEP_BY_STEP}[name]
    flow = replace(stream(0, 400), eval_points=tuple(CUTS[1:]))
    trained, watched = make(model(0), 0), make(model(0), 0)
    counts = Counts(PassCounter(), torch.zeros((), dtype=torch.int64))
    assert list(train(trained, flow, 7, counts=counts))[-1] == 400
    assert int(counts.correct) == predict_then_learn(make(model(0), 0), flow, 7, CUTS)
    watched.passes = PassCounter()
    assert states_equal(trained.state_dict(), alone(watched, flow, 7, CUTS))
    assert counts.passes == watched.passes


def test_diverging_learner_does_not_stop_the_others():
    """One fails in its first steps, one in a stretch that was decided ahead, at a known step."""
    learners = [FORESEEN["er+gmed"](model(seed), seed) for seed in range(3)]
    streams = [stream(seed, 800) for seed in range(3)]
    with torch.no_grad():
        learners[1].model[4].weight.fill_(torch.nan)
    streams[2] = replace(streams[2], x=streams[2].x.float() / 255)
    streams[2].x[430] = torch.inf  # in the batch of step 43
    group = together(learners, streams, 10, [0, 800], ends=False)
    assert set(group.failures) == {1, 2}
    assert all(isinstance(error, DivergedError) for error in group.failures.values())
    assert "at step 43 " in str(group.failures[2])
    assert states_equal(learners[0].state_dict(), alone(FORESEEN["er+gmed"](model(0), 0), stream(0, 800), 10, [0, 800]))


class Unplanned(ER):
    capturable = True

    def step(self, x, y):
        self.random("something").integers(3)
        super().step(x, y)


class Twice(ER):
    capturable = True

    def step(self, x, y):
        self.sample()
        super().step(x, y)


class Schedule(ER):
    @property
    def lr_now(self):
        return self.lr / (1 + self.steps)


def test_capturable_is_declared_and_not_inherited():
    assert ER(model(0), lr=0.1, memory=Reservoir(5)).is_capturable()
    assert not Schedule(model(0), lr=0.1, memory=Reservoir(5)).is_capturable()
    assert not ER(model(0), lr=0.1, memory=Reservoir(5), editing=OptimalEdit(alpha=1.0)).is_capturable()
    dropping = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(16, 4))
    assert not ER(dropping, lr=0.1, memory=Reservoir(5)).is_capturable()
    assert ER(ResNet18(), lr=0.1, memory=Reservoir(5)).is_capturable()


def test_extra_draw_outside_of_sample_is_refused_when_captured():
    """Nor can steps be decided ahead where what was drawn depends on them: that is found out, not ignored."""

    class Own(ER):
        capturable = True

        def retrieve(self, ahead, purpose="replay"):
            return super().retrieve(ahead, purpose).flip(0)

    def own():
        return Own(
            model(0), lr=0.1, memory=Reservoir(12), replay_size=8, editing=GMED(alpha=2.0, beta=0, extra=9), seed=1
        )

    learner = own()
    alone(learner, stream(0, 40), 10, [0, 40])
    edited = learner.edit(learner.retrieve(learner.look_ahead(*learner_batch())), learner.look_ahead(*learner_batch()))
    assert sorted(edited.slots.tolist()) == list(range(12))
    with pytest.raises(UsageError, match="draws 'extra' outside of draw"):
        together([own()], [stream(0, 200)], 10, [0, 200])


def test_uncaptured_step_may_sample_repeatedly():
    class Twice(ER):
        def step(self, x, y):
            ahead = self.look_ahead(x, y)
            for purpose in ("replay", "replay again"):
                self.write_back(self.edit(self.sample(purpose), ahead))
            self.update_memory(x, y)

    learner = Twice(model(0), lr=0.1, memory=Reservoir(25), editing=RandomEdit(stride=0.3))
    together([learner], [stream(0, 100)], 10, [0, 100])
    assert learner.memory.edit_count.max() > 2


def test_extra_examples_are_distinct_after_insertion():
    class Late(ER):
        capturable = True
        slots = ()

        def step(self, x, y):
            drawn = self.sample()
            self.update_memory(x, y)
            self.sample_memory(3, "something else")
            self.slots = self.edit(drawn, self.look_ahead(x, y)).slots.tolist()

    learner = Late(model(0), lr=0.1, memory=Reservoir(60), editing=GMED(alpha=1.0, beta=0, extra=10))
    for at in range(0, 90, 10):
        learner.observe(*learner_batch())
        assert len(set(learner.slots)) == len(learner.slots) == (0 if at == 0 else 20)


def learner_batch():
    one = stream(5, 10)
    return one.x.float() / 255, one.y


@pytest.mark.parametrize(
    ("kind", "complaint"), [(Unplanned, "draws 'something' outside of draw"), (Twice, "two draws called 'replay'")]
)
def test_false_capturable_declaration_is_refused(kind, complaint):
    with pytest.raises(UsageError, match=complaint):
        together([kind(model(0), lr=0.1, memory=Reservoir(5))], [stream(0, 200)], 10, [0, 200])


@pytest.mark.parametrize("error", [RuntimeError("operation not permitted"), torch.OutOfMemoryError("no room")])
def test_capture_error_names_the_method(monkeypatch, error):
    """A device without room stays known as such: then fewer are tried at once."""

    def capture(step):
        raise error

    monkeypatch.setattr("gmed.engine.batched.capture", capture)
    group = BatchedTrainer([FORESEEN["er+gmed"](model(0), 0)], [stream(0, 200)], 10)
    with pytest.raises(UsageError, match=f"step of ER cannot be captured as a CUDA graph: {error}") as found:
        group._capture()
    assert runner._out_of_memory(found.value) == isinstance(error, torch.OutOfMemoryError)


@pytest.mark.slow
@pytest.mark.parametrize("learners", [5, 1])
def test_small_gpu_memory_reduces_the_group_size(monkeypatch, grouped, learners):
    """A device with room for two learners at a time, and one with room for none."""
    room = 2 if learners > 1 else 0
    real = runner._GroupRunner.run

    def finish(self, *how):
        if len(self.specs) > room:
            raise torch.OutOfMemoryError("no room")
        return real(self, *how)

    specs = [RunSpec.make("split-mnist", "finetune", seed) for seed in range(learners)]
    expected = [outcome.accuracy for outcome in run_group(specs, CPU)]
    monkeypatch.setattr(runner._GroupRunner, "run", finish)
    outcomes = run_group(specs, CPU)
    if room:
        assert [outcome.accuracy for outcome in outcomes] == expected
    else:
        assert isinstance(outcomes[0], torch.OutOfMemoryError)


@pytest.mark.slow
def test_failing_method_does_not_stop_the_others(monkeypatch, grouped):
    """An error that is not a divergence, in one of several methods: its runs fail, the rest is computed without."""
    real = GMED.edit

    def edit(self, *given):
        if self.alpha == 7.0:
            raise ValueError("not this one")
        return real(self, *given)

    methods = "er+gmed(alpha=1.0)", "er+gmed(alpha=7.0)", "er+gmed(alpha=2.0)"
    specs = [RunSpec.make("split-mnist-tuning", method, seed) for method in methods for seed in (1, 2)]
    expected = [run_one(spec, CPU).accuracy for spec in specs]
    monkeypatch.setattr(GMED, "edit", edit)
    outcomes = run_group(specs, CPU)
    assert ["not this one" in str(outcome) for outcome in outcomes] == [False, False, True, True, False, False]
    for place in (0, 1, 4, 5):
        assert outcomes[place].accuracy == expected[place]


@pytest.mark.slow
def test_grouped_runs_equal_single_runs(grouped):
    specs = [RunSpec.make("split-mnist", "er", seed) for seed in (3, 8)]
    both = run_group(specs, CPU)
    assert [runner.accuracy for runner in both] == [run_one(spec, CPU).accuracy for spec in specs]


def test_runs_are_grouped_by_method():
    methods = ["er", "er+gmed", "gem", "er+optimal-edit"]
    specs = [RunSpec.make("split-mnist", m, seed) for seed in range(23) for m in methods]
    sizes = {}
    for group in group_runs(specs):
        sizes.setdefault(group[0].method.name, []).append(len(group))
        assert len({spec.method.name for spec in group}) == 1
    assert sizes == {"er": [20, 3], "er+gmed": [20, 3], "gem": [1] * 23, "er+optimal-edit": [1] * 23}


def test_grid_points_are_grouped():
    """Real numbers do not change what steps are made of; whole numbers and yes or no do."""
    grid = [f"er+gmed(alpha={alpha},beta={beta})" for alpha in (0.01, 0.1, 1.0, 10.0) for beta in (0.0, 0.1, 1.0)]
    others = ["er+gmed(steps=2)", "er(memory=200)+gmed", "er+gmed(write_back=false)", "er+adv-edit", "mir+gmed"]
    specs = [RunSpec.make("split-mnist", method, seed) for method in (*grid, *others) for seed in range(5)]
    groups = group_runs(specs)
    assert [len(group) for group in groups] == [20, 20, 20, 5, 5, 5, 5, 5]
    assert {spec for group in groups for spec in group} == set(specs)
    assert {spec.method.name for group in groups[:3] for spec in group} == {spec.method.name for spec in specs[:60]}


@pytest.mark.slow
def test_grouped_grid_equals_single_points(grouped):
    methods = "er+gmed(alpha=0.0)", "er+gmed(alpha=10.0,gamma=0.9)", "er(lr=0.1)+gmed(beta=1.0)"
    specs = [RunSpec.make("split-mnist-tuning", method, 4) for method in methods]
    assert len(group_runs(specs)) == 1
    assert [runner.accuracy for runner in run_group(specs, CPU)] == [run_one(spec, CPU).accuracy for spec in specs]


@pytest.mark.slow
def test_learners_of_different_methods_are_batched():
    """Each is decided ahead as its own steps ask, once all of them can be."""
    names = sorted(FORESEEN.keys() - {"prog-nn", "comp-cl"})  # these are told tasks
    group = together([FORESEEN[name](model(3), 3) for name in names], [stream(3, 700)] * len(names), 7, [0, 350, 700])
    for name, learner in zip(names, group.learners, strict=True):
        assert states_equal(learner.state_dict(), alone(FORESEEN[name](model(3), 3), stream(3, 700), 7, [0, 350, 700]))


@pytest.mark.slow
def test_group_size_is_limited_by_free_memory(monkeypatch, grouped):
    specs = [RunSpec.make("split-mnist", "finetune", seed) for seed in range(3)]
    made, original = [], runner._GroupRunner
    record = lambda specs, *others: made.append(len(specs)) or original(specs, *others)  # noqa: E731
    monkeypatch.setattr(runner, "_GroupRunner", record)
    everything = [outcome.accuracy for outcome in run_group(specs, CPU)]
    monkeypatch.setattr(runner, "free_bytes", lambda where: 100_000_000)
    assert [outcome.accuracy for outcome in run_group(specs, CPU)] == everything
    assert made == [3, 2, 1]


@pytest.mark.gpu
@pytest.mark.parametrize("name", FORESEEN)
def test_cuda_graph_of_a_group_equals_single_learners(name, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    learners = [FORESEEN[name](model(seed, "cuda"), seed) for seed in range(3)]
    group = together(learners, [stream(seed, 900, "cuda") for seed in range(3)], 10, [0, 455, 900])
    assert group.graph is not None
    for seed, learner in enumerate(learners):
        reference = FORESEEN[name](model(seed, "cuda"), seed)
        assert states_equal(learner.state_dict(), alone(reference, stream(seed, 900, "cuda"), 10, [0, 455, 900]))


@pytest.mark.gpu
def test_pinned_host_memory_gives_the_same_results(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)

    def learned(share):
        monkeypatch.setattr(pinned, "MAX_GPU_FRACTION", share)
        learners = [FORESEEN["er+gmed"](model(seed, "cuda"), seed) for seed in range(2)]
        group = together(learners, [stream(seed, 900, "cuda") for seed in range(2)], 10, [0, 455, 900])
        assert group.captured and all(("x" in learner.memory._pinned) == (share == 0) for learner in learners)
        return learners

    on_gpu, on_host = learned(1.0), learned(0.0)
    for ours, theirs in zip(on_host, on_gpu, strict=True):
        state = ours.state_dict()
        assert state["memory.x"].device.type == "cpu" and states_equal(
            {k: v.cpu() for k, v in state.items()}, cpu(theirs)
        )
        again = FORESEEN["er+gmed"](model(9, "cuda"), 9)
        again.load_state_dict(state)
        assert "x" in again.memory._pinned and states_equal(cpu(again), cpu(theirs))


def cpu(learner):
    return {name: tensor.cpu() for name, tensor in learner.state_dict().items()}


@pytest.mark.parametrize("name", ["er+gmed", "gem"])
def test_captured_steps_use_triton_kernels(name):
    """In the first step as in all others, for the same numbers to come out wherever a run is taken up again."""

    make = FORESEEN.get(name, lambda m, s: GEM(m, lr=0.1, memory=TaskRing(25, tasks=1), seed=s))
    learner, inside, outside = make(model(0), 0), set(), set()
    update, step = learner.update, learner.step
    learner.update = lambda *given: inside.add(conv_bn_relu._use_triton) or update(*given)
    learner.step = lambda *given: inside.add(conv_bn_relu._use_triton) or step(*given)
    for _ in BatchedTrainer([learner], [stream(0, 100)], 10).train(0, 100, *told(learner, 0)):
        outside.add(conv_bn_relu._use_triton)
    assert inside == {name == "er+gmed"} and outside == {False}


@pytest.mark.gpu
def test_cuda_graph_of_kernels_equals_the_loop_bit_for_bit():
    def network(seed):
        torch.manual_seed(seed)
        return ResNet18(classes=4, size=25).cuda()

    def photographs(seed):
        g = torch.Generator().manual_seed(seed)
        x = torch.randint(0, 256, (300, 3, 25, 25), dtype=torch.uint8, generator=g)
        return Stream(x, torch.randint(4, (300,), generator=g), (), (300,), 4).to(torch.device("cuda"))

    learners = [FORESEEN["er+gmed"](network(seed), seed) for seed in range(2)]
    group = together(learners, [photographs(seed) for seed in range(2)], 10, [0, 300])
    assert group.captured
    for seed, learner in enumerate(learners):
        with conv_bn_relu.use_triton():
            reference = alone(FORESEEN["er+gmed"](network(seed), seed), photographs(seed), 10, [0, 300])
        assert states_equal(learner.state_dict(), reference)
