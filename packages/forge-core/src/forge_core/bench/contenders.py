"""Who takes part in a case: our variants and the peers, and who is left out and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from forge_core.bench.declare import Inputs, Peer
from forge_core.bench.plan import PlannedCase
from forge_core.bench.schema import AUTO
from forge_core.errors import ArgumentError, BenchmarkError, UnsupportedError

__all__ = ["OURS", "Described", "contenders", "our_name", "willing_peers"]

#: The name of our operator's `auto` among the contenders; a variant is ``forge:<variant>``.
OURS = "forge"


@dataclass(frozen=True)
class Described:
    """What a contender of ours launched, and why."""

    variant: str = ""
    config: str = ""
    why: str = ""


def our_name(variant: str) -> str:
    """A variant's name among the contenders."""
    return OURS if variant == AUTO else f"{OURS}:{variant}"


def contenders(
    planned: PlannedCase,
    backend: str,
    inputs: Inputs,
    *,
    suite: str,
    described: dict[str, Described],
    left_out: dict[str, str],
) -> dict[str, Callable[..., torch.Tensor]]:
    """The calls of all contenders, by name: ours first, then the peers.

    Args:
        planned: the case.
        backend: ``"kernel"`` or ``"ref"``.
        inputs: inputs of the case, on the device where it runs.
        suite: the suite's name, for messages.
        described: takes what each of ours launches.
        left_out: takes the names of those that are left out, and why.

    Raises:
        BenchmarkError: a peer that was asked for by name cannot run.
        ForgeError: a variant that was asked for by name cannot serve the case.
    """
    operator = planned.operator
    calls: dict[str, Callable[..., torch.Tensor]] = {}
    for variant in planned.variants:
        name = our_name(variant)
        if backend == "ref":
            if variant != AUTO:
                left_out[name] = "the backend is 'ref', which has no variants"
                continue
            described[name] = Described("reference", "", "the backend is 'ref': plain PyTorch is timed")
        else:
            try:
                found: Any = operator.explain(inputs, variant)
            except (ArgumentError, UnsupportedError) as error:
                if variant not in planned.lenient:
                    raise
                left_out[name] = str(error)
                continue
            described[name] = Described(str(found.variant), str(found.config), str(found.why))
        calls[name] = operator.call(variant)
    for peer in willing_peers(planned, inputs[0].device, suite=suite, left_out=left_out):
        calls[peer.name] = peer.make(planned.case)
    return calls


def willing_peers(planned: PlannedCase, device: torch.device, *, suite: str, left_out: dict[str, str]) -> list[Peer]:
    """The peers that have all that they need and can do the case.

    Args:
        planned: the case.
        device: where it runs.
        suite: the suite's name, for messages.
        left_out: takes the names of the others, and why.

    Raises:
        BenchmarkError: one of the others was asked for by name.
    """
    willing = []
    for name in planned.peers:
        peer = planned.operator.peer(name)
        missing = peer.missing(device) if peer is not None else ["its declaration"]
        cannot = "" if peer is None else peer.unable(planned.case)
        if peer is not None and not missing and not cannot:
            willing.append(peer)
            continue
        text = f"needs {' and '.join(missing)}" if missing else cannot
        if planned.peers_asked:
            raise BenchmarkError(f"peer {name} {text}", suite=suite, case=planned.case.name, peer=name)
        left_out[name] = text
    return willing
