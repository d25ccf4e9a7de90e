"""The site's builder: links as the site has them, and links that lead nowhere."""

from __future__ import annotations

import importlib.util

import pytest


@pytest.fixture(scope="module")
def build(root):
    spec = importlib.util.spec_from_file_location("site_build", root / "tools" / "site" / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_readme_is_the_first_page_and_a_folder_has_no_link(build, root):
    text = build._linked(root / "docs" / "README.md")
    assert "[cache.md](cache.md)" in text
    assert "(records/h200/)" not in text and "records/h200/" in text
    for page in sorted(root.glob("packages/*/README.md")):
        assert "../README.md)" not in build._linked(page)


def test_links_that_lead_nowhere_are_found(build, tmp_path):
    (tmp_path / "a.html").write_text(
        '<h1 id="top"></h1><a href="b.html#here"></a><a href="b.html#there"></a><a href="c.html"></a>'
        '<a href="https://example.org/x"></a><img src="d%20e.svg"><a href="#anything"></a>'
    )
    (tmp_path / "b.html").write_text('<p id="here"><a href="a.html#top"></a></p>')
    (tmp_path / "d e.svg").write_text("")
    assert sorted(build._lost(tmp_path)) == [("a.html", "b.html#there"), ("a.html", "c.html")]


def test_an_operator_s_page_is_made_from_its_declaration(build):
    pages = dict(build._operators())
    assert {"softmax", "transpose", "reduce_sum"} <= set(pages)
    text = pages["softmax"]
    assert ".. py:function:: forge_week2_softmax.softmax(x: torch.Tensor, dim: int = -1" in text
    assert "variant: str = 'auto'" in text
    assert "| `held` |" in text and ":raises DimError:" in text
