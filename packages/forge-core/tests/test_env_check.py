"""What the doctor finds wrong with planted facts, with planted installations, and with this machine."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import importlib.metadata
import json
import subprocess
import sys

import pytest

from forge_core import processes
from forge_core.commands.doctor import as_text, healthy
from forge_core.env_check import facts as machine
from forge_core.env_check import findings, probe
from forge_core.env_check.facts import Driver, Dsl, Facts, Gpu, Torch
from forge_core.env_check.findings import Level, diagnose
from forge_core.env_check.probe import KernelRun

NAMES = ("nvidia-cutlass-dsl", "nvidia-cutlass-dsl-libs-base", "nvidia-cutlass-dsl-libs-cu12")
DSL = Dsl(dict.fromkeys(NAMES, "4.8.1"), variants=(12,))
DSL_BOTH = Dsl({**DSL.distributions, "nvidia-cutlass-dsl-libs-cu13": "4.8.1"}, variants=(12, 13))
H200 = Gpu(0, "NVIDIA H200", (9, 0))
T4 = Gpu(0, "Tesla T4", (7, 5))

#: A machine without a GPU and one with: both healthy.  A test plants one thing in one of them.
CPU = Facts(
    torch=Torch("2.13.0+cpu"), dsl=DSL, tvm_ffi="0.1.15", cache_dir="cache", kernels=(KernelRun("sm_90a", None, 0.4),)
)
CUDA = dataclasses.replace(
    CPU,
    torch=Torch("2.13.0", "13.0", ("sm_80", "sm_90", "compute_120")),
    driver=Driver("580.82.07", "13.0", 1),
    gpus=(H200,),
    dsl=DSL_BOTH,
    kernels=(KernelRun("sm_90a", 0, 0.4),),
)


def plant(facts, **changes):
    """The facts with some of them changed; ``torch__cuda=...`` changes a field of a part."""
    for name, value in changes.items():
        part, _, field = name.partition("__")
        new = dataclasses.replace(getattr(facts, part), **{field: value}) if field else value
        facts = dataclasses.replace(facts, **{part: new})
    return facts


def found_in(facts, level):
    return [finding for finding in diagnose(facts) if finding.level == level]


def messages(facts, *levels):
    return [finding.message for level in levels or Level for finding in found_in(facts, level)]


# ---------------------------------------------------------------------------------------------------------- healthy


def test_a_machine_without_a_gpu_is_healthy_and_says_so_plainly():
    assert healthy(diagnose(CPU))
    assert "CUDA driver not detected" in messages(CPU)
    assert "No GPU devices found: operators use the CPU reference" in messages(CPU)
    assert not messages(CPU, Level.WARNING)


def test_a_machine_with_a_gpu_is_healthy():
    assert healthy(diagnose(CUDA))
    assert not messages(CUDA, Level.WARNING)
    text = as_text(diagnose(CUDA))
    assert "GPU 0 (NVIDIA H200): sm_90 is supported by torch's build and the CuTe DSL (sm_90a)" in text
    assert "CuTe DSL 4.8.1 with libraries for CUDA 12 and 13; CUDA 13 in use, torch is built with CUDA 13.0" in text
    assert "CUDA driver 580.82.07, serves CUDA up to 13.0; 580.65.06 or newer is needed" in text
    assert text.endswith("\nhealthy")


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_a_system_without_the_dsl_is_healthy(system):
    facts = plant(CPU, system=system, dsl=Dsl(), tvm_ffi=None, kernels=())
    assert healthy(diagnose(facts))
    assert "kernels need Linux: operators use the CPU reference" in messages(facts)


def test_libraries_of_both_cuda_versions_side_by_side_are_healthy_for_either_torch():
    older = plant(CUDA, torch__cuda="12.8", driver=Driver("575.51.03", "12.9", 1))
    assert not found_in(older, Level.FAULT)
    assert any("CUDA 12 in use" in message for message in messages(older))


@pytest.mark.parametrize("variants", [(12,), (13,), (12, 13)])
def test_a_torch_without_cuda_fits_the_libraries_of_any_cuda(variants):
    assert healthy(diagnose(plant(CPU, dsl__variants=variants)))


# ----------------------------------------------------------------------------------------------------------- faults

FRESH = f"pip uninstall -y {' '.join(NAMES)} && pip install 'nvidia-cutlass-dsl==4.8.1'"
TORCH, FFI = "pip install 'torch>=2.9'", "pip install 'apache-tvm-ffi>=0.1.11'"
DRIVER = "sudo apt-get install nvidia-driver-580"

#: The facts, the beginning of the message and the end of the command.
PLANTED = {
    "no torch": (plant(CPU, torch=Torch(), kernels=()), "torch is not installed", TORCH),
    "old torch": (plant(CPU, torch__version="2.8.0"), "torch 2.8.0 is too old: 2.9", TORCH),
    "broken torch": (
        plant(CPU, torch__error="libc10.so: no such file", kernels=()),
        "torch 2.13.0+cpu cannot be imported: libc10.so",
        "pip install --force-reinstall 'torch==2.13.0'",
    ),
    "driver too old for CUDA 13": (
        plant(CUDA, driver=Driver("570.10", "12.8", 1), gpus=(), kernels=()),
        "CUDA driver 570.10, serves CUDA up to 12.8; torch's CUDA 13.0 needs 580.65.06 or newer",
        "torch --index-url https://download.pytorch.org/whl/cu128",
    ),
    "driver too old for CUDA 12": (
        plant(CUDA, torch__cuda="12.6", driver=Driver("470.10", "11.4", 1), gpus=(), kernels=()),
        "CUDA driver 470.10, serves CUDA up to 11.4; torch's CUDA 12.6 needs 525.60.13 or newer",
        DRIVER,
    ),
    "old GPU": (
        plant(CUDA, gpus=(T4,), kernels=()),
        "GPU 0 (Tesla T4): sm_75 is not supported: sm_80 or newer is needed",
        "export FORGE_BACKEND=ref",
    ),
    "old GPU beside a new one": (
        plant(CUDA, gpus=(T4, dataclasses.replace(H200, index=1)), kernels=(KernelRun("sm_90a", 1, 0.4),)),
        "GPU 0 (Tesla T4): sm_75 is not supported: sm_80 or newer is needed",
        "export CUDA_VISIBLE_DEVICES=1",
    ),
    "torch not built for the GPU": (
        plant(CUDA, torch__arches=("sm_80", "sm_100")),
        "GPU 0 (NVIDIA H200): torch 2.13.0 is not built for sm_90 (built for sm_80, sm_100)",
        "torch --index-url https://download.pytorch.org/whl/cu130",
    ),
    "no DSL": (
        plant(CPU, dsl=Dsl(), kernels=()),
        "the CuTe DSL is not installed",
        "pip install 'nvidia-cutlass-dsl>=4.8,<5'",
    ),
    "no DSL, torch with CUDA 13": (
        plant(CUDA, dsl=Dsl(), kernels=()),
        "the CuTe DSL is not installed",
        "pip install 'nvidia-cutlass-dsl[cu13]>=4.8,<5'",
    ),
    "DSL too old": (
        plant(CPU, dsl=Dsl({"nvidia-cutlass-dsl": "4.5.1"}, (12,))),
        "CuTe DSL 4.5.1 is not supported: >=4.8,<5 is needed",
        "pip uninstall -y nvidia-cutlass-dsl && pip install 'nvidia-cutlass-dsl>=4.8,<5'",
    ),
    "DSL too new": (
        plant(CPU, dsl=Dsl({"nvidia-cutlass-dsl": "5.0"}, (12,))),
        "CuTe DSL 5.0 is not supported",
        "pip install 'nvidia-cutlass-dsl>=4.8,<5'",
    ),
    "parts of several versions": (
        plant(CPU, dsl__distributions={**DSL.distributions, NAMES[2]: "4.7.0"}),
        (
            "in several versions: nvidia-cutlass-dsl 4.8.1, nvidia-cutlass-dsl-libs-base 4.8.1, "
            "nvidia-cutlass-dsl-libs-cu12 4.7.0"
        ),
        FRESH,
    ),
    "mixed variants": (
        plant(CUDA, dsl__broken=("two variants of the CuTe DSL are mixed on disk: 2 file(s), for example x.so",)),
        "two variants of the CuTe DSL are mixed on disk: 2 file(s), for example x.so",
        (
            f"pip uninstall -y {' '.join(NAMES)} nvidia-cutlass-dsl-libs-cu13 && "
            "pip install 'nvidia-cutlass-dsl[cu13]==4.8.1'"
        ),
    ),
    "no library": (
        plant(CPU, dsl__variants=()),
        "CuTe DSL 4.8.1 has no compiler library for any CUDA version",
        FRESH,
    ),
    "libraries of another CUDA than torch": (
        plant(CUDA, dsl=DSL),
        "CuTe DSL 4.8.1 has libraries for CUDA 12, but torch is built with CUDA 13.0",
        "pip install 'nvidia-cutlass-dsl[cu13]==4.8.1'",
    ),
    "libraries of another CUDA than torch, no GPU": (
        plant(CPU, torch__cuda="13.0"),
        "CuTe DSL 4.8.1 has libraries for CUDA 12, but torch is built with CUDA 13.0",
        "pip install 'nvidia-cutlass-dsl[cu13]==4.8.1'",
    ),
    "libraries of CUDA 13 alone, torch with CUDA 12": (
        plant(CUDA, dsl__variants=(13,), torch__cuda="12.8"),
        "CuTe DSL 4.8.1 has libraries for CUDA 13, but torch is built with CUDA 12.8",
        # Which brings those of CUDA 12: the distribution requires them.
        "pip install 'nvidia-cutlass-dsl==4.8.1'",
    ),
    "libraries newer than the driver": (
        plant(CUDA, dsl__variants=(13,), torch__cuda="12.8", driver=Driver("575.51.03", "12.9", 1)),
        "CuTe DSL 4.8.1 has libraries for CUDA 13, but the driver serves CUDA up to 12.9",
        "pip install 'nvidia-cutlass-dsl-libs-cu12==4.8.1'",
    ),
    "no TVM-FFI": (plant(CPU, tvm_ffi=None), "TVM-FFI is not installed", FFI),
    "old TVM-FFI": (
        plant(CPU, tvm_ffi="0.1.9"),
        "TVM-FFI 0.1.9 is too old: 0.1.11 or newer is needed",
        FFI,
    ),
    "a kernel that does not compile": (
        plant(CPU, kernels=(KernelRun("sm_90a", error="exit status 1: CompileError: no"),)),
        "a kernel for sm_90a failed: exit status 1: CompileError: no",
        FRESH,
    ),
    "a kernel with a wrong result": (
        plant(CUDA, kernels=(KernelRun("sm_90a", 0, 0.4, "3 of 1009 elements are wrong"),)),
        "a kernel for sm_90a on GPU 0 failed: 3 of 1009 elements are wrong",
        "pip install 'nvidia-cutlass-dsl[cu13]==4.8.1'",
    ),
    "a wrong variable": (
        plant(CPU, settings_error="environment variable FORGE_ARCH: expected an architecture, got 'x'."),
        "environment variable FORGE_ARCH: expected an architecture, got 'x'.",
        "unset FORGE_ARCH",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found_with_the_command_that_repairs_it(name):
    facts, message, repair = PLANTED[name]
    found = found_in(facts, Level.FAULT)
    # One cause may show in two places, but then one command repairs both.
    assert len({finding.repair for finding in found}) == 1, found
    assert message in found[0].message
    assert found[0].repair.endswith(repair)
    assert not healthy(diagnose(facts))
    text = as_text(diagnose(facts))
    assert f"repair: {found[0].repair}" in text
    assert text.endswith(f"broken: {len(found)} fault(s); each is followed by the command that repairs it")


WARNED = {
    "CPU build beside a GPU": (
        plant(CPU, driver=Driver("575.51.03", "12.9", 1)),
        "torch 2.13.0+cpu is built without CUDA, but the driver sees 1 GPU(s)",
        "torch --index-url https://download.pytorch.org/whl/cu128",
    ),
    "hidden GPUs": (
        plant(CUDA, gpus=(), kernels=()),
        "No GPU devices found by torch, but the driver sees 1",
        "unset CUDA_VISIBLE_DEVICES",
    ),
    "driver older than CUDA 12.9's own": (
        plant(CUDA, torch__cuda="12.8", dsl=DSL, driver=Driver("550.54.14", "12.4", 1)),
        "it should be 575.51.03 or newer",
        DRIVER,
    ),
    "cache folder": (
        plant(CPU, cache_writable=False),
        "cache folder cache is not writable",
        'export FORGE_CACHE_DIR="$(mktemp -d)"',
    ),
}


@pytest.mark.parametrize("name", WARNED)
def test_what_is_odd_but_works_is_a_warning(name):
    facts, message, repair = WARNED[name]
    warnings = found_in(facts, Level.WARNING)
    assert len(warnings) == 1, warnings
    assert message in warnings[0].message
    assert warnings[0].repair.endswith(repair)
    assert healthy(diagnose(facts))


def test_an_old_gpu_is_no_fault_where_the_reference_was_asked_for():
    facts = plant(CUDA, gpus=(T4,), kernels=(), backend="ref")
    assert not found_in(facts, Level.FAULT)
    assert any("sm_75 is not supported: sm_80 or newer is needed" in message for message in messages(facts))


def test_tools_are_named_found_or_not():
    facts = plant(CPU, tools={"ncu": "/usr/bin/ncu", "nsys": None})
    assert "ncu at /usr/bin/ncu" in messages(facts, Level.OK)
    assert any(message.startswith("nsys not found (optional") for message in messages(facts, Level.NOTE))


# ------------------------------------------------------------------------------------------------------------ rules


def test_the_driver_that_a_cuda_version_needs():
    needed = {"12.0": "525.60.13", "12.8": "525.60.13", "12.9": "575.51.03", "13.0": "580.65.06", "13.3": "580.65.06"}
    assert {cuda: findings.minimum_driver(cuda) for cuda in needed} == needed
    assert findings.minimum_driver("11.8") is None


@pytest.mark.parametrize(
    ("arches", "capability", "fits"),
    [
        (("sm_80",), (8, 9), True),
        (("sm_86",), (8, 0), False),
        (("sm_90",), (10, 0), False),
        (("sm_90a",), (9, 0), True),
        (("sm_100a",), (10, 3), False),
        (("compute_90",), (12, 0), True),
        (("sm_120", "compute_120"), (9, 0), False),
        (("sm_100f",), (10, 3), True),
        ((), (9, 0), False),
    ],
)
def test_what_torch_was_built_for(arches, capability, fits):
    assert findings.torch_supports(arches, capability) is fits


# ------------------------------------------------------------------------------------------------- what lies on disk


def install(folder, name, files, version="4.8.1"):
    """Plants an installed distribution with the given files."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = []
    for file, text in files.items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        lines.append(f"{file},sha256={digest},{len(text)}")
    (info / "RECORD").write_text("\n".join([*lines, f"{info.name}/RECORD,,"]))


