"""Command line style: spellings of names, seeds, error messages, progress lines and confirmation prompts."""

import os
import pty
import re
import subprocess
import sys
import warnings

import pytest
import typer

import gmed
from gmed.cli import console, paper
from gmed.cli.app import app, main
from gmed.cli.console import LiveProgress, PacedLines, make_console
from gmed.cli.fit import _ProgressPrinter
from gmed.engine import Progress, RunSpec, get_benchmark, resolve
from gmed.engine.methods import UnderstoodWarning, understand
from gmed.errors import UsageError
from gmed.experiment import Experiment, parse_seeds
from gmed.online.table_fit import FitProgress
from gmed.report.tables import comparisons, result_table
from gmed.results import Store
from helpers import invoke, make_result

PROGRAM = typer.main.get_command(app)


def said(*words, **environment):
    return invoke(*words, environment=environment)


# ---------------------------------------------------------------------- names and seeds


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("er-gmed", "er+gmed"),
        ("ER+GMED", "er+gmed"),
        ("ER_gmed", "er+gmed"),
        ("Er(memory=50)-gmed", None),
        ("er-t-gmed(alpha=1.0)", "er-t+gmed(alpha=1.0)"),
        ("er-random-edit", "er+random-edit"),
        ("MIR", "mir"),
        ("er-nothing", None),
        ("gmed", None),
    ],
)
def test_alternative_spellings_of_a_method_are_resolved_with_a_warning(written, name):
    if name is None:
        with pytest.raises(UsageError):
            resolve(get_benchmark("split-mnist"), written)
        return
    with pytest.warns(UnderstoodWarning, match=re.escape(f"{written} is interpreted as {name}")):
        assert understand(written) == name


def test_registered_names_take_precedence_over_spellings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("er-t", "er-aug+gmed", "cn-dpm", "er+gmed(alpha=1.0)", "er+random-edit", "comp-cl"):
            assert understand(name) == name
    assert resolve(get_benchmark("split-mnist"), "er-t").name == "er-t"


def test_names_in_files_are_not_respelled():
    with pytest.raises(UsageError, match="unknown method"):
        RunSpec.parse("split-mnist", "ER+GMED", 0)


@pytest.mark.slow
def test_resolved_spelling_is_reported_on_one_line(tmp_path, monkeypatch, capsys):
    words = ["run", "split-mnist", "Finetune", "--seed", "1", "--workers", "0", "--store", str(tmp_path / "a.db")]
    monkeypatch.setattr("sys.argv", ["gmed", *words])
    with pytest.raises(SystemExit):
        main()
    assert "gmed: Finetune is interpreted as finetune\n" in capsys.readouterr().err
    with Store(tmp_path / "a.db") as store:
        assert [(run.method, run.seed) for run in store.runs()] == [("finetune", 1)]


def test_seeds_are_a_number_a_list_or_a_range():
    assert parse_seeds("1-5") == [1, 2, 3, 4, 5]
    assert parse_seeds("0-2, 7,9-10") == [0, 1, 2, 7, 9, 10]
    assert parse_seeds("3-3") == parse_seeds("3,") == [3]
    for wrong in ("5-1", "1-", "-3", "1-2-3", "0-99999999999", "1-3,2"):
        with pytest.raises(UsageError, match=r"\(3,7,11 or 1-5\)"):
            parse_seeds(wrong)


def test_one_seed_needs_no_comma():
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Experiment, "run", lambda self, **how: seen.append(self.seeds) or gmed.results.Results())
        for words in (["--seed", "3"], ["--seeds", "3,"], ["--seeds", "3-3"]):
            assert said("run", "split-mnist", "er", *words).exit_code == 0
    assert [parse_seeds(seeds) for seeds in seen] == [[3]] * 3
    refused = said("run", "split-mnist", "er", "--seed", "3", "--seeds", "4")
    assert "--seed and --seeds cannot be combined" in str(refused.exception)


# ---------------------------------------------------------------------- help and errors


