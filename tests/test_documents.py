"""The form of the pages, their links, and that their prose makes no claim that goes stale."""

from __future__ import annotations

import re

import pytest

# -------------------------------------------------------------------------------------------------------------- links

#: A fenced block, and code within a line.
CODE = re.compile(r"^(?P<fence>```+).*?^(?P=fence) *$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"")


def headings(page, level="#+"):
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.findall(rf"^{level} +(.*)$", text, re.MULTILINE)


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings(page)}


def links(page):
    return [first or second for first, second in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8")))]


def lost(page):
    """The links of a page that lead nowhere."""
    for link in links(page):
        path, _, anchor = link.partition("#")
        goal = (page.parent / path).resolve() if path else page
        if not link.startswith("https://") and not (goal.exists() and (not anchor or anchor in anchors(goal))):
            yield link


def test_links_lead_somewhere(document):
    assert list(lost(document)) == []


def test_a_planted_link_is_seen(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A heading: one\n[a](#a-heading-one) [b](#two) [c](page.md#a-heading-one) [d](other.md)\n")
    assert list(lost(page)) == ["#two", "other.md"]


def test_links_of_a_package_resolve_outside_the_repository(package):
    pages = sorted(package.path.glob("*.md"))
    assert [link for page in pages for link in links(page) if not link.startswith(("https://", "#"))] == []


# --------------------------------------------------------------------------------------------------------------- form

WEEK = ["Idea", "Drawing", "Ladder", "What decides", "Numbers", "Open questions"]


def test_readme_is_short_and_in_order(root):
    text = (root / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert tables
    assert max(len(rows.splitlines()) - 2 for rows in tables) <= 12
    assert text.index("<picture>") < text.index("| Operator |") < text.index("## Install")
    assert headings(root / "README.md", "##") == ["Install", "Use", "Write an operator", "Packages", "Documentation"]
    # A first answer comes before the tests.
    assert text.index("nox -s bench -- smoke") < text.index("nox -s tests")


def test_a_week_s_page_is_short_and_begins_with_its_result(package, root):
    if not (week := re.match(r"week\d+", package.path.name)):
        return
    page = root / "docs" / f"{week[0]}.md"
    assert page.is_file(), f"docs/{page.name}: expected a page with the headings {WEEK}, got none"
    text = page.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 250
    assert headings(page, "##") == WEEK
    first = text.split("\n\n")[1]
    assert "NVIDIA" in first
    assert "(records/" in first


def test_a_page_begins_with_a_heading_and_a_sentence(document):
    heading, empty, sentence = document.read_text(encoding="utf-8").split("\n")[:3]
    assert heading.startswith("# ")
    assert empty == ""
    assert re.match(r"[\w`*]", sentence) or document.name == "CHANGELOG.md"


def test_every_experiment_is_dated(root):
    pages = sorted((root / "docs" / "lab").glob("*.md"))
    entries = {page.name: headings(page, "##") for page in pages}
    assert all(entries.values())
    assert [
        (name, e) for name, found in entries.items() for e in found if not re.match(r"\d{4}-\d\d-\d\d: \S", e)
    ] == []


# -------------------------------------------------------------------------------------- claims that would go stale

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
