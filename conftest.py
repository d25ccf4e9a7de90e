"""What the tests of every package share: the markers `gpu`, `large` and `sanitizer`, and what they mean."""

pytest_plugins = ["forge_core.pytest_plugin"]
