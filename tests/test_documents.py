"""The Python in the READMEs runs as it stands there, and their prose makes no claim that goes stale."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

DOCUMENTS = ["README.md", "packages/*/README.md", "docs/rows.md"]


def examples(root):
    for pattern in DOCUMENTS:
        for file in sorted(root.glob(pattern)):
            blocks = re.findall(r"^```python\n(.*?)^```", file.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
            if blocks:
                yield file, "\n".join(blocks)


def run(code, folder):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, cwd=folder, check=False
    )


def test_every_readme_shows_how_it_is_used(root, packages):
    shown = {file for file, _ in examples(root)}
    assert shown == {root / page for page in ("README.md", "docs/rows.md")} | {p.path / "README.md" for p in packages}


def test_the_examples_run(root, tmp_path):
    for file, code in examples(root):
        done = run(code, tmp_path)
        assert done.returncode == 0, f"{file}\n{done.stderr}"


def test_a_broken_example_would_be_seen(tmp_path):
    assert run("from forge_core import nothing_of_that_name", tmp_path).returncode != 0


# --------------------------------------------------------------------------------------- claims that would go stale

PROSE = ["README.md", "CONTRIBUTING.md", "docs/*.md", "packages/*/README.md", "packages/*/CHANGELOG.md"]

#: Not prose: generated blocks, code blocks, and the targets of links.
EXCLUDED = re.compile(
    r"^<!-- (?P<name>[\w:-]+) begin\b.*?^<!-- (?P=name) end -->"
    r"|^ *(?P<fence>```+).*?^ *(?P=fence)"
    r"|(?<=\])\([^)\s]*\)",
    re.DOTALL | re.MULTILINE,
)
NUMBER = (
    r"(?:\d[\d,]*|three|four|five|six|seven|eight|nine|ten|eleven|twelve|(?:thir|four|fif|six|seven|eigh|nine)teen"
    r"|(?:twen|thir|for|fif|six|seven|eigh|nine)ty(?:-\w+)?|hundreds?|thousands?)"
)
COUNT = re.compile(
    rf"\b{NUMBER}\s+(?:\w+\s+)?(?:kernels|tests|targets)\b|\btargets\b[^.|]{{0,40}}?\bof\s+(?:the\s+)?\d+",
    re.IGNORECASE,
)
MONTH = "(?:January|February|March|April|May|June|July|August|September|October|November|December)"
#: A date that is not part of a file name such as "week0-2026-11-21.json.gz".
DATE = re.compile(
    r"(?<![\w./-])\d{4}-\d\d-\d\d(?![\w/-]|\.\w)"
    rf"|\b(?:\d{{1,2}}(?:st|nd|rd|th)?\s+)?{MONTH}(?:\s+\d{{1,2}},?)?\s+\d{{4}}\b"
)


def claims(text, *, dated=False):
    """Lines and words of the counts of kernels, tests and targets in a page's prose, and of dates unless they may be.

    Args:
        text: the page.
        dated: whether dates are allowed.
    """
    prose = EXCLUDED.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    found = [match for pattern in ([COUNT] if dated else [COUNT, DATE]) for match in pattern.finditer(prose)]
    return [
        (prose.count("\n", 0, match.start()) + 1, " ".join(match[0].split()))
        for match in sorted(found, key=lambda match: match.start())
    ]


def test_no_prose_counts_kernels_tests_or_targets_or_gives_a_date(root):
    pages = [page for pattern in PROSE for page in sorted(root.glob(pattern))]
    assert root / "docs" / "proofs.md" in pages
    found = [
        f"{page.relative_to(root)}:{line}: {words}"
        for page in pages
        for line, words in claims(page.read_text(encoding="utf-8"), dated=page.name == "CHANGELOG.md")
    ]
    assert found == []


@pytest.mark.parametrize(
    "sentence, words",
    [
        ("All 89 kernels are proven.", "89 kernels"),
        ("On an H200 all 72 targets of the suite are reached.", "72 targets"),
        ("Now 92 of 94 targets are reached.", "94 targets"),
        ("Of the targets of this suite 60 of 64 are reached.", "targets of this suite 60 of 64"),
        ("It has 1,234 GPU tests.", "1,234 GPU tests"),
        ("One of the twenty-one kernels is proven.", "twenty-one kernels"),
        ("It was proven with 89\nkernels.", "89 kernels"),
        ("All figures are of 2026-11-21.", "2026-11-21"),
        ("Measured on 2026-11-21 ([record](records/h200/week0-2026-11-21.json)).", "2026-11-21"),
        ("Measured in November 2026.", "November 2026"),
    ],
)
def test_a_planted_claim_is_found(sentence, words):
    before = "# A page\n\n<!-- bench:x begin -->\n12 tests\n<!-- bench:x end -->\n\n```\n9 kernels\n```\n"
    assert claims(f"{before}{sentence}\n") == [(10, words)]


@pytest.mark.parametrize(
    "text",
    [
        "[records/h200/week0-2026-11-21.json.gz](records/h200/week0-2026-11-21.json.gz), over 36 cases.",
        "In `tune-week2-2026-11-22-askew.json` and [this](../2026-11-22/x.md).",
        "16 of 32 sectors, 20 of 20 pairs, 4 blocks of 512.",
        "A call that needs two kernels; the tests for a second device; 2 kernel launches.",
        "<!-- bench:week0 begin -->\nMeasured on 34 kernels, 2026-11-21.\n<!-- bench:week0 end -->",
        "```bash\necho 12 tests 2026-11-21\n```",
    ],
)
def test_what_cannot_go_stale_is_no_claim(text):
    assert claims(text) == []


def test_a_changelog_may_give_dates_but_no_counts():
    assert claims("Of 2026-11-22: 94 targets.", dated=True) == [(1, "94 targets")]
