"""What holds for the repository as a whole: versions, licences, and that the documents say what the code does."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import statistics
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from forge_core.files import read_unpacked
from forge_core.settings import VARIABLES

PROSE = {".md", ".html", ".svg", ".png"}


# ------------------------------------------------------------------------------------------------------------ files


def test_source_is_ascii(tracked):
    assert [p for p in tracked if p.suffix not in PROSE and not read_unpacked(p).isascii()] == []


def test_files_are_small(tracked):
    sizes = {path: path.stat().st_size for path in tracked}
    assert [path for path, size in sizes.items() if size > 2**20] == []
    assert sum(sizes.values()) <= 3_500_000, sorted((size, str(path)) for path, size in sizes.items())[-20:]


def test_modules_stay_small_enough_to_be_read(tracked, root):
    source = [p for p in tracked if p.suffix == ".py" and "src" in p.relative_to(root).parts]
    assert source
    assert [p for p in source if len(p.read_text(encoding="utf-8").splitlines()) > 400] == []


def test_every_package_has_what_a_package_needs(package, root):
    for name in ("README.md", "CHANGELOG.md", "LICENSE", "tests"):
        assert (package.path / name).exists(), name
    assert (package.path / "LICENSE").read_text() == (root / "LICENSE").read_text()
    assert (package.source / "py.typed").exists()
    assert list((package.path / "tests").glob("test_*.py"))
    assert package.name.startswith("forge-")


def test_no_module_but_settings_reads_a_forge_variable(packages):
    files = [file for package in packages for file in package.source.rglob("*.py") if file.name != "settings.py"]
    assert [file for file in files if reads_forge_variable(file.read_text(encoding="utf-8"))] == []


def reads_forge_variable(source):
    """Whether a FORGE_ variable is looked up in the environment, by call or by subscript."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            target, words = ast.unparse(node.func), node.args
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            target, words = ast.unparse(node.value), [node.slice]
        else:
            continue
        names = [w.value for w in words if isinstance(w, ast.Constant) and isinstance(w.value, str)]
        if ("environ" in target or "getenv" in target) and any(name.startswith("FORGE_") for name in names):
            return True
    return False


@pytest.mark.parametrize(
    "line", ["os.environ['FORGE_X']", "os.environ.get('FORGE_X', '')", "os.getenv('FORGE_X')", "environ.pop('FORGE_X')"]
)
def test_a_planted_read_is_seen(line):
    assert reads_forge_variable(f"import os\nx = {line}\n")
    assert not reads_forge_variable(f"import os\nx = {line.replace('FORGE_', 'OTHER_')}\n")


# --------------------------------------------------------------------------------------------------------- versions