def read(folder):
    return machine.read_dsl(importlib.metadata.distributions(path=[str(folder)]), folder / "nvidia_cutlass_dsl")


LIBRARY = "nvidia_cutlass_dsl/dsl_packages/cutlass/_mlir/_mlir_libs/_cutlass_ir.{}.cpython-311-x86_64-linux-gnu.so"


MIXED = "two variants of the CuTe DSL are mixed on disk: 1 file(s), for example nvidia_cutlass_dsl/common.py"


@pytest.fixture
def installed(tmp_path):
    install(tmp_path, "nvidia-cutlass-dsl", {})
    install(tmp_path, "nvidia-cutlass-dsl-libs-base", {"nvidia_cutlass_dsl/common.py": "common"})
    install(tmp_path, "nvidia-cutlass-dsl-libs-cu12", {LIBRARY.format("cu12"): "12", "bin/run": "script"})
    install(tmp_path, "torch", {"torch/x.py": "x"}, "2.13.0")
    return tmp_path


@pytest.mark.parametrize(
    "more, changes",
    [
        ({}, {}),
        ({LIBRARY.format("cu13"): "13"}, {"variants": (12, 13)}),
        ({"nvidia_cutlass_dsl/common.py": "common"}, {}),
        ({"nvidia_cutlass_dsl/common.py": "of CUDA 13"}, {"broken": (MIXED,)}),
    ],
    ids=["one variant", "two side by side", "the same file from two distributions", "two in one place"],
)
def test_installed_variants(installed, more, changes):
    assert read(installed) == DSL
    install(installed, "nvidia-cutlass-dsl-libs-cu13", more)
    found = read(installed)
    assert found == dataclasses.replace(DSL, distributions=DSL_BOTH.distributions, **changes)
    assert found.version == "4.8.1"


