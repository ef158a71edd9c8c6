"""The probe, with fake packages torch and fbgemm_gpu that fail in all the ways the real ones do."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from shard_gym.cost_models.measured.diagnostics import probe as module
from shard_gym.cost_models.measured.diagnostics import remedies
from shard_gym.cost_models.measured.diagnostics.probe import Probe, probe
from shard_gym.cost_models.measured.diagnostics.versions import Installed, installed, pair
from shard_gym.errors import UnknownNameError

if sys.platform == "win32":
    pytest.skip("FBGEMM is for Linux; the faults here are POSIX signals", allow_module_level=True)

HERE = installed()
PAIR = pair(HERE.torch, HERE.fbgemm_version).matches
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
needs_fbgemm = pytest.mark.skipif(not PAIR, reason="needs the extra real")

TORCH = """
from types import SimpleNamespace as Space
__version__ = "2.13.0"
def set_num_threads(count): pass
version = Space(cuda={cuda!r})
distributed = Space(is_available=lambda: True, is_nccl_available=lambda: False, is_gloo_available=lambda: True)
cuda = Space(
    device_count=lambda: 1,
    is_available=lambda: True,
    get_device_properties=lambda index: Space(name="NVIDIA H200", total_memory=1),
)
"""

# An operator in plain torch with the interface of FBGEMM's; the two numbers spoil forward and backward.
OPERATOR = """
import torch

class Bags(torch.autograd.Function):
    @staticmethod
    def forward(context, anchor, table, rows, offsets):
        context.table, context.rows, context.offsets = table, rows.tolist(), offsets.tolist()
        bags = zip(context.offsets, context.offsets[1:])
        return torch.stack([table[context.rows[start:end]].sum(0) for start, end in bags]) * {forward}

    @staticmethod
    def backward(context, gradient):
        slopes = torch.zeros_like(context.table)
        for bag, (start, end) in enumerate(zip(context.offsets, context.offsets[1:])):
            for row in context.rows[start:end]:
                slopes[row] += gradient[bag]
        for row in sorted(set(context.rows)):
            context.table[row] -= {backward} * 0.5 * slopes[row] / slopes[row].square().mean().sqrt()
        return None, None, None, None

class SplitTableBatchedEmbeddingBagsCodegen:
    def __init__(self, specs, *, optimizer, learning_rate, eps, weights_precision, output_dtype, device):
        ((rows, dim, _, _),) = specs
        assert (optimizer, weights_precision, output_dtype, learning_rate) == ("rowwise", "fp32", "fp32", 0.5)
        self.table = torch.zeros(rows, dim)
    def split_embedding_weights(self):
        return [self.table]
    def __call__(self, rows, offsets):
        return Bags.apply(torch.zeros(1, requires_grad=True), self.table, rows, offsets)
"""


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts fake packages before the real ones, by name and source, and versions into the metadata."""
    folder, temporary = tmp_path / "packages", tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.syspath_prepend(folder)

    def put(
        fbgemm: str,
        torch: str | None = TORCH.format(cuda=None),
        *,
        versions: tuple[str, str] = ("2.13.0", "1.8.0"),
        distributions: tuple[str, ...] = ("fbgemm-gpu-cpu",),
        **modules: str,
    ) -> None:
        sources = {"fbgemm_gpu/__init__.py": fbgemm}
        if torch is not None:
            sources["torch/__init__.py"] = torch
        sources |= {f"fbgemm_gpu/{name}.py": source for name, source in modules.items()}
        for name, source in sources.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source)
        known = Installed(versions[0], dict.fromkeys(distributions, versions[1]) if versions[1] else {})
        monkeypatch.setattr(remedies, "installed", lambda: known)

    return put


def failed(device: str = "cpu", timeout_s: float = 60.0) -> Probe:
    """A probe that must not be ok, nor leave a file."""
    result = probe(device, timeout_s)
    assert not result.ok
    assert result.failure.endswith(".")
    assert list(Path(tempfile.gettempdir()).iterdir()) == []
    return result


@needs_fbgemm
def test_the_real_operator_computes_the_right_numbers() -> None:
    result = probe("cpu")
    assert result.ok, (result.failure, result.output)
    assert (result.failure, result.way_out) == ("", "")
    assert result.torch is not None
    assert result.torch.version.startswith(HERE.torch.partition("+")[0])
    assert result.fbgemm == HERE.fbgemm_version
    assert result.machine is not None
    assert result.machine.kind == "cpu"


