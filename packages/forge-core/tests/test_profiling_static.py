"""The static report: cubin, PTX, occupancy rules, launches worked out on the host, and the command that shows them."""

from __future__ import annotations

import dataclasses
import json
import struct

import click
import pytest
import torch

from forge_core import device
from forge_core.bench import Bench
from forge_core.commands.find import explained
from forge_core.device import SPECS, Arch, spec_for
from forge_core.errors import CompileError, UnsupportedError
from forge_core.profiling import cubin
from forge_core.profiling.compiled import RecordedLaunch, record_launches
from forge_core.profiling.cubin import RESERVED_SMEM, count_sass, disassemble, read_cubin
from forge_core.profiling.occupancy import LIMITS, occupancy
from forge_core.profiling.ptx import count_instructions
from forge_core.profiling.static import floors_us, symbol_of

# --------------------------------------------------------------------------------------------------------- occupancy


@pytest.mark.parametrize(
    "threads, registers, smem, blocks, percent, limiters",
    [
        (256, 32, 0, 8, 100.0, ("warps", "registers")),
        (256, 33, 0, 6, 75.0, ("registers",)),  # 40 registers a thread are given out, 12 warps a part of the file
        (256, 68, 32768, 3, 37.5, ("registers",)),
        (32, 16, 0, 32, 50.0, ("blocks",)),
        (1024, 64, 0, 1, 50.0, ("registers",)),
        (128, 32, 100 * 1024, 2, 12.5, ("shared memory",)),
        (1024, 65, 0, 0, 0.0, ("registers",)),  # does not fit at all
        (96, 255, 0, 2, 9.375, ("registers",)),
    ],
)
def test_occupancy_of_an_h200(threads, registers, smem, blocks, percent, limiters):
    found = occupancy((9, 0), threads=threads, registers=registers, smem=smem)
    assert (found.blocks, found.percent, found.limiters) == (blocks, percent, limiters)
    assert found.warps == blocks * -(-threads // 32)
    assert found.blocks == min(found.allowed.values())


def test_cuda_takes_its_share_of_shared_memory_from_each_block():
    # 228 KiB hold three blocks of 75 KiB and their 1 KiB each, and not three of 75 KiB and 128 bytes.
    assert occupancy((9, 0), threads=32, registers=16, smem=75 * 1024).allowed["shared memory"] == 3
    assert occupancy((9, 0), threads=32, registers=16, smem=75 * 1024 + 1).allowed["shared memory"] == 2
    assert occupancy((9, 0), threads=32, registers=16, smem=227 * 1024).blocks == 1
    assert occupancy((9, 0), threads=32, registers=16, smem=227 * 1024 + 1).blocks == 0


def test_a_thread_is_given_sixteen_registers_at_least():
    assert occupancy((9, 0), threads=128, registers=14, smem=0).allowed["registers"] == 32


def test_smaller_multiprocessors_hold_less():
    by_arch = {
        gpu: occupancy(SPECS[gpu].capability, threads=1024, registers=32, smem=0).warps for gpu in ("A100", "RTX 4090")
    }
    assert by_arch == {"A100": 64, "RTX 4090": 32}
    for spec in SPECS.values():
        _, _, smem = LIMITS[spec.capability]
        assert (smem, smem - RESERVED_SMEM) == (spec.smem_per_sm, spec.smem_per_block)


def test_what_no_kernel_has_is_refused():
    with pytest.raises(ValueError, match="1 to 1024 threads"):
        occupancy((9, 0), threads=2048, registers=32, smem=0)
    with pytest.raises(UnsupportedError, match=r"compute capability 7\.5 are not known"):
        occupancy((7, 5), threads=32, registers=32, smem=0)


# --------------------------------------------------------------------------------------------------------------- PTX

PTX = """
.version 8.8
.visible .entry first_0(.param .u64 p)
{
    .local .align 4 .b8 __local_depot0[48];
    ld.param.b64 %rd1, [p];
    ld.global.nc.L1::no_allocate.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1];
    @%p1 ld.global.b16 %rs1, [%rd1];
    @!%p1 st.global.v2.f32 [%rd1], {%f1, %f2};
    st.shared.b8 [%r1], %rs1;
    ld.shared::cluster.b32 %r9, [%r1];
    cp.async.cg.shared.global [%r1], [%rd1], 16, 16;
    cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r2, %r3}], [%r4];
    mbarrier.init.shared.b64 [%r1], 1;
    shfl.sync.bfly.b32 %r5, %r1, 16, 31, -1;
    shfl.sync.bfly.b32 %r5, %r1, 8, 31, -1;
    bar.sync 0;
    bar.warp.sync -1;
    barrier.cluster.arrive;
    { .reg .pred inside;
	@inside ld.global.L2::cache_hint.v2.b32 { held0, held1 }, [%rd1+16], %rd2;
	@!inside st.shared.v4.b32 [%r1], { %r1, %r2, %r3, %r4 };
	}
    atom.global.add.u32 %r7, [%rd1], 1;
    ret;
}
.visible .entry second_1(.param .u64 p)
{
    ld.local.b32 %r1, [%rd1];
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1, %r2, %r3, %r4}, [%r5];
    ret;
}
"""


def test_what_stands_in_the_ptx_is_counted_by_kernel():
    found = count_instructions(PTX)
    assert set(found) == {"first_0", "second_1"}
    first = found["first_0"]
    assert first.accesses == {
        "cp.async.16": 1,
        "ld.cluster.4": 1,
        "ld.global.16": 1,
        "ld.global.2": 1,
        "ld.global.8": 1,
        "st.global.8": 1,
        "st.shared.1": 1,
        "st.shared.16": 1,
    }
    assert first.kinds == {
        "barriers": 1,
        "warp barriers": 1,
        "cluster barriers": 1,
        "mbarrier operations": 1,
        "shuffles": 2,
        "async copies": 1,
        "bulk copies": 1,
        "atomics": 1,
    }
    assert first.local_bytes == 48
    assert first.widths("ld.global") == [16, 8, 2]
    assert found["second_1"].accesses == {"ld.local.4": 1, "ldmatrix.shared.16": 1}


def test_text_without_a_kernel_is_refused():
    with pytest.raises(ValueError, match="found none"):
        count_instructions("nothing")
    with pytest.raises(ValueError, match="expected a cubin"):
        read_cubin(b"nothing")
    # An ELF object, and no cubin.
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 1, 62, 1, 0, 0, 0, 0, 64, 0, 0, 0, 0, 0)
    with pytest.raises(ValueError, match="expected a cubin"):
        read_cubin(header)


