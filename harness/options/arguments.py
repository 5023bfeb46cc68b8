"""What can be said on the command line: every command and option, and the problem that they describe."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NoReturn

from harness.gpu.effort import Effort
from harness.operations.attention.inputs import REGIMES
from harness.operations.attention.masks import Mask, mask_help, parse_mask
from harness.operations.attention.problem import ITEMSIZE_BYTES, Problem
from harness.operations.attention.properties import PROPERTIES
from harness.support.errors import UsageError
from harness.support.gpus import GPUS


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line; the usage is one `--help` away."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see '{self.prog} --help'")


def build_parser() -> argparse.ArgumentParser:
    """All commands and options, each with help."""
    parser = _Parser(
        prog="python -m harness",
        description="Attention kernels, compared: is the answer right, how many bytes does it move, how fast is it.",
        epilog="Exit status: 0 all that ran passed, 1 a variant failed, 2 the call was wrong.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)

    def command(name: str, help: str) -> argparse.ArgumentParser:
        sub: argparse.ArgumentParser = commands.add_parser(
            name, help=help, description=help[0].upper() + help[1:] + ".", allow_abbrev=False
        )
        return sub

    listing = command("list", "the registered variants: name, algorithm, backend, idea")
    _add_selection(listing)
    _add_plugins(listing)
    _add_report(listing)

    compare = command("compare", "run every variant on one problem, check it, count its bytes, rank")
    _add_problem(compare)
    _add_drawing(compare)
    _add_selection(compare)
    _add_tile(compare)
    _add_plugins(compare)
    _add_device(compare)
    _add_sanitizer(compare)
    _add_report(compare)

    run = command("run", "run one variant on your own arrays")
    run.add_argument("variant", metavar="VARIANT", help="the variant's name, as 'list' shows it")
    for name, what in (("q", "queries"), ("k", "keys"), ("v", "values")):
        run.add_argument(
            f"--{name}",
            type=Path,
            required=True,
            metavar="FILE.npy",
            help=f"{what}: (batch, heads, len, dim) or (len, dim)",
        )
    run.add_argument("--out", type=Path, required=True, metavar="FILE.npy", help="where O goes, in the shape of Q")
    run.add_argument(
        "--lse",
        type=Path,
        metavar="FILE.npy",
        help="where the log-sum-exp goes, float32, one per row; not all store it",
    )
    run.add_argument(
        "--dtype",
        help=f"{', '.join(ITEMSIZE_BYTES)}: what the arrays have to be (default: what they are). bfloat16 arrays are "
        "files of uint16 that hold its bits, and so is O then",
    )
    _add_mask_and_scale(run)
    _add_plugins(run)
    _add_device(run)
    _add_report(run)

    traffic = command("traffic", "a variant's bytes by level, buffer, launch and source line, or a sweep over many")
    traffic.add_argument(
        "variant", metavar="VARIANT", nargs="?", help="the variant's name, as 'list' shows it; --sweep needs none"
    )
    traffic.add_argument(
        "--lines",
        action="store_true",
        help="by source line too, with the bank conflicts of shared memory (which takes several times as long)",
    )
    _add_problem(traffic)
    _add_drawing(traffic)
    _add_tile(traffic)
    _add_plugins(traffic)
    _add_sweep(traffic)
    counting = traffic.add_argument_group("device")
    counting.add_argument(
        "--device",
        choices=("auto", "gpu", "emulator"),
        default="auto",
        help="bytes are counted on the emulator; auto: of kernels compiled for the GPU that is there, if any; gpu: "
        "beside them what that GPU's own counters say, through Nsight Compute",
    )
    _add_emulator(counting)
    _add_caches(traffic)
    _add_report(traffic)

    bench = command("bench", "honest timing on a GPU, beside PyTorch's own attention where it is installed")
    _add_problem(bench)
    _add_drawing(bench)
    _add_selection(bench)
    _add_plugins(bench)
    _add_tile(bench)
    _add_effort(bench)
    sweep = bench.add_argument_group("sweep")
    sweep.add_argument(
        "--sweep", metavar="FIELD=VALUES", help="times against one field of the problem: seq_len=256..16384 (doubling)"
    )
    sweep.add_argument(
        "--plot", type=Path, metavar="FILE.png|.svg", help="draw time, bytes and intensity side by side to this file"
    )
    bench.add_argument("--no-libraries", action="store_true", help="leave PyTorch's attention out")
    _add_report(bench)

    tune = command("tune", "try every tile size that a variant declares, and keep the fastest for this GPU")
    tune.add_argument("variant", metavar="VARIANT", help="the variant's name, as 'list' shows it")
    _add_problem(tune)
    _add_drawing(tune)
    _add_plugins(tune)
    device = tune.add_argument_group("device")
    device.add_argument(
        "--device",
        choices=("auto", "gpu", "emulator"),
        default="auto",
        help="gpu: by time; emulator: by counted bytes, which says less; auto: the GPU if there is one",
    )
    _add_emulator(device)
    _add_effort(tune, seed=False)
    _add_report(tune)

    fuzz = command("fuzz", "search for a problem that breaks a variant, shrink it, print a line that replays it")
    fuzz.add_argument(
        "variant", metavar="VARIANT", nargs="*", help="names, or shell patterns such as 'fa*' (default: all)"
    )
    _add_campaign(fuzz)
    _add_plugins(fuzz)
    machine = fuzz.add_argument_group("device")
    machine.add_argument(
        "--device",
        choices=("auto", "gpu", "emulator"),
        default="auto",
        help="auto: the GPU if there is one, else the emulator",
    )
    machine.add_argument(
        "--step-limit", type=int, metavar="N", help="emulator: instructions a warp may run before it stops"
    )
    _add_sanitizer(fuzz, "On a GPU: not available")
    _add_report(fuzz)

    show = command("show", "a variant's source or PTX, registers, spills, shared memory, or the order in which it adds")
    show.add_argument("variant", metavar="VARIANT", help="the variant's name, as 'list' shows it")
    show.add_argument("--ptx", action="store_true", help="the PTX of each kernel instead of its source")
    _add_problem(show)
    _add_tile(show)
    _add_plugins(show)
    _add_order(show)
    _add_report(show)
    return parser


def _add_problem(parser: argparse.ArgumentParser) -> None:
    default = Problem()
    group = parser.add_argument_group("problem")
    group.add_argument("--batch", type=int, default=default.batch, metavar="N", help="sequences (default: %(default)s)")
    group.add_argument(
        "--heads", type=int, default=default.heads, metavar="N", help="query heads (default: %(default)s)"
    )
    group.add_argument(
        "--kv-heads", type=int, metavar="N", help="key/value heads, a divisor of --heads (default: as many)"
    )
    group.add_argument(
        "--seq-len", type=int, metavar="N", help=f"rows of Q, K and V (default: {default.q_len}); see the next two"
    )
    group.add_argument("--q-len", type=int, metavar="N", help="rows of Q, where it is not --seq-len")
    group.add_argument("--kv-len", type=int, metavar="N", help="rows of K and V, where it is not --seq-len")
    group.add_argument(
        "--head-dim", type=int, default=default.head_dim, metavar="N", help="elements per row (default: %(default)s)"
    )
    group.add_argument("--dtype", default=default.dtype, help=f"{', '.join(ITEMSIZE_BYTES)} (default: %(default)s)")
    _add_mask_and_scale(group)


def _add_campaign(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("campaign, for each variant")
    group.add_argument("--examples", type=int, metavar="N", help="cases to try (default: 200, or what --seconds allow)")
    group.add_argument("--seconds", type=float, metavar="S", help="search no longer than this")
    group.add_argument(
        "--tiles",
        type=int,
        metavar="N",
        help="problems of at most N tiles, those of rows times those of keys, per head (default: 6)",
    )
    group.add_argument("--seed", type=int, metavar="S", help="same seed, same cases (default: another each time)")
    group.add_argument(
        "--properties",
        default="all",
        metavar="NAME[,NAME]",
        help="what is held in a share of the cases besides the answer, see below; all (default) or none",
    )
    group.add_argument("--replay", metavar="CASE", help="run this one case again, as an earlier campaign printed it")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    widest = max(map(len, PROPERTIES))
    lines = (f"  {each.name:{widest}}  {each.idea}" for each in PROPERTIES.values())
    parser.epilog = "\n".join(["properties:", *lines])


def _add_mask_and_scale(group: argparse._ActionsContainer) -> None:
    spellings = ", ".join(spelling for spelling, _ in mask_help())
    group.add_argument(
        "--mask", default="none", metavar="MASK", help=f"{spellings}; several joined by + (default: %(default)s)"
    )
    group.add_argument("--causal", action="store_true", help="--mask causal, besides what --mask says")
    group.add_argument("--scale", type=float, metavar="X", help="factor on the scores (default: 1 / sqrt(head_dim))")


def _add_drawing(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("inputs")
    group.add_argument(
        "--regime", default="normal", metavar="NAME", help="how values are drawn, see below (default: %(default)s)"
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    widest = max(map(len, REGIMES))
    lines = (f"  {regime.name:{widest}}  {regime.idea}" for regime in REGIMES.values())
    parser.epilog = "\n".join(["regimes:", *lines])


def _add_selection(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--variants", metavar="GLOB[,GLOB]", help="names, or shell patterns such as 'fa*' (default: all)"
    )


def _add_tile(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--tile",
        metavar="NAME=N[,NAME=N]",
        help="tile sizes, such as Br=32,Bc=16, of the variants that declare some (default: each variant's own)",
    )


def _add_plugins(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--plugin",
        action="append",
        default=[],
        type=Path,
        metavar="FILE.py",
        help="a file with a function register(registry) that adds variants; may be given again",
    )


def _add_device(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("device")
    group.add_argument(
        "--device",
        choices=("auto", "gpu", "emulator"),
        default="auto",
        help="auto: the GPU if there is one, else the emulator",
    )
    group.add_argument(
        "--count",
        choices=("auto", "always", "never"),
        default="auto",
        help="on a GPU: count bytes by running on the emulator too (auto: where that takes seconds). The emulator "
        "itself always counts",
    )
    _add_emulator(group)


def _add_effort(parser: argparse.ArgumentParser, seed: bool = True) -> None:
    default = Effort()
    group = parser.add_argument_group("timing")
    if seed:
        group.add_argument(
            "--seed", type=int, default=0, metavar="S", help="of inputs and order (default: %(default)s)"
        )
    group.add_argument(
        "--noise",
        type=float,
        default=100 * default.noise,
        metavar="PERCENT",
        help="run until half the 95 %% interval of each median is below this (default: %(default)s)",
    )
    group.add_argument(
        "--seconds",
        type=float,
        default=default.most_seconds,
        metavar="S",
        help="cold runs of one contender take at most so long (default: %(default)s)",
    )
    group.add_argument(
        "--sustained",
        type=float,
        default=default.sustained_seconds,
        metavar="S",
        help="then runs back to back for at least so long; 0 leaves them out (default: %(default)s)",
    )


def effort_of(arguments: argparse.Namespace) -> Effort:
    """How long to measure. Raises `UsageError` for what cannot be."""
    for option, least in (("noise", 0.0), ("seconds", 0.0), ("sustained", 0.0)):
        value = getattr(arguments, option)
        if not (least <= value < float("inf")):
            raise UsageError(f"--{option} is {value:g}; it has to be a number of at least {least:g}")
    return Effort(
        noise=arguments.noise / 100,
        most_seconds=arguments.seconds,
        sustained_seconds=arguments.sustained,
        seed=arguments.seed,
    )


def _add_sanitizer(
    parser: argparse.ArgumentParser, on_gpu: str = "On a GPU: by compute-sanitizer, where it is installed"
) -> None:
    group = parser.add_argument_group("sanitizer")
    group.add_argument(
        "--sanitize",
        action="store_true",
        help="look for races, reads of memory that nobody wrote, outputs not written and answers that depend on the "
        f"schedule; a finding fails the variant. {on_gpu}",
    )


def _add_sweep(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sweep")
    group.add_argument(
        "--sweep",
        metavar="FIELD=VALUES",
        help="bytes of many variants against one field of the problem: q_len=512..16384 (doubling) or "
        "head_dim=32,64,128; seq_len is q_len and kv_len. Or against a tile size that variants declare: Bc=8..64",
    )
    _add_selection(group)
    group.add_argument(
        "--count",
        choices=("auto", "always", "never"),
        default="auto",
        help="auto: points that take longer than seconds to emulate are as the variant claims; never: all are",
    )
    group.add_argument(
        "--plot", type=Path, metavar="FILE.png|.svg", help="draw bytes against the field, all variants, to this file"
    )
    group.add_argument(
        "--roofline",
        type=Path,
        metavar="FILE.png|.svg",
        help="draw each variant's arithmetic intensity under a GPU's roof",
    )


def _add_caches(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("GPU")
    group.add_argument(
        "--gpu",
        metavar="NAME",
        help=f"whose caches, and whose roof: {', '.join(GPUS)} (default: the one that is there, else h200)",
    )
    group.add_argument("--l2-bytes", type=int, metavar="N", help="another size of its L2")
    group.add_argument(
        "--cache-control",
        choices=("all", "none"),
        help="all: every launch begins with empty caches, as under Nsight Compute; none: L2 stays warm from launch to "
        "launch of a plan (default: none, but all beside a GPU's own counters)",
    )


def _add_order(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("order of addition")
    group.add_argument(
        "--order",
        action="store_true",
        help="instead of the source: in which order O, l and S are added up, and which variants add in the same one",
    )
    _add_selection(group)
    group.add_argument(
        "--device",
        choices=("auto", "gpu", "emulator"),
        default="auto",
        help="where --order runs the variants; auto: the GPU if there is one, else the emulator",
    )
    _add_emulator(group)


def _add_emulator(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--step-limit", type=int, metavar="N", help="emulator: instructions a warp may run before it stops"
    )
    group.add_argument(
        "--seed", type=int, default=0, metavar="S", help="same seed, same inputs and same order of warps (default: 0)"
    )
    group.add_argument("--threads", type=int, metavar="N", help="emulator: CPU threads (default: one per core)")


def _add_report(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("report")
    group.add_argument(
        "--format",
        choices=("table", "markdown", "csv", "json"),
        default="table",
        help="how the result is written (default: %(default)s)",
    )
    group.add_argument("--output", type=Path, metavar="FILE", help="write it there instead of to the terminal")


def problem_of(arguments: argparse.Namespace) -> Problem:
    """The problem that the options describe. Raises `UsageError` where they contradict each other."""
    if None not in (arguments.seq_len, arguments.q_len, arguments.kv_len):
        raise UsageError("--seq-len sets what --q-len and --kv-len do not; leave out one of the three")
    length = Problem().q_len if arguments.seq_len is None else arguments.seq_len
    return Problem(
        batch=arguments.batch,
        heads=arguments.heads,
        kv_heads=arguments.kv_heads,
        q_len=length if arguments.q_len is None else arguments.q_len,
        kv_len=length if arguments.kv_len is None else arguments.kv_len,
        head_dim=arguments.head_dim,
        dtype=arguments.dtype,
        mask=mask_of(arguments),
        scale=arguments.scale,
    )


def mask_of(arguments: argparse.Namespace) -> Mask:
    """What --mask and --causal say together. Raises `UsageError`."""
    mask = parse_mask(arguments.mask)
    return mask & parse_mask("causal") if arguments.causal else mask


def problem_with(arguments: argparse.Namespace, field: str, value: object) -> Problem:
    """The problem that the options describe, but for one field, a name of the command line's.

    Raises `UsageError` where an option sets that field too.
    """
    defaults = {"causal": False, "mask": "none"} | {
        n: getattr(Problem(), n) for n in ("batch", "heads", "head_dim", "dtype")
    }
    default = defaults.get(field)
    if getattr(arguments, field) != default:
        raise UsageError(f"--sweep {field} and --{field.replace('_', '-')} set the same field; leave out one")
    return problem_of(argparse.Namespace(**{**vars(arguments), field: value}))