def test_version_changelog_and_metadata_agree(package):
    first = re.search(r"^## +(\S+)", (package.path / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert first[1] == package.version == importlib.metadata.version(package.name)


def test_a_week_takes_the_core_by_a_compatible_range(package, packages):
    (core,) = (p for p in packages if p.module == "forge_core")
    requirements = [Requirement(r) for r in package.project["dependencies"]]
    extras = {name: [Requirement(r) for r in group] for name, group in package.project["optional-dependencies"].items()}
    if package is core or package.module == core.module:
        assert extras["cu13"][0].name == "nvidia-cutlass-dsl"
        assert extras["cu13"][0].extras == {"cu13"}
        return
    ours = [r for r in requirements if canonicalize_name(r.name).startswith("forge-")]
    assert [r.name for r in ours] == [core.name], "a week depends on the core and on no other week"
    forwarded = extras["cu13"][0]
    assert (forwarded.name, forwarded.extras) == (core.name, {"cu13"})
    for requirement in (ours[0], forwarded):
        assert requirement.specifier.contains(core.version)
        assert str(requirement.specifier).startswith("~=")
        major, minor, *_ = Version(core.version).release
        assert not requirement.specifier.contains(f"{major}.{minor + 1}.0")


def test_every_package_has_one_floor_for_python_and_torch(packages):
    assert {p.project["requires-python"] for p in packages} == {">=3.11"}
    torch = {r for p in packages for r in p.project["dependencies"] if Requirement(r).name == "torch"}
    assert torch == {"torch>=2.9"}


def test_what_is_for_linux_only_says_so(packages):
    for package in packages:
        for group in (package.project["dependencies"], *package.project["optional-dependencies"].values()):
            for requirement in map(Requirement, group):
                if requirement.name in {"nvidia-cutlass-dsl", "apache-tvm-ffi"}:
                    assert not requirement.marker.evaluate({"sys_platform": "darwin"}), requirement
                    assert requirement.marker.evaluate({"sys_platform": "linux"}), requirement


def test_pins_install_on_the_first_release_of_the_lowest_python(packages, root):
    (lowest,) = {package.project["requires-python"].removeprefix(">=") for package in packages}
    text = (root / "constraints.txt").read_text(encoding="utf-8")
    pinned = {canonicalize_name(name) for name in re.findall(r"^([\w.-]+)==", text, re.MULTILINE)}
    wants = {
        found.metadata["Name"]: found.metadata["Requires-Python"]
        for found in importlib.metadata.distributions()
        if canonicalize_name(found.metadata["Name"]) in pinned and found.metadata["Requires-Python"]
    }
    assert len(wants) > 50
    assert [item for item in wants.items() if f"{lowest}.0" not in SpecifierSet(item[1])] == []


def test_constraints_pin_everything_that_nox_names(packages, root):
    lines = [line for line in (root / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert lines == sorted(lines, key=str.lower)
    pins = {}
    for line in lines:
        requirement = Requirement(line)
        (specifier,) = requirement.specifier
        assert specifier.operator == "==", line
        pins[canonicalize_name(requirement.name)] = specifier.version
    assert pins["torch"] == "2.13.0"
    assert pins["nvidia-cutlass-dsl"] == "4.8.1"
    assert {pins[name] for name in pins if name.startswith("nvidia-cutlass-dsl")} == {"4.8.1"}
    settings = tomllib.loads((root / "pyproject.toml").read_text())
    wanted = [Requirement(r) for r in settings["dependency-groups"]["dev"]]
    wanted += [Requirement(r) for p in packages for r in p.project["dependencies"]]
    for requirement in wanted:
        name = canonicalize_name(requirement.name)
        if not name.startswith("forge-"):
            assert requirement.specifier.contains(pins[name]), requirement


def test_pre_commit_runs_the_pinned_ruff(root):
    text = (root / ".pre-commit-config.yaml").read_text()
    pinned = re.search(r"^ruff==(.+)$", (root / "constraints.txt").read_text(), re.MULTILINE)[1]
    assert re.findall(r"ruff==([\w.]+)", text) == [pinned, pinned]


# -------------------------------------------------------------------------------------------------------- documents


def table(text, heading):
    """The rows below a heading, as lists of cells without code marks."""
    section = text.split(f"\n{heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.strip().strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip().replace("`", "") for cell in row] for row in rows[2:]]


def test_the_variables_are_listed_as_they_are(root):
    rows = table((root / "docs" / "settings.md").read_text(encoding="utf-8"), "## Settings")
    assert rows == [[v.name, v.takes, v.help] for v in VARIABLES]


def test_readme_lists_every_package(packages, root):
    rows = table((root / "README.md").read_text(encoding="utf-8"), "## Packages")
    listed = [(f"[{p.name}](packages/{p.path.name}/README.md)", p.module) for p in packages]
    assert [(row[0], row[1]) for row in rows] == listed


def test_contributing_lists_every_session(root):
    text = (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
    sessions = re.findall(r"^@nox\.session.*\n(?:@.*\n)*def (\w+)", (root / "noxfile.py").read_text(), re.MULTILINE)
    named = {row[0].removeprefix("nox -s ").split(" ")[0] for row in table(text, "## Sessions")}
    assert named == set(sessions) - {"env"}


def test_continuous_integration_runs_what_readme_says(root):
    block = re.search(r"<!-- ci -->\n```bash\n(.*?)```", (root / "README.md").read_text(encoding="utf-8"), re.DOTALL)[1]
    assert block.splitlines() == [
        "pip install nox",
        "nox -s lint types tests build docs",
        "nox -s proofs",
        "nox -s bench -- smoke",
    ]
    script = root / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    # The commands are read from README, not repeated.
    assert "README.md" in script.read_text()
    assert "nox -s" not in script.read_text()
    assert steps(root, "ci") == ["bash .ci/run"]


def steps(root, workflow):
    """The commands of a workflow with one job."""
    file = yaml.safe_load((root / ".github" / "workflows" / f"{workflow}.yml").read_text())
    (job,) = file["jobs"].values()
    return [step["run"] for step in job["steps"] if "run" in step]


def test_the_gpu_workflow_tests_validates_and_measures(root):
    assert [re.sub(r"\S*nox -s", "nox -s", step) for step in steps(root, "gpu")[1:]] == [
        "nox -s tests",
        "nox -s prove",
        "nox -s bench -- smoke --out results",
    ]


def test_issue_forms_ask_for_what_is_needed(root):
    for path in (root / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(path.read_text())
        assert form["name"] and form["description"]
        assert [part["id"] for part in form["body"] if part.get("validations", {}).get("required")]


def test_the_citation_is_of_this_version(root, packages):
    (core,) = (p for p in packages if p.module == "forge_core")
    assert yaml.safe_load((root / "CITATION.cff").read_text())["version"] == core.version


def test_every_package_s_suite_has_a_place_in_the_report(packages, root):
    from forge_core.bench import pages

    suites = {name for p in packages for name in p.project.get("entry-points", {}).get("forge.bench", {})}
    assert suites
    assert suites <= set(pages.newest(pages.gather([root / "docs" / "records"])))


@pytest.fixture(scope="module")
def measured(root):
    """By operator: for each case of its week's newest record, the number of peers and the result of ours."""
    from forge_core.bench import pages
    from forge_core.bench.report import compared

    found = {}
    for entry in pages.newest(pages.gather([root / "docs" / "records"])).values():
        operators = {case.operator for case in entry.record.cases} if entry.record.suite.startswith("week") else ()
        for operator in operators:
            for case in compared([case for case in entry.record.cases if case.operator == operator]):
                peers = [contender.name for contender in case.contenders if contender.kind == "peer"]
                found.setdefault(operator, []).append((len(peers), case.contender("forge")))
    return found


def test_readme_says_what_the_records_say(root, measured):
    """By operator: speedup over the fastest peer, where all ran, and at least; share of the copy, and at least."""
    rows = table("\n" + (root / "README.md").read_text(encoding="utf-8"), "# Forge")
    assert len(rows) >= 5
    for operator, *shown, peers in rows:
        cases = measured[re.match(r"\[(\w+)\]", operator)[1]]
        most = max(count for count, _ in cases)
        assert len(peers.split(",")) == most
        ratios, shares = [ours.of_best_peer for _, ours in cases], [ours.of_ceiling for _, ours in cases]
        together = [ours.of_best_peer for count, ours in cases if count == most]
        told = (*map(statistics.geometric_mean, (ratios, together)), min(ratios))
        told += (statistics.geometric_mean(shares), min(shares))
        assert shown == [f"{ratio:.2f}" for ratio in told]


def test_package_readmes_say_what_the_records_say(root, measured):
    told = re.compile(r"`(\w+)` has ([\d.]+)\s+times\s+the\s+speed\s+of\s+the\s+fast[^(]*\(slowest: ([\d.]+)\)")
    found = [said for path in root.glob("packages/*/README.md") for said in told.findall(path.read_text("utf-8"))]
    assert {operator for operator, *_ in found} >= {"transpose", "sum_rows", "sum_columns", "softmax", "rms_norm"}
    for operator, mean, least in found:
        ratios = [ours.of_best_peer for _, ours in measured[operator]]
        assert (mean, least) == (f"{statistics.geometric_mean(ratios):.2f}", f"{min(ratios):.2f}"), operator
