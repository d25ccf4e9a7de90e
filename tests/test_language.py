"""The words of the glossary, and the form of commit subjects."""

from __future__ import annotations

import re
import subprocess

import pytest

#: The first commit whose subject has the form of CONTRIBUTING.md.
FIRST = "ba4a482"
SUBJECT = re.compile(r"[a-z0-9][\w, /.-]*: [a-z].*[^.]")


def terms(root):
    """The rows of the glossary: term, meaning, words that are not used for it."""
    text = (root / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return [row for row in rows if row[0] not in ("term", "---")]


def sources(root):
    code = ("packages/*/src/**/*.py", "tools/**/*.py", "docs/intro/*.py")
    for pattern in (*code, "packages/*/README.md", "docs/*.md", "docs/intro/*.md", "*.md"):
        yield from (path for path in root.glob(pattern) if path.name != "glossary.md")


def test_each_term_stands_once_with_its_meaning(root):
    named = [term.strip() for row in terms(root) for term in row[0].split(",")]
    assert len(named) == len(set(named)) > 40
    assert all(len(row) == 3 and row[1] for row in terms(root))


def test_no_other_word_is_used_for_a_term(root):
    unwanted = [word.strip() for row in terms(root) for word in row[2].split(",") if word.strip()]
    assert unwanted
    pattern = re.compile(rf"\b({'|'.join(unwanted)})s?\b", re.IGNORECASE)
    found = [
        f"{path.relative_to(root)}:{number}: {line.strip()}"
        for path in sources(root)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []


def test_commit_subjects_name_an_area_and_are_short(root):
    def git(*words):
        return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)

    if git("cat-file", "-e", FIRST).returncode:
        pytest.skip("no history here: a source archive, or a shallow clone")
    subjects = git("log", "--no-merges", "--format=%s", f"{FIRST}..HEAD").stdout.splitlines()
    assert [each for each in subjects if len(each) > 72 or not SUBJECT.fullmatch(each)] == []