@needs_torch
@pytest.mark.parametrize(
    ("forward", "backward", "wrong"),
    [
        (1, 1, ""),
        (2, 1, "forward, row 0, column 0 is 14 instead of 7"),
        (1, 0, "backward, row 1, column 0 is 1 instead of"),
    ],
)
def test_wrong_numbers_are_told(packages, forward: int, backward: int, wrong: str) -> None:
    packages(
        "",
        None,
        split_embedding_configs="""
class EmbOptimType: EXACT_ROWWISE_ADAGRAD = "rowwise"
class SparseType: FP32 = "fp32"
""",
        split_table_batched_embeddings_ops_common="class EmbeddingLocation: HOST = 0",
        split_table_batched_embeddings_ops_training=OPERATOR.format(forward=forward, backward=backward)
        + "class ComputeDevice: CPU = 0",
    )
    result = probe("cpu")
    assert result.ok is not bool(wrong), result.failure
    assert wrong in result.failure
    assert result.failure.startswith("FBGEMM's operator computes wrong numbers on a CPU" if wrong else "")


@pytest.mark.parametrize(
    "raised",
    [
        "OSError('Could not load this library: /x/fbgemm_gpu_py.so')",
        "AttributeError(\"'_OpNamespace' 'fbgemm' object has no attribute 'jagged_2d_to_dense'\")",
        "ImportError('x.so: undefined symbol: _ZN2at4_ops5zerosE')",
    ],
)
def test_a_mismatched_pair_is_explained_by_its_versions(packages, raised: str) -> None:
    packages(f"raise {raised}", versions=("2.13.0", "1.5.0"))
    result = failed()
    assert result.failure.startswith(f"Importing fbgemm_gpu failed with {raised.partition('(')[0]}: ")
    assert "FBGEMM 1.5.0 and torch 2.13.0 do not go together." in result.way_out
    assert "`pip install 'fbgemm-gpu-cpu==1.8.*'`; or torch for this FBGEMM" in result.way_out
    assert result.torch is not None
    assert result.torch.gloo


def test_matching_versions_that_do_not_load_are_installed_anew(packages) -> None:
    packages(
        "try:\n    raise OSError('x.so: undefined symbol: _Z25transpose')\n"
        "except OSError as cause:\n    raise OSError('Could not load this library: x.so') from cause"
    )
    result = failed()
    assert "because of OSError: x.so: undefined symbol: _Z25transpose" in result.failure
    assert "pip install --force-reinstall --no-deps 'fbgemm-gpu-cpu==1.8.*'" in result.way_out


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        ("libcudart.so.12: cannot open shared object file", "another CUDA than torch or the driver"),
        ("/lib/libc.so.6: version `GLIBC_2.28' not found", "use a newer system"),
        ("x.so: undefined symbol: _ZN3tbb6detail2r117deallocate_memoryEPv", "another TBB library"),
        ("no kernel image is available for execution on the device", "GPU of this generation"),
        ("CUDA out of memory. Tried to allocate", "nvidia-smi"),
        ("something never seen", "in a new virtual environment: `pip install 'shard-gym[real]'`"),
    ],
)
def test_known_signs_are_explained(packages, raised: str, said: str) -> None:
    packages(f'raise OSError("{raised}")')
    result = failed()
    assert raised in result.failure
    assert said in result.way_out


def test_the_cuda_wheel_with_a_torch_for_cpus(packages) -> None:
    packages("raise OSError('Could not load this library: x.so')", distributions=("fbgemm-gpu",))
    assert "fbgemm-gpu needs a torch with CUDA, and torch 2.13.0 has none." in failed().way_out


def test_the_cpu_wheel_on_a_gpu(packages) -> None:
    packages("", TORCH.format(cuda="13.0"), split_embedding_configs="raise NotImplementedError('CUDA backend')")
    result = failed("cuda")
    assert result.failure == "Running FBGEMM's operator on a CUDA GPU failed with NotImplementedError: CUDA backend."
    assert "fbgemm-gpu-cpu has no code for GPUs" in result.way_out
    assert "pip install 'fbgemm-gpu==1.8.*'" in result.way_out
    assert result.machine is not None
    assert result.machine.name == "nvidia-h200"


def test_no_cuda_is_told_before_fbgemm_is_tried(packages) -> None:
    packages("raise OSError")
    result = failed("cuda")
    assert result.failure.startswith("torch 2.13.0 is built without CUDA.")
    assert (result.way_out, result.machine) == ("", None)


