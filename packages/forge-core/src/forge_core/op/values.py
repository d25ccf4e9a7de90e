"""Pickling and copying of operators, and their results as tuples."""

from __future__ import annotations

import pickle
import sys
from multiprocessing.context import get_spawning_popen
from typing import Any, Self


def several(result: Any) -> tuple[Any, ...]:
    """Returns the results of a call as a tuple."""
    return result if isinstance(result, tuple) else (result,)


class ByName:
    """Base of objects that are pickled by ``__module__`` and ``__qualname__``, and not copied, like functions."""

    __qualname__: str

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> str:
        # pickle and torch.fx resolve a string as an attribute of `__module__`.  pickle checks the same, with a message
        # that neither mentions operators nor offers a solution.
        module, name = self.__module__, self.__qualname__
        got = _unreachable(module)
        if not got:
            found: Any = sys.modules[module]
            for part in name.split("."):
                found = getattr(found, part, None)
            if found is self:
                return name
            got = "nothing of that name" if found is None else f"another object, {found!r}"
        raise pickle.PicklingError(
            f"{self}: an operator is pickled by its name, as a function is; expected '{module}.{name}' to be this "
            f"operator wherever it is loaded, got {got}. Declare the operator at the top level of a module that "
            "can be imported there, and keep it under the name of the function that it decorates."
        )


def _unreachable(module: str) -> str:
    """Why another process cannot import a module of this one; empty if nothing prevents it."""
    if module not in sys.modules:
        return f"no module '{module}'"
    spawning, main = get_spawning_popen() is not None, sys.modules[module]
    if module == "__mp_main__" and not spawning:
        return "the main program of a worker process, which has this name in workers only"
    if module == "__main__" and spawning and main.__spec__ is None and getattr(main, "__file__", None) is None:
        return "an interactive main program, which a worker process cannot import"
    return ""
