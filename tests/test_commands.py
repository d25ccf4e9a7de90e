"""Every command and code block of every page is run or checked."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import click
import jupytext
import pytest
from click.testing import CliRunner

from forge_core import cli
from forge_core.bench import plan
from forge_core.bench.schema import suites_of

ROOT = Path(__file__).parents[1]
STEPS = sorted(ROOT.glob("docs/intro/[0-9]*.py"))
BLOCK = re.compile(r"^(?P<fence>```+)(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=fence) *$", re.DOTALL | re.MULTILINE)
#: Blocks that are marked by their indentation.
INDENTED = re.compile(r"(?<=\n\n)(?:    \S[^\n]*\n)+")
COMMAND = re.compile(r"^ *(?:nox|forge-cute|pip|python|git) ", re.MULTILINE)

#: Commands of other programs, and why they need no check.
ALLOWED = {
    "pip install nox": "the one tool that is installed by hand",
    "pip install pre-commit && pre-commit install": "as in pre-commit's documentation",
}
#: What a session passes its words to: a command of forge-cute, or a program.
SESSIONS = {
    "bench": "bench",
    "tune": "bench tune",
    "prove": "prove run",
    "proofs": "prove check",
    "doctor": "doctor",
    "profile": ROOT / "tools" / "profiling" / "run.py",
    "remote": ROOT / "tools" / "remote" / "remote.py",
}
#: Commands that need neither a GPU nor much time, and are run.
RUN = ("layout ", "inspect ", "settings", "bench list", "cache stats")
#: What the fragments of a page leave out.
BEFORE = {
    "docs/cache.md": """
from forge_core.cache import Traceable, compile_cached
from forge_core.cute.memory import example_arguments
from forge_week0_transpose.config import TiledConfig
from forge_week0_transpose.kernels.tiled import Tiled
""",
    "docs/proofs.md": """
from forge_week0_transpose.proofs import PROOFS
my_operator, samples, floor = PROOFS.subjects[0].operator, PROOFS.subjects[0].samples, PROOFS.subjects[0].floor
""",
}


def text_of(page):
    """A page; of a step of the course, the cells that are prose."""
    if page.suffix == ".md":
        return page.read_text(encoding="utf-8")
    cells = jupytext.read(page, fmt="py:percent").cells
    return "\n\n".join(f"{cell.source}\n" for cell in cells if cell.cell_type == "markdown")


def blocks(page, *languages):
    """The fenced blocks of a page in some languages."""
    return [block["text"] for block in BLOCK.finditer(text_of(page)) if block["language"] in languages]


def prose(page):
    """A page without its fenced blocks."""
    return BLOCK.sub("", text_of(page))


def lines(block):
    """The commands of a shell block; ``a b c | d`` is short for ``a b c`` and ``a b d``."""
    for line in block.splitlines():
        first, *others = " ".join(shlex.quote(word) for word in shlex.split(line, comments=True)).split(" '|' ")
        yield from [first, *(f"{first.rpartition(' ')[0]} {other}" for other in others)] if first else []


def commands(page):
    """The commands of a page's blocks."""
    indented = [block for block in INDENTED.findall(prose(page)) if COMMAND.search(block)]
    return [command for block in blocks(page, "bash") + indented for command in lines(block)]


def spans(page):
    """The commands that a page names in its prose."""
    return [" ".join(span.split()) for span in re.findall(r"`((?:nox|forge-cute) [^`]+)`", prose(page))]


# -------------------------------------------------------------------------------------------- what is wrong with them


@pytest.fixture(scope="module")
def sessions(root):
    found = re.findall(r"^@nox\.session.*\n(?:@.*\n)*def (\w+)", (root / "noxfile.py").read_text(), re.MULTILINE)
    assert {"tests", "bench"} <= set(found)
    return set(found)


def flaw(command, sessions, *, whole=True):
    """What is wrong with a command, or nothing; in prose it may be named without its arguments."""
    words = [word for word in shlex.split(command) if word not in ("...", "\N{HORIZONTAL ELLIPSIS}")]
    match words:
        case _ if command in ALLOWED:
            return ""
        case "forge-cute", *rest:
            return forge_cute(rest, whole=whole)
        case "nox", *rest:
            return nox(rest, sessions, whole=whole)
        case "pip", "install", *rest:
            lost = [word for word in rest if not (ROOT / word.partition("[")[0] / "pyproject.toml").is_file()]
            return f"no packages: {lost}" if lost else ""
        case "python", "-m", module, *_:
            return "" if importlib.util.find_spec(module) else f"no module {module}"
        case "python", path, *rest if (ROOT / path).is_file():
            return program(ROOT / path, rest)
    return "neither a command of this repository nor in ALLOWED"


def nox(words, sessions, *, whole):
    words = [word for word in words if word != "--no-venv"]
    named, passed = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    if named[:1] != ["-s"] or (whole and not named[1:]):
        return "expected nox -s SESSION"
    if unknown := set(named[1:]) - sessions:
        return f"no sessions: {sorted(unknown)}"
    target = SESSIONS.get(named[-1]) if passed else None
    if isinstance(target, Path):
        return program(target, passed)
    return forge_cute([*target.split(), *passed], whole=whole) if target else ""


@cache
def help_of(path):
    return subprocess.run([sys.executable, path, "--help"], capture_output=True, text=True, check=True).stdout


def program(path, words):
    words = words[: words.index("--")] if "--" in words else words
    unknown = [word for word in words if word.startswith("--") and word not in help_of(path)]
    return f"{path.name} has no options {unknown}" if unknown else ""