def test_a_long_error_is_shown_as_one_line_that_ends(packages) -> None:
    packages("raise RuntimeError('''it's \"bad\"\n''' + 'very ' * 200 + 'bad.')")
    failure = failed().failure
    assert failure.startswith('Importing fbgemm_gpu failed with RuntimeError: it\'s "bad" very very')
    assert len(failure) < 400
    assert "\n" not in failure


def test_both_distributions_are_the_first_suspects(packages) -> None:
    packages("raise OSError('Could not load this library: x.so')", distributions=("fbgemm-gpu", "fbgemm-gpu-cpu"))
    assert "are both installed" in failed().way_out


def test_a_crash_is_told_with_its_signal(packages) -> None:
    packages("import os; os.kill(os.getpid(), 11)", versions=("2.13.0", "1.4.0"))
    result = failed()
    assert result.failure == "Importing fbgemm_gpu killed its process with SIGSEGV."
    assert "do not go together" in result.way_out
    assert "Segmentation fault" in result.output


@pytest.mark.parametrize(("number", "said"), [(4, "AVX2"), (9, "no memory left"), (6, "new virtual environment")])
def test_other_signals_have_ways_out_of_their_own(packages, number: int, said: str) -> None:
    packages(f"import os; os.kill(os.getpid(), {number})")
    assert said in failed().way_out


def test_leaving_early_is_a_failure_too(packages) -> None:
    packages("import os; os._exit(0)")
    assert failed().failure == "Importing fbgemm_gpu ended its process with exit code 0."


def test_a_hang_is_ended_with_all_it_started(packages, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    packages(
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "time.sleep(600)"
    )
    start = time.perf_counter()
    result = failed(timeout_s=5.0)
    assert time.perf_counter() - start < 30.0
    assert result.failure == "Importing fbgemm_gpu did not end within 5 s and was stopped."
    assert "Try once more" in result.way_out
    for pid in pids.read_text().split():
        wait_for_end(int(pid))


def test_what_outlives_a_probe_is_ended_too(packages, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    packages(
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pids)!r}, 'w').write(str(child.pid))\n"
        "raise OSError('no')"
    )
    start = time.perf_counter()
    assert "OSError: no" in failed().failure
    assert time.perf_counter() - start < 30.0  # though the child holds the output open
    wait_for_end(int(pids.read_text()))


def wait_for_end(pid: int) -> None:
    """Fails unless the process is gone, or dead and not yet collected, within seconds."""
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except (ProcessLookupError, FileNotFoundError):
            return
        time.sleep(0.05)
    pytest.fail(f"process {pid} still runs")


def test_torch_missing(packages) -> None:
    absent = "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')"
    packages("", absent, versions=("", ""))
    result = failed()
    assert result.failure == "Importing torch failed: there is no module named 'torch'."
    assert result.way_out.startswith("Neither torch nor FBGEMM is installed.")
    assert (result.torch, result.machine, result.fbgemm) == (None, None, "")


def test_fbgemm_missing(packages) -> None:
    absent = "raise ModuleNotFoundError(\"No module named 'fbgemm_gpu'\", name='fbgemm_gpu')"
    packages(absent, versions=("2.13.0", ""))
    assert failed().way_out.startswith(
        "FBGEMM is not installed. For torch 2.13.0: `pip install 'fbgemm-gpu-cpu==1.8.*'`"
    )
    packages(absent)  # pip thinks it is there
    assert "--force-reinstall" in failed().way_out


def test_noise_and_a_half_written_report_do_no_harm(packages) -> None:
    packages(f"import os, sys; sys.stdout.write('noise'); print(); os.write(1, b'{module.MARK}{{\"fbg'); os._exit(3)")
    result = failed()
    assert result.failure == "Importing fbgemm_gpu ended its process with exit code 3."
    assert "noise" in result.output


def test_the_working_folder_is_not_where_packages_are_looked_for(packages, tmp_path, monkeypatch) -> None:
    packages("raise OSError('the right one')")
    (tmp_path / "fbgemm_gpu.py").write_text("raise OSError('the wrong one')")
    monkeypatch.chdir(tmp_path)
    assert "the right one" in failed().failure
    assert not list(tmp_path.glob("core*"))


def test_another_kind_of_device_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="Known: cpu, cuda"):
        probe("tpu")