def test_an_altered_and_a_missing_file_are_found(installed):
    (installed / "nvidia_cutlass_dsl/common.py").write_text("of another version")
    (installed / LIBRARY.format("cu12")).unlink()
    # A script outside the package may be rewritten or left out by the installer.
    (installed / "bin/run").unlink()
    found = read(installed)
    altered, missing = found.broken
    assert altered.endswith("not what its distributions recorded: 1 file(s), for example nvidia_cutlass_dsl/common.py")
    assert missing.endswith(f"files are missing: 1 file(s), for example {LIBRARY.format('cu12')}")
    assert found.variants == ()


def test_libraries_without_a_distribution_are_seen(installed):
    (installed / LIBRARY.format("cu13")).write_text("unpacked by hand")
    assert read(installed).variants == (12, 13)


def test_the_first_of_two_copies_counts(installed, tmp_path_factory):
    second = tmp_path_factory.mktemp("second")
    install(second, "nvidia-cutlass-dsl", {}, "4.7.0")
    paths = [str(installed), str(second)]
    found = machine.read_dsl(importlib.metadata.distributions(path=paths), None)
    assert found.version == "4.8.1"
    assert found.variants == ()


def test_a_folder_is_writable_where_it_could_be_made(tmp_path):
    assert machine._writable(tmp_path / "not" / "there")
    blocked = tmp_path / "file"
    blocked.write_text("a file is no folder")
    assert not machine._writable(blocked)


