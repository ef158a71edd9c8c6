"""The trial of FBGEMM's operator: with packages that fail as the real ones do, and with wrong numbers."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models.measured import operator_failure, session
from shard_gym.cost_models.measured.diagnostics import diagnosis
from shard_gym.cost_models.measured.diagnostics.diagnosis import expected_iteration, remedy
from shard_gym.cost_models.measured.diagnostics.versions import Installed
from shard_gym.cost_models.measured.machine import TorchBuild

if sys.platform == "win32":
    pytest.skip("FBGEMM is for Linux; the faults here are POSIX signals", allow_module_level=True)

CPU_TORCH = TorchBuild("2.13.0+cpu", cuda="", nccl="", num_gpus=0)
CUDA_TORCH = TorchBuild("2.13.0+cu130", cuda="13.0", nccl="2.28.3", num_gpus=1)
CPU_FBGEMM = Installed("2.13.0+cpu", {"fbgemm-gpu-cpu": "1.8.0"})
CUDA_FBGEMM = Installed("2.13.0+cu130", {"fbgemm-gpu": "1.8.0"})


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a fake torch and an fbgemm_gpu of the given source before the real ones, for processes that are started."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    def put(fbgemm: str) -> None:
        sources = {
            "torch/__init__.py": "class Tensor: pass",
            "torch/distributed.py": "",
            "fbgemm_gpu/__init__.py": fbgemm,
        }
        for name, source in sources.items():
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(source)

    return put


@pytest.mark.parametrize(
    ("source", "failure"),
    [
        ("raise OSError('Could not load this library: x.so')", "failed: OSError: Could not load this library: x.so."),
        ("import os; os.kill(os.getpid(), 11)", "was killed by SIGSEGV"),
        ("import os; print('noise'); os._exit(0)", "ended with exit code 0"),
        ("import time; time.sleep(600)", "No answer within 1 s"),
    ],
)
def test_failures_of_the_packages_are_told_and_nothing_stays(
    packages: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, source: str, failure: str
) -> None:
    packages(source)
    if "No answer" in failure:
        monkeypatch.setattr(session, "START_TIMEOUT_S", 1.0)
    found = operator_failure("cpu", timeout_s=1.0)
    assert failure in found
    assert "shard-gym doctor" not in found
    assert list(Path(tempfile.gettempdir()).iterdir()) == []


@pytest.mark.parametrize("wrong", ["outputs", "weights", ""])
def test_wrong_numbers_are_told(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    class Worker:
        """Answers with the expected numbers, but for one."""

        def __init__(self, *args: Any, **options: Any) -> None:
            pass

        def ask(self, commands: list[Any], subjects: list[str]) -> list[Any]:
            ((_, arguments),) = commands
            outputs, weights = expected_iteration(arguments["job"].parts[0].tables, *arguments["weights"][0])
            if wrong:
                {"outputs": outputs, "weights": weights}[wrong][2, 1] = np.nan
            return [([outputs.ravel()], [[weights]])]

        def close(self) -> None:
            pass

    monkeypatch.setattr(diagnosis, "Session", Worker)
    found = operator_failure("cpu")
    named = {"outputs": "wrong outputs", "weights": "wrong updated weights", "": ""}[wrong]
    assert named in found
    assert bool(found) is bool(wrong)
    assert found.endswith(" in row 2, column 1." if wrong else "")


UNLOADABLE = "OSError: Could not load this library: x.so"
PRINTED = "Its last output: 'Could not load this library: /fbgemm_gpu/fbgemm_gpu_tbe_cache.so'."
OTHER_TORCH = Installed("2.13.0", {"fbgemm-gpu-cpu": "1.5.0"})


@pytest.mark.parametrize(
    ("device", "failure", "have", "advice"),
    [
        ("cpu", UNLOADABLE, OTHER_TORCH, "FBGEMM 1.5.0 and torch 2.13.0 do not go together."),
        ("cpu", UNLOADABLE, CPU_FBGEMM, "pip install --force-reinstall --no-deps 'fbgemm-gpu-cpu==1.8.*'"),
        ("cpu", "undefined symbol: _ZN2at4_ops5zerosE", CPU_FBGEMM, "--force-reinstall"),
        ("cpu", UNLOADABLE, CUDA_FBGEMM, "fbgemm-gpu needs a torch with CUDA, and torch 2.13.0+cpu has none."),
        ("cuda", "NotImplementedError: CUDA backend", CPU_FBGEMM, "fbgemm-gpu-cpu has no code for GPUs."),
        ("cuda", "libcudart.so.12: cannot open shared", CUDA_FBGEMM, "https://download.pytorch.org/whl/cu130"),
        ("cuda", "no kernel image is available for execution", CUDA_FBGEMM, "GPU of this generation"),
        ("cuda", "There is not enough memory for FBGEMM's operator", CUDA_FBGEMM, "Other programs use the memory"),
        ("cpu", "The worker of device 0 was killed by SIGILL", CPU_FBGEMM, "AVX2"),
        ("cuda", f"The worker of device 0 was killed by SIGKILL. {PRINTED}", CUDA_FBGEMM, "no memory left"),
        ("cuda", f"The worker of device 0 was killed by SIGSEGV. {PRINTED}", CUDA_FBGEMM, "a new virtual environment"),
        ("cpu", "No answer within 120 s from device 0.", CPU_FBGEMM, "Try again"),
        ("cpu", "something never seen", CPU_FBGEMM, "in a new virtual environment: `pip install -e '.[real]'`"),
    ],
)
def test_remedies(device: str, failure: str, have: Installed, advice: str) -> None:
    assert advice in remedy(device, failure, have, CUDA_TORCH if device == "cuda" else CPU_TORCH)
