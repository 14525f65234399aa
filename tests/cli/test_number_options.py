"""Number options of the command line refuse non-finite, negative and excessive values by name."""

import signal
import sys

import pytest

from gmed.cli.app import main

NOT_FINITE = ["nan", "inf", "-inf", "1e999"]
RUN = ["run", "split-mnist", "er", "--device", "cpu"]
FIT = ["fit", "rows.csv", "--label", "kind", "--out", "model.gmed"]
CASES = [
    *[(RUN, "--checkpoint-every", value) for value in [*NOT_FINITE, "0", "-1"]],
    *[(RUN, "--seeds", value) for value in ["nan", "inf", "-3", "0", "1e9", "9" * 30]],
    *[(RUN, "--workers", value) for value in ["-1", "nan", "1.5"]],
    *[(RUN, "--memory", value) for value in ["-1", "0", "inf"]],
    *[(FIT, "--checkpoint-every", value) for value in [*NOT_FINITE, "0", "-1"]],
    *[(FIT, name, value) for name in ("--alpha", "--learning-rate") for value in NOT_FINITE],
    *[(FIT, name, value) for name in ("--memory", "--batch-size", "--hidden", "--seed") for value in ("-1", "nan")],
    (["bench", "split-mnist", "er"], "--steps", "0"),
    (["bench", "split-mnist", "er"], "--steps", "nan"),
    (["tune", "split-mnist", "er+gmed"], "--seeds", "9" * 12),
    (["tune", "split-mnist", "er+gmed"], "--workers", "-1"),
    (["reproduce", "main"], "--seeds", "9" * 12),
    (["reproduce", "main"], "--seeds", "0"),
    pytest.param(["reproduce", "main"], "--workers", "-1", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("words", "option", "value"), CASES)
def test_impossible_number_is_refused_by_option_name(tmp_path, words, option, value, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GMED_STORE", str(tmp_path / "r.db"))
    (tmp_path / "rows.csv").write_text("a,kind\n1,x\n2,y\n3,x\n4,y\n")
    monkeypatch.setattr(sys, "argv", ["gmed", *words, f"{option}={value}"])
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # main would handle those of the tests
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 2, said
    assert option.removeprefix("--").replace("-", "_").removesuffix("s") in said.replace("-", "_")
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]