# --------------------------------------------------------------------------------------------------------- programs


@pytest.mark.usefixtures("dsl", "no_variables")
def test_the_check_of_this_machine_compiles_a_kernel(forge, tmp_path):
    done = forge("doctor", "--json", FORGE_ARCH="sm_100a", FORGE_CACHE_DIR=str(tmp_path))
    answer = json.loads(done.stdout)
    assert done.exit_code == (0 if answer["healthy"] else 1)
    facts = answer["facts"]
    assert facts["executable"] == sys.executable
    assert facts["cache_dir"] == str(tmp_path)
    assert facts["kernels"], done.stderr
    for kernel in facts["kernels"]:
        assert kernel["error"] is None
        assert kernel["seconds"] > 0
        assert kernel["gpu"] is not None or kernel["arch"] == "sm_100a"
    assert answer["healthy"], answer["findings"]


def test_the_check_outlives_a_child_that_dies(script, monkeypatch):
    dies = script("python", "echo 'Fatal: all is lost' >&2\nkill -SEGV $$")
    monkeypatch.setattr(sys, "executable", str(dies))
    run = probe.run_in_child("sm_90a", None)
    assert run == KernelRun("sm_90a", None, None, "signal 11: Fatal: all is lost")


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # importing it is an ImportError from here on
from forge_core.commands.doctor import doctor
doctor(["--json"])
"""


def test_the_check_answers_where_torch_cannot_be_imported():
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    found = [finding for finding in json.loads(done.stdout)["findings"] if finding["level"] == "fault"]
    assert [finding["topic"] for finding in found] == ["torch"]
    assert "cannot be imported" in found[0]["message"]


def test_a_tool_is_found_in_the_toolkit_that_is_not_on_the_path(script, tmp_path, monkeypatch):
    (tmp_path / "cuda" / "bin").mkdir(parents=True)
    tool = script("cuda/bin/ncu", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "elsewhere"))
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setattr(processes, "PLACES", ())
    assert processes.find_tool("ncu") is None
    monkeypatch.setattr(processes, "PLACES", (f"{tmp_path}/*/bin",))
    assert processes.find_tool("ncu") == str(tool)
    monkeypatch.setattr(processes, "PLACES", ())
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    assert processes.find_tool("ncu") == str(tool)


def test_a_compiler_that_refuses_is_reported():
    run = probe.run_in_child("sm_75", None)
    assert run.seconds is None
    assert "sm_75" in run.error
    assert run.error.startswith("exit status 1: ")


@pytest.mark.gpu
def test_a_launch_that_writes_nothing_is_a_wrong_result():
    assert probe._run(lambda *args: None, 0) == f"{probe.ELEMENTS} of {probe.ELEMENTS} elements are wrong"


@pytest.mark.gpu
@pytest.mark.usefixtures("no_variables")
def test_the_kernel_runs_on_every_gpu(forge):
    answer = json.loads(forge("doctor", "--json").stdout)
    assert [kernel["gpu"] for kernel in answer["facts"]["kernels"]] == list(range(len(answer["facts"]["gpus"])))
    assert all(kernel["error"] is None for kernel in answer["facts"]["kernels"])