@cache
def measurable():
    """Every suite and operator."""
    found = plan.discover()
    return {"full"}.union(*({*suites_of(bench), *(operator.name for operator in bench.operators)} for bench in found))


def forge_cute(words, *, whole):
    command, context = cli.main, click.Context(cli.main)
    try:
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            _, command, words = command.resolve_command(context, words)
            context = click.Context(command, parent=context)
        if isinstance(command, click.Group) and whole:
            return "expected a command of the group"
        values, _, _ = command.make_parser(context).parse_args(list(words))
        for parameter in command.params:
            value = values.get(parameter.name)
            given = isinstance(value, str | list | tuple) and bool(value)
            if whole and parameter.required and not given:
                return f"{parameter.name} is missing"
            if given and not isinstance(parameter.type, click.Path):
                parameter.type_cast_value(context, value)
            # What `new` names is not there yet.
            is_name = given and command.name != "new" and parameter.name in ("operator", "name") and not value.isupper()
            if is_name and value not in measurable():
                return f"no suite or operator {value!r}"
    except click.UsageError as error:
        return error.format_message()
    return ""


def flaws(page, sessions):
    """The commands of a page, in its blocks and its prose, that are wrong."""
    found = {command: flaw(command, sessions) for command in commands(page)}
    found |= {span: flaw(span, sessions, whole=False) for span in spans(page)}
    return {command: wrong for command, wrong in found.items() if wrong}


def test_every_command_is_one_that_exists(document, sessions):
    assert flaws(document, sessions) == {}


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.stem)
def test_every_command_of_a_step_is_one_that_exists(step, sessions):
    assert f"python docs/intro/{step.name}" in commands(step)
    assert flaws(step, sessions) == {}


@pytest.mark.parametrize(
    "command",
    [
        "nox -s paint",
        "nox -s bench -- paint",
        "nox -s bench -- week0 --colour red",
        "nox -s profile -- ncu week0 --colour red",
        "forge-cute paint",
        "forge-cute layout kernel transpose --dtype float32",
        "forge-cute inspect paint --shape 4x4 --dtype float32",
        "forge-cute bench week0 --repeats none",
        "pip install ./packages/paint",
        "python tools/paint.py",
        "curl example.org",
    ],
)
def test_a_planted_command_is_refused(command, sessions):
    assert flaw(command, sessions)


def test_what_needs_no_gpu_runs(documents, tmp_path, monkeypatch):
    pytest.importorskip("cutlass", reason="the CuTe DSL is not installed (it exists for Linux only)")
    monkeypatch.chdir(tmp_path)
    prefix, pages = "forge-cute ", [*documents, *STEPS]
    shown = {command.removeprefix(prefix) for page in pages for command in commands(page) if prefix in command}
    for start in RUN:
        assert any(command.startswith(start) for command in shown), start
    for command in sorted(command for command in shown if command.startswith(RUN)):
        done = CliRunner().invoke(cli.main, shlex.split(command))
        assert done.exit_code == 0, f"{command}\n{done.output}"


# ------------------------------------------------------------------------------------------------------- other blocks


def run(code, folder):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, cwd=folder, check=False
    )


def test_the_examples_run_and_print_what_they_say(document, tmp_path):
    code, name = "\n".join(blocks(document, "python")), str(document.relative_to(ROOT))
    if not code:
        return
    if "kernels" in BEFORE.get(name, ""):
        pytest.importorskip("cutlass", reason="the CuTe DSL is not installed (it exists for Linux only)")
    done = run(BEFORE.get(name, "") + code, tmp_path)
    assert done.returncode == 0, done.stderr
    stated = re.findall(r"# -> (.+)$", code, re.MULTILINE)
    assert [line for line in done.stdout.splitlines() if line in stated] == stated
    assert stated or document != ROOT / "packages" / "forge-core" / "README.md"


def test_explain_prints_what_the_page_of_row_programs_says(tmp_path):
    pytest.importorskip("cutlass", reason="the CuTe DSL is not installed (it exists for Linux only)")
    page = ROOT / "docs" / "rows.md"
    (shown,) = (" ".join(block.split()) for block in blocks(page, "") if "cache key" in block)
    call = """
x, weight = torch.empty(4096, 8192, dtype=torch.bfloat16), torch.empty(8192, dtype=torch.bfloat16)
print(rms_norm.explain(x, weight, arch="sm_90a"))
"""
    printed = run(blocks(page, "python")[0] + call, tmp_path).stdout
    assert re.search(".*".join(map(re.escape, shown.split("..."))), " ".join(printed.split()))


def test_a_broken_example_would_be_seen(tmp_path):
    assert run("from forge_core import nothing_of_that_name", tmp_path).returncode != 0


def test_every_package_and_the_first_page_show_how_they_are_used(root, packages):
    pages = [root / "README.md", *(package.path / "README.md" for package in packages)]
    assert [page for page in pages if not blocks(page, "python")] == []


def test_other_blocks_are_drawings_and_settings(document):
    languages = {found["language"] for found in BLOCK.finditer(document.read_text(encoding="utf-8"))}
    assert languages <= {"", "bash", "python", "toml"}
    assert [block for block in blocks(document, "") if COMMAND.search(block)] == []
    for block in blocks(document, "toml"):
        tomllib.loads(block)


def test_troubleshooting_lists_messages_that_exist(root):
    text = (root / "docs" / "settings.md").read_text(encoding="utf-8").split("| What you see |")[1]
    shown = re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)
    source = "\n".join(p.read_text(encoding="utf-8") for p in root.glob("packages/forge-core/src/**/*.py"))
    parts = [part for message in shown for part in re.split(r"\.\.\.|sm_\d+", message)]
    assert shown
    assert [part for part in parts if part.strip() not in source] == []
