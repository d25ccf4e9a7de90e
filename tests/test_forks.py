"""Every operator serves the child of a fork, and its parent."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, sys, traceback, warnings
# 3.12 warns that forking a process with threads may deadlock; that it does not is what is tested here.
warnings.simplefilter("ignore", DeprecationWarning)
import torch
from forge_core.proofs.declare import discover

torch.set_num_threads(1)  # PyTorch's own softmax hangs in a child whose parent had threads of OpenMP
subjects = [subject for week in discover() for subject in week.subjects]

def serve(device):
    for subject in subjects:
        case = subject.cases[0]
        tensors = subject.make(case, subject.dtypes[0], torch.device(device), 0)
        subject.right(case)(subject.call(case)(*tensors), tensors)

serve("cpu")
child = os.fork()
if child == 0:
    status = 3
    try:
        serve(sys.argv[1])
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
serve(sys.argv[1])
print(len(subjects))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_after_a_fork(device):
    words = [sys.executable, "-W", "error", "-c", PROGRAM, device]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 20
