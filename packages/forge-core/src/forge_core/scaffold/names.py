"""The sample names of the templates, as a Jinja extension: each stands for an answer."""

from __future__ import annotations

import re

from jinja2.ext import Extension

#: By sample name, the answer that takes its place.
SAMPLES = {
    "packages/sample-rows/tests": "tests",
    "packages/sample-kernel/tests": "tests",
    "forge-sample-rows": "distribution",
    "forge-sample-kernel": "distribution",
    "forge_sample_rows": "module",
    "forge_sample_kernel": "module",
    "sample_suite": "suite",
    "sample_norm": "operator",
    "sample_scale": "operator",
    "SampleNorm": "class_name",
    "SampleScale": "class_name",
}

# An alternation takes the first that matches, and the longer names stand first.
_SAMPLE = re.compile("|".join(SAMPLES))


class SampleNames(Extension):
    """Writes expressions for sample names, in contents and in paths, before Jinja reads them."""

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        """The source with ``[[ answer ]]`` for each sample name."""
        return _SAMPLE.sub(lambda found: f"[[ {SAMPLES[found[0]]} ]]", source)
