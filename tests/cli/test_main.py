from __future__ import annotations

import signal
import subprocess
import sys
import warnings
from importlib.metadata import version
from pathlib import Path

import pytest

from shard_gym import cli
from shard_gym.cli import COMMANDS


def test_the_overview_names_every_command(run) -> None:
    usage, *lines = run("--help").out.splitlines()
    assert usage.startswith("usage: shard-gym")  # tyro lists all commands there, in one line
    assert max(map(len, lines)) <= 80
    for args in ((), ("--help",)):
        outcome = run.ok(*args, columns=120)
        for name, text in COMMANDS.items():
            assert name in outcome.out
            assert text in outcome.out


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_every_command_fits_80_columns_and_shows_no_none(run, name: str) -> None:
    outcome = run.ok(name, "--help")
    assert f"shard-gym {name}" in outcome.out
    assert max(map(len, outcome.out.splitlines())) <= 80
    assert "None" not in outcome.out


def test_arguments_that_do_not_parse_exit_with_2(run) -> None:
    assert run("--nonsense").code == 2
    assert run("show", "--nonsense", "1").code == 2
    assert run("place").code == 2


def test_a_warning_is_a_sentence_without_the_line_that_raised_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def warns() -> None:
        warnings.warn("The machine is busy.", stacklevel=1)

    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.setattr("shard_gym.cli.suites.suites", warns)
    monkeypatch.setattr(sys, "argv", ["shard-gym", "suites"])
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        cli.main()
    assert capsys.readouterr().err == "The machine is busy.\n"


def test_only_our_own_errors_lose_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ValueError("a bug")

    monkeypatch.setattr("shard_gym.cli.suites.suites", broken)
    with pytest.raises(ValueError, match="a bug"):
        cli.main(["suites"])


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_ctrl_c_is_one_line_and_exit_code_130_and_leaves_no_file(tmp_path: Path) -> None:
    script = """
import sys
import warnings
from shard_gym.agents import RandomAgent
from shard_gym.cli import main
class Slow(RandomAgent):
    def place(self, task):
        print("planning", flush=True)
        import time; time.sleep(60)
from shard_gym.agents import AGENTS, AgentEntry
AGENTS["random"] = AgentEntry(Slow)
sys.exit(main(sys.argv[1:]))
"""
    args = ["evaluate", "--agent", "random", "--suite", "dlrm-20x4", "--out", str(tmp_path / "r.json")]
    command = [sys.executable, "-c", script, *args]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "planning\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "Interrupted.\n")
    assert list(tmp_path.iterdir()) == []


def test_python_m_shard_gym_prints_the_version_of_the_package() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "shard_gym", "--version"], capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout == f"shard-gym {version('shard-gym')}\n"


@pytest.mark.parametrize(
    "args",
    [
        ("evaluate", "--agent", "random", "--suite", "dlrm-20x4", "--out"),
        ("place", "--tables", "mlperf-dlrm-dcnv2", "--hardware", "a100-dgx", "--num-devices", "8", "--out"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_any_work(
    run, args: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for function in ("evaluate.placing_agent", "place.plan"):
        monkeypatch.setattr(f"shard_gym.cli.{function}", None)  # calling it would be a TypeError
    run.refused("cannot be written: it is a folder", *args, tmp_path)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("evalute",), "There is no command named 'evalute'. Did you mean 'evaluate'?"),
        (
            ("evaluate", "--suite", "[red]no\nsuite[/red]", "--agent", "random"),
            "There is no suite named '[red]no\\nsuite[/red]'.",
        ),
    ],
)
def test_an_error_is_one_line_without_markup(run, args: tuple[str, ...], says: str) -> None:
    code, out, err = run(*args)
    assert (code, out) == (2, "")
    assert err.startswith(says)
    assert err.count("\n") == 1


def test_a_reader_that_stops_early_gets_no_traceback() -> None:
    command = [sys.executable, "-c", "import sys; from shard_gym.cli import main; sys.exit(main(['--help']))"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1


def test_listing_suites_imports_no_large_package() -> None:
    script = """
import sys
import warnings
from shard_gym.cli import main
code = main(["suites"])
print([name for name in ("torch", "matplotlib", "stable_baselines3", "scipy") if name in sys.modules], code)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.splitlines()[-1] == "[] 0"
