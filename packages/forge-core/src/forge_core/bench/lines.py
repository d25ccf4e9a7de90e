"""Where in a YAML file something stands, so that a message can name the line."""

from __future__ import annotations

import re

import yaml

__all__ = ["Lines"]

Key = str | int


class Lines:
    """The line numbers of a YAML text's keys and entries.

    Args:
        text: the file's text; anything that is no YAML has line 1 only.
    """

    def __init__(self, text: str) -> None:
        try:
            self._root = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.YAMLError:
            self._root = None

    def of(self, *path: Key) -> int:
        """The line of a key or an entry, from 1; of the last part of the path that exists, where it does not.

        Args:
            *path: keys of mappings, and positions in sequences from 0.
        """
        node, line = self._root, 1
        for key in path:
            if isinstance(node, yaml.MappingNode):
                found = [(k, v) for k, v in node.value if isinstance(k, yaml.ScalarNode) and k.value == str(key)]
                if not found:
                    return line
                line, node = found[0][0].start_mark.line + 1, found[0][1]
            elif isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
                node = node.value[key]
                line = node.start_mark.line + 1
            else:
                return line
        return line

    def of_message(self, message: str, *path: Key) -> int:
        """The line that a message of msgspec speaks of: it ends in a path such as ``at `$.cases[0].shapes```."""
        inside: list[Key] = []
        found = re.search(r"at `\$([^`]*)`", message)
        for name, index in re.findall(r"\.(\w+)|\[(\d+)\]", found[1] if found else ""):
            inside.append(name or int(index))
        unknown = re.search(r"unknown field `(\w+)`", message)
        return self.of(*path, *inside, *([unknown[1]] if unknown else []))
