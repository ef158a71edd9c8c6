"""Whether FBGEMM's fused embedding operator works on this machine, tried in a process of its own, and if not, why.

A pair of torch and FBGEMM that do not belong together may raise an error at import, hang or kill the interpreter; so
nothing of it is imported here. `trial` is that process.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shard_gym.cost_models.measured.diagnostics.remedies import Ended, way_out
from shard_gym.cost_models.measured.diagnostics.trial import MARK
from shard_gym.cost_models.measured.diagnostics.versions import DISTRIBUTION
from shard_gym.cost_models.measured.machine import Machine, TorchBuild
from shard_gym.errors import unknown_name

TRIAL = "shard_gym.cost_models.measured.diagnostics.trial"
TIMEOUT_S = 120.0
"""For the whole process; a first import of torch from a slow disk takes most of a minute."""

OUTPUT_CHARS = 4000
"""What is kept of the end of the process's other output."""

ERROR_CHARS = 300
"""What is shown of an error's text."""

_DEVICE = {"cpu": "CPU", "cuda": "CUDA GPU"}


@dataclass(frozen=True)
class Probe:
    """What came out.

    Attributes:
        device: "cpu" or "cuda".
        ok: the operator ran forward and backward, and its numbers are right.
        failure: what went wrong, a sentence; "" if `ok`.
        way_out: what to do about it, sentences; "" if `ok`.
        torch: what torch was built with; None if it could not be imported.
        machine: the devices; None if torch finds none of that kind.
        fbgemm: version that the package itself tells, such as "1.8.0"; "" if it could not be imported.
        variant: what FBGEMM was built for, "cpu" or "cuda"; "" if it could not be imported or does not tell.
        seconds: until the process had ended.
        output: the end of what the process printed, for reports of bugs.
    """

    device: str
    ok: bool
    failure: str
    way_out: str
    torch: TorchBuild | None
    machine: Machine | None
    fbgemm: str
    variant: str
    seconds: float
    output: str


def probe(device: str, timeout_s: float = TIMEOUT_S) -> Probe:
    """Try FBGEMM's operator on a table of 10 rows x 4 columns, in a process that ends with this call.

    Args:
        device: "cpu" or "cuda".
        timeout_s: seconds after which the process is stopped.

    Raises:
        UnknownNameError: `device` is neither "cpu" nor "cuda".
    """
    if device not in DISTRIBUTION:
        raise unknown_name("kind of device", device, DISTRIBUTION)
    start = time.perf_counter()
    ended = _run(device, timeout_s)
    failure = _failure(device, ended, timeout_s)
    facts = ended.facts
    return Probe(
        device=device,
        ok=not failure,
        failure=failure,
        way_out=way_out(device, ended) if failure else "",
        torch=TorchBuild(**facts["torch"]) if "torch" in facts else None,
        machine=Machine(**facts["machine"]) if "machine" in facts else None,
        fbgemm=facts.get("fbgemm", ""),
        variant=facts.get("variant", ""),
        seconds=time.perf_counter() - start,
        output=ended.output,
    )


def _run(device: str, timeout_s: float) -> Ended:
    """Run the process in a folder that is removed with it; it looks for packages where this process does.

    Its output goes to files, not pipes: a process it leaves behind would keep a pipe open.
    """
    with tempfile.TemporaryDirectory(prefix="shard-gym-probe-", ignore_cleanup_errors=True) as folder:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": folder,
        }
        command = [sys.executable, "-X", "faulthandler", "-m", TRIAL, device, str(timeout_s)]
        out, err = Path(folder, "out"), Path(folder, "err")
        with out.open("wb") as out_file, err.open("wb") as err_file:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out_file,
                stderr=err_file,
                start_new_session=True,
            )
            try:
                code: int | None = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                _kill_all(process)
        lines = out.read_text(encoding="utf-8", errors="replace").splitlines()
        printed = [line for line in lines if not line.startswith(MARK)]
        printed += err.read_text(encoding="utf-8", errors="replace").splitlines()
    facts: dict[str, Any] = {}
    for line in lines:
        if line.startswith(MARK):
            with contextlib.suppress(ValueError):  # the process was stopped while it wrote
                facts |= json.loads(line.removeprefix(MARK))
    return Ended(code, facts, "\n".join(printed).strip()[-OUTPUT_CHARS:])


def _kill_all(process: subprocess.Popen[bytes]) -> None:
    """End the process and all that it started and that stayed in its session."""
    if sys.platform != "win32":
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()


def _failure(device: str, ended: Ended, timeout_s: float) -> str:
    """What went wrong, as a sentence; "" if nothing did."""
    facts, doing = ended.facts, _doing(device, ended.facts)
    if "refused" in facts:
        return str(facts["refused"])
    if "absent" in facts:
        return f"{doing} failed: there is no module named {facts['absent']!r}."
    if "error" in facts:
        return f"{doing} failed with {textwrap.shorten(facts['error'], ERROR_CHARS).rstrip('.')}."
    if ended.code is None:
        return f"{doing} did not end within {timeout_s:g} s and was stopped."
    if ended.code < 0:
        return f"{doing} killed its process with {_signal_name(-ended.code)}."
    if facts.get("wrong"):
        return f"FBGEMM's operator computes wrong numbers on a {_DEVICE[device]}: {facts['wrong']}."
    if ended.code != 0 or "wrong" not in facts:
        return f"{doing} ended its process with exit code {ended.code}."
    return ""


def _doing(device: str, facts: dict[str, Any]) -> str:
    """What the process was at, from what it had already reported."""
    if "torch" not in facts:
        return "Importing torch"
    if "machine" not in facts:
        return f"Asking torch for a {_DEVICE[device]}"
    if "variant" not in facts:
        return "Importing fbgemm_gpu"
    return f"Running FBGEMM's operator on a {_DEVICE[device]}" if "wrong" not in facts else "Leaving the interpreter"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
