"""`nox -s remote -- KIND ... --gpu NAME`: the benchmarks, the proofs or a profile on a rented GPU.

Exit status: that of the command which ran there; 3 bad usage, before anything is built; 4 the remote run was not made
or did not end; 130 interrupted.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import click
from plan import GPUS, KINDS, Plan, make_plan
from session import Machine, RemoteError, Rent, carry_out

BAD_USAGE, NOT_ENDED, INTERRUPTED = 3, 4, 130

HELP = """Run `nox -s bench`, `prove` or `profile` on a GPU rented from Modal; the same record comes back.

\b
nox -s remote -- bench week2 --gpu H200 --out results.json
nox -s remote -- prove week2 --gpu B200 --minutes 90
nox -s remote -- profile torch week0 --gpu H200 --dry-run

Whatever stands after KIND and is no option of this command goes to the session of that name.
"""


def rented(plan: Plan) -> AbstractContextManager[Machine]:
    """A machine of Modal's; RemoteError if its client is not installed."""
    try:
        import modal_client
    except ModuleNotFoundError as error:
        raise RemoteError(
            f"expected Modal's client, and {error.name!r} is not installed: nox -s remote installs it; without nox, "
            "pip install -c constraints.txt modal"
        ) from error
    return modal_client.rented(plan)


@click.command(help=HELP, context_settings={"ignore_unknown_options": True})
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="...")
@click.option("--gpu", required=True, metavar="NAME", help=f"One of {', '.join(GPUS)}.")
@click.option("--out", type=click.Path(path_type=Path), help="bench: FILE.json or a folder; profile: a folder.")
@click.option("--minutes", type=click.IntRange(1, 1380), default=60, show_default=True, help="Limit of the command.")
@click.option("--with", "extra", multiple=True, metavar="NAME", help="Install this too, such as a peer; repeatable.")
@click.option("--dry-run", is_flag=True, help="Print what would happen; needs no Modal and no credentials.")
@click.pass_context
def command(
    ctx: click.Context,
    kind: str,
    words: tuple[str, ...],
    gpu: str,
    out: Path | None,
    minutes: int,
    extra: tuple[str, ...],
    *,
    dry_run: bool,
) -> int:
    """The command; what it says to a user stands in HELP."""
    own, rent = ctx.obj
    plan = make_plan(kind, words, own, gpu=gpu, out=out, minutes=minutes, extra=extra)
    click.echo(plan.describe())
    if dry_run:
        click.echo("dry run: nothing was built, rented or sent")
        return 0
    return carry_out(plan, rent, lambda text: click.echo(text, nl=False))


def main(argv: Sequence[str], rent: Rent = rented) -> int:
    """The program; what follows a ``--`` is a profile's own command."""
    words = list(argv)
    cut = words.index("--") if "--" in words else len(words)
    try:
        return int(command.main(words[:cut], standalone_mode=False, obj=(words[cut + 1 :], rent)) or 0)
    except click.UsageError as error:
        click.echo(f"remote: {error.format_message()}", err=True)
        return BAD_USAGE
    except RemoteError as error:
        click.echo(f"remote: {error}", err=True)
        return NOT_ENDED
    except (KeyboardInterrupt, click.Abort):
        click.echo("remote: interrupted", err=True)
        return INTERRUPTED


if __name__ == "__main__":
    # A scheduler's SIGTERM ends a run as Ctrl-C does: the machine is given back.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