# ---------------------------------------------------------------------------------------------------- launches by hand


class Kernel:
    """What a decorated kernel is to its class: callable, with a name to be set."""

    _decorator_kind = "kernel"

    def set_name_prefix(self, name, **_):
        raise AssertionError("the kernel itself was reached")


class Second:
    kernel = Kernel()

    def __init__(self, threads):
        self.threads = threads

    def __call__(self, src, n, stream):
        self.kernel.set_name_prefix("second")
        self.kernel(src).launch(grid=(n, 1, 1), block=(self.threads, 1, 1), smem=None, stream=stream)


class First:
    kernel = Kernel()

    def __init__(self):
        self.finish = Second(64)

    def __call__(self, src, dst, n, sizes, stream):
        self.kernel.set_name_prefix("first")
        self.kernel(src, dst).launch(grid=[n // 4, sizes[0]], block=(256, 1, 1), cluster=(2, 1, 1), smem=4096)
        self.finish(dst, n, stream)


def test_host_code_runs_over_plain_integers_and_its_launches_are_noted():
    first = First()
    one, two = record_launches(first, (40, (3,)))
    src, dst = one.arguments
    assert one == RecordedLaunch("first", (10, 3, 1), (256, 1, 1), (2, 1, 1), 4096, (), (src, dst))
    assert two == RecordedLaunch("second", (40, 1, 1), (64, 1, 1), (1, 1, 1), None, (), (dst,))
    assert 0 < src < dst, "pointers are told apart"
    assert isinstance(first.finish, Second) and type(first.finish) is Second, "the object itself is untouched"
    assert "kernel" not in vars(first)


def test_a_launch_that_needs_more_than_integers_is_an_error():
    with pytest.raises(CompileError, match="cannot be worked out on the host: TypeError"):
        record_launches(First(), (40,))

    class Silent(First):
        def __call__(self, src, dst, stream):
            pass

    with pytest.raises(CompileError, match="launches no kernel"):
        record_launches(Silent(), ())


def test_a_launch_finds_its_kernel_by_name():
    launch = RecordedLaunch("sum", (1, 1, 1), (32, 1, 1), (1, 1, 1), 0)
    assert symbol_of(launch, ["sum_finish_1", "sum_0"]) == "sum_0"
    with pytest.raises(CompileError, match="expected one kernel named 'sum'"):
        symbol_of(launch, ["mean_0", "max_1"])


def test_floors_are_bytes_over_the_specified_bandwidth():
    assert floors_us(4_800_000_000) == pytest.approx(
        {"A100": 2354.1, "H100": 1432.0, "H200": 1000.0, "B200": 600.0}, rel=1e-4
    )


# ------------------------------------------------------------------------------------------------------------ command


@pytest.fixture
def inspected(forge, dsl):
    """What `forge-cute inspect` prints of a call."""

    def run(*words):
        done = forge("inspect", *words)
        assert done.exit_code == 0, done.output
        return done.output

    return run


SMALL = ("transpose", "--shape", "4096x4096", "--dtype", "bfloat16")


def test_inspect_shows_what_was_chosen_and_what_it_takes(inspected, tmp_path):
    text = inspected(*SMALL, "--variant", "tiled", "--cubin", tmp_path / "k.cubin")
    for part in (
        "forge_week0::transpose: variant tiled on sm_90a (NVIDIA H200)",
        "variant='tiled' was asked for",
        "TiledConfig(itemsize=2, edge=32",
        "128 x 128 blocks of 256 threads",
        "spills       none",
        "0 bytes static, 2,112 dynamic",
        "occupancy    100.0 %",
        "ld.global 2; st.global 2; ld.shared 2; st.shared 2",
        "in the code  shuffles 1, barriers 1",
        "67,108,864 at least: 33,554,432 read, 33,554,432 written",
        "A100 32.91   H100 20.02   H200 13.98   B200 8.39",
        "a floor for cold caches at the specified bandwidth, not a prediction",
    ):
        assert part in text, part
    (kernel,) = read_cubin((tmp_path / "k.cubin").read_bytes())
    assert f"registers    {kernel.registers} a thread" in text
    assert kernel.name == "transpose_tiled_2B_32x32_b0_0"


def test_inspect_as_json_for_another_architecture(inspected):
    found = json.loads(inspected(*SMALL[:-3], "1024x1024", *SMALL[-2:], "--arch", "sm_80", "--json"))
    assert found["arch"] == "sm_80" and found["variant"] == "vectorized"
    (kernel,) = found["kernels"]
    assert kernel["occupancy"]["blocks"] >= 1 and kernel["registers"] > 16
    assert found["bytes"] == {"read": 2**21, "written": 2**21}


@pytest.mark.parametrize(
    "arch, gpu, allowed",
    [
        ("sm_103a", "NVIDIA B200, the nearest known", "warps 8, blocks 32"),
        ("sm_86", "NVIDIA GeForce RTX 3090", "warps 6, blocks 16"),  # fewer than others of its generation
    ],
)
def test_an_architecture_has_limits_of_its_own(inspected, arch, gpu, allowed):
    text = inspected(*SMALL, "--variant", "naive", "--arch", arch)
    assert f"on {arch} ({gpu})" in text and f"blocks allowed: {allowed}" in text


def test_inspect_prints_ptx(inspected):
    text = inspected(*SMALL, "--variant", "naive", "--ptx")
    assert ".target sm_90a" in text and ".entry naive_2B_rank2_0" in text


def test_sass_needs_a_disassembler_and_says_which(forge, dsl, monkeypatch):
    monkeypatch.setattr(cubin, "find_nvdisasm", lambda: None)
    done = forge("inspect", *SMALL, "--variant", "naive", "--sass")
    assert done.exit_code == 1 and "pip install nvidia-cuda-nvdisasm" in done.output


def test_a_disassembler_that_fails_is_an_error(script, monkeypatch):
    tool = script("nvdisasm", "echo 'nvdisasm fatal: unknown architecture' >&2; exit 3")
    monkeypatch.setattr(cubin, "find_nvdisasm", lambda: str(tool))
    with pytest.raises(UnsupportedError, match=r"exit status 3.*unknown architecture.*-U nvidia-cuda-nvdisasm"):
        disassemble(b"x")


def test_accesses_are_counted_in_a_disassembly():
    text = (
        '\t.section\t.text.k_0,"ax",@progbits\n'
        "        /*0000*/                   LDC R1, c[0x0][0x28] ;\n"
        "        /*0010*/              @!P0 STL.64 [R1], R2 ;\n"
        "        /*0020*/                   LDL R4, [R1] ;\n"
        "        /*0030*/                   LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ;\n"
    )
    (counts,) = count_sass(text).values()
    assert {name: count for name, count in counts.items() if count} == {"instructions": 4, "LDG": 1, "STL": 1, "LDL": 1}


def test_only_inputs_that_are_no_call_are_the_benchmarks_fault(stand_in, monkeypatch):
    def plan(inputs, variant):
        raise TypeError(why)

    operator = dataclasses.replace(stand_in("swap", print), explain=plan)
    monkeypatch.setattr("forge_core.commands.find.discover", lambda: [Bench("own", "forge_core", (operator,), None)])
    why = "swap() missing required argument: 'b'"
    with pytest.raises(click.UsageError, match=r"inputs to be a call of it, got: swap\(\) missing"):
        explained("swap", shape="4x4", dtype="float32", arch="sm_90a")
    why = "unsupported operand type(s) for +: 'int' and 'str'"
    with pytest.raises(TypeError, match="unsupported operand"):
        explained("swap", shape="4x4", dtype="float32", arch="sm_90a")


def test_what_cannot_be_inspected_says_why(forge, dsl):
    for status, words, said in (
        (1, (*SMALL, "--variant", "lines"), "variant 'lines' was asked for"),
        (1, ("transpose", "--shape", "0x5", *SMALL[3:]), "launches nothing, since its result has no elements"),
        # Bad usage: what an operator does not take.
        (3, (*SMALL, "--arg", "colour=1"), "expected the arguments of forge_week0::transpose"),
        (3, (*SMALL[:-1], "float99"), "such as 4096x4096 and bfloat16"),
        (3, (*SMALL, "--layout", "diagonal"), "expected one of contiguous"),
        (3, ("reduce_sum", *SMALL[1:], "--arg", "dim=("), "expected a Python literal"),
        (3, ("logsumexp", *SMALL[1:]), "missing required argument: 'dim'"),
        (3, (*SMALL, "--variant", "narrow"), "'narrow'"),
        (3, (*SMALL, "--ptx", "--json"), "name one of them"),
        (3, (*SMALL, "--arg", "dim"), "expected NAME=VALUE"),
    ):
        done = forge("inspect", *words)
        assert done.exit_code == status and said in done.output, (words, done.output)


@pytest.mark.parametrize(("named", "gpu"), [("h100", "NVIDIA H100 80GB HBM3"), ("H200", "NVIDIA H200")])
def test_a_gpu_is_inspected_by_its_own_figures(inspected, named, gpu):
    found = json.loads(inspected(*SMALL, "--variant", "naive", "--arch", named, "--json"))
    assert (found["arch"], found["device"]) == ("sm_90a", gpu)


@pytest.mark.parametrize(("operator", "arguments"), [("transpose", None), ("reduce_sum", {"dim": "0"})])
def test_the_kernel_is_selected_for_the_gpu_that_was_named(monkeypatch, operator, arguments):
    planned = []
    monkeypatch.setattr(device, "spec_for", lambda arch: planned.append(spec_for(arch)) or planned[-1])
    explained(operator, shape="64x64", dtype="float32", arch=Arch.parse("H100"), arguments=arguments)
    assert planned == [SPECS["H100"]]


def test_inputs_larger_than_any_memory_are_inspected(inspected):
    """Two tensors of 8 TiB, of which only the shapes are needed."""
    text = inspected("softmax_backward", "--shape", "1048576x4194304", "--dtype", "bfloat16", "--json")
    assert json.loads(text)["bytes"]["read"] == 2 * 2 * 2**42


def test_an_operator_of_several_dimensions_takes_its_arguments_by_name(inspected):
    text = inspected("reduce_sum", "--shape", "64x32x16", "--dtype", "float16", "--arg", "dim=[0,2]", "--json")
    assert json.loads(text)["bytes"] == {"read": 64 * 32 * 16 * 2, "written": 64}


def test_layouts_of_the_input_are_those_of_the_benchmarks():
    from forge_core.bench.inputs import random_tensor
    from forge_core.testing.inputs import LAYOUTS

    def tensor(layout, device):
        return random_tensor((6, 10), torch.float32, device=device, generator=torch.Generator(), layout=layout)

    for layout in LAYOUTS:
        real, meta = (tensor(layout, torch.device(device)) for device in ("cpu", "meta"))
        assert (meta.shape, meta.stride(), meta.storage_offset()) == (real.shape, real.stride(), real.storage_offset())


LINES = """
import sys
from forge_core.commands.find import explained
from forge_core.profiling.static import inspect_explained
found = explained("transpose", shape="64x64", dtype="int8", variant="naive", arch="sm_90a")
print(found.key)
print(inspect_explained(found, arch="sm_90a").artefacts.ptx)
"""


def test_line_information_on_request_and_never_from_the_cache_of_a_build_without(python, dsl, monkeypatch):
    monkeypatch.delenv("CUTE_DSL_LINEINFO", raising=False)
    texts = [python("-c", LINES, **more) for more in ({}, {"CUTE_DSL_LINEINFO": "1"})]
    (key, ptx), (other_key, with_lines) = (text.split("\n", 1) for text in texts)
    assert ".loc" not in ptx and ".loc" in with_lines
    assert "kernels/naive.py" in with_lines
    assert key != other_key