def test_command_summaries_are_not_truncated():
    shown = said("--help").output
    summaries = shown.partition("Commands:")[2]
    assert "..." not in summaries and "…" not in summaries
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("command", [*PROGRAM.commands, "data verify"])
def test_option_types_are_shown_as_words(command):
    shown = said(*command.split(), "--help").output
    assert not re.search(r"<\w+|list\[", shown)


def test_repeatable_option_shows_type_of_one_value():
    shown = said("run", "--help").output
    assert "--drop TEXT " in shown and "--memory INTEGER " in shown and "  methods...  Methods" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "split-mnist", "er", "--sedes", "3"], "no such option: --sedes; did you mean --seed or --seeds?"),
        (["run"], "missing argument 'benchmark'; see "),
        (["run", "split-mnist", "er", "--memory", "x"], "invalid value for '--memory': "),
        (["tabel"], "no such command 'tabel'; did you mean 'table'?"),
        (["run", "split-mnist", "er", "--seeds"], "option '--seeds' requires an argument"),
        (["run", "split-mnist", "err"], "unknown method 'err'; did you mean "),
    ],
)
def test_errors_are_one_line_in_one_style(monkeypatch, capsys, words, message):
    monkeypatch.setattr("sys.argv", ["gmed", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    shown = capsys.readouterr()
    assert ended.value.code == 2 and shown.out == ""
    assert shown.err.startswith(f"gmed: {message}") and shown.err.count("\n") == 1


# ---------------------------------------------------------------------- lists


def test_list_ends_with_where_defaults_are_documented():
    shown = said("list").output
    assert shown.splitlines()[-1] == "Their defaults on a benchmark: gmed list split-mnist"
    assert "stm_capacity=1000" not in shown
    defaults = said("list", "split-cifar10").output
    assert re.search(r"cn-dpm +stm_capacity=1000", defaults) and re.search(r"\.\.\.\+gmed +alpha=0.05", defaults)
    assert max(map(len, defaults.splitlines())) <= 80


def test_tuning_candidates_are_printed_on_one_line(tmp_path):
    names = [f"er+gmed(alpha={alpha},beta={beta})" for alpha in (0.5, 10.0) for beta in (0.1, 1.0)]
    benchmark = "split-mnist-tuning"
    with Store(tmp_path / "a.db") as store:
        for name in names:
            for seed in range(2):
                spec = RunSpec.make(benchmark, name, seed)
                store.add(spec, make_result(spec.method.name, seed, benchmark=benchmark))
        store.add(RunSpec.make("split-mnist", "er+gmed(alpha=0.5)", 0), make_result("er+gmed(alpha=0.5)", 0))
    shown = said("runs", "--store", tmp_path / "a.db").output
    assert re.search(r"split-mnist-tuning +er\+gmed: 4 candidates +8 +-", shown)
    assert re.search(r"split-mnist +er\+gmed\(alpha=0.5\) +1 +-", shown)
    assert f"gmed runs {benchmark}\n" in shown
    assert said("runs", benchmark, "--store", tmp_path / "a.db").output.count(f"{benchmark} ") == 4


# ---------------------------------------------------------------------- progress


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    return now


def test_progress_lines_are_rate_limited_and_show_time_left(clock, capsys):
    progress = LiveProgress(make_console(stderr=True))
    specs = [RunSpec.make("split-mnist", "er", seed) for seed in range(4)]
    progress.on_start(specs, 0)
    for _ in range(3600):
        clock[0] += 1
        progress.on_event(Progress(specs[0], min(999, int(clock[0] - 1000)), 1000))
    lines = [line for line in capsys.readouterr().err.splitlines() if "of 4 runs" in line]
    assert len(lines) == 10  # after 10, 30, 70, 150, 310 and 630 s, then every ten minutes, not 360
    assert lines[2] == "  0 of 4 runs after 70 s, about 66 min left"


def test_time_left_is_not_estimated_without_progress(clock):
    pace = PacedLines()
    clock[0] += 30
    assert pace.due() and pace.times(0.0) == "after 30 s" and not pace.due()


def test_fit_time_left_counts_only_rows_still_to_read(clock, capsys):
    printer = _ProgressPrinter(lambda done, total: None)
    printer.on_progress(600, 1000)  # resumed there
    clock[0] += 20
    printer.on_progress(800, 1000)
    printer(FitProgress(None, rows=800, num_correct=400))
    assert capsys.readouterr().err == "  800 rows, prequential accuracy 50.0%, after 20 s, about 20 s left\n"


# ---------------------------------------------------------------------- comparisons


def test_the_report_has_one_p_value_for_each_comparison():
    runs = [make_result(name, seed, share + 0.01 * seed * (name == "er"))
            for name, share in (("er", 0.7), ("er+gmed", 0.75), ("mir", 0.7)) for seed in range(5)]  # fmt: skip
    results = gmed.results.Results(runs)
    rows = results.rows()
    compared = {comparison.method: comparison for comparison in comparisons(results, rows)}
    table = result_table(rows, [], compared, "place")
    assert [column.heading for column in table.columns if column.heading.startswith("p")] == ["p"]
    cell = next(row for row in table.rows if row[0].text == "er+gmed")[-1]
    assert cell.value == compared["er+gmed"].corrected_p and cell.note.startswith("uncorrected: p ")


# ---------------------------------------------------------------------- reproductions


@pytest.fixture
def quick_speeds(monkeypatch):
    monkeypatch.setattr("gmed.paper.status._seconds_per_item", lambda spec, device: (0.01, 1e-5))
    monkeypatch.setattr("gmed.paper.status.os.cpu_count", lambda: 2)


@pytest.mark.slow
def test_large_sweep_is_announced_with_expected_duration(tmp_path, monkeypatch, quick_speeds):
    def stop(self, request):
        raise UsageError("started")

    monkeypatch.setattr(type(paper.ARTIFACTS["gss"]), "run", stop)
    words = ["reproduce", "gss", "--device", "cpu", "--store", tmp_path / "a.db"]
    shown = said(*words)
    assert str(shown.exception) == "started"  # without a terminal nothing is asked
    assert re.search(r"Table 17: 80 runs to do, about \d+ min on this machine", shown.stderr)
    shown = said(*words, "--benchmarks", "split-mnist")
    assert "Table 17: 40 runs to do" in shown.stderr
    shown = said(*words, "--no-estimate")
    assert "Table 17: 80 runs to do, an unknown time on this machine" in shown.stderr
    assert said(*words, "--seeds", "1").stderr == said(*words, "--quick").stderr == ""


@pytest.mark.slow
def test_large_sweep_asks_for_confirmation_in_a_terminal(tmp_path):
    words = [sys.executable, "-m", "gmed.cli", "reproduce", "gss", "--no-estimate", "--store", str(tmp_path / "a.db")]
    terminal, end = pty.openpty()
    with subprocess.Popen(words, stdin=end, stdout=end, stderr=end, env={**os.environ, "TERM": "dumb"}) as asking:
        shown = b""
        while b"Start? [Y/n]" not in shown:
            shown += os.read(terminal, 1000)
        os.write(terminal, b"n\n")
        assert asking.wait(30) == 0
        shown += os.read(terminal, 1000)
    assert b"80 runs to do" in shown and b"Nothing was started" in shown
    assert not (tmp_path / "a.db").exists()


def test_other_tests_are_shown_on_request(tmp_path):
    with Store(tmp_path / "a.db") as store:
        for spec in (RunSpec.make("split-mnist", name, seed) for name in ("gss", "gss+gmed") for seed in range(3)):
            share = 0.7 + 0.01 * spec.seed * (1 + len(spec.method.name) / 50)
            store.add(spec, make_result(spec.method.name, spec.seed, share))
    words = ["reproduce", "gss", "--benchmarks", "split-mnist", "--seeds", "3", "--store", tmp_path / "a.db"]
    shown, more = said(*words).stdout, said(*words, "--all-tests").stdout
    assert "95% interval" in shown and "permutation" not in shown and "corrected for" not in shown
    assert "permutation test p" in more and "corrected for" in more
