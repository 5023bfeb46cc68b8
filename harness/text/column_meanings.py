"""What the columns of all tables mean, for `--explain`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

_COUNTED = "counted in the 32-byte sectors that each warp's requests touch, before any cache"

MEANINGS = {
    "% of copy": "the bytes per second, as a percentage of those of a copy measured on this GPU",
    "% of matrix": "the operations per second, as a percentage of those of a matrix product measured on this GPU",
    "DRAM read MiB": "MiB that a model of the caches reads from DRAM",
    "DRAM written MiB": "MiB that a model of the caches writes to DRAM",
    "L2 read MiB": "MiB that a model of the caches reads from L2",
    "L2 written MiB": "MiB that a model of the caches writes to L2",
    "TFLOP/s": "10^12 floating-point operations of the problem per second",
    "algorithm": "the algorithm that the variant implements; variants of one algorithm share the name",
    "allocated MiB": "MiB of scratch buffers and outputs that the plan allocates in addition to the inputs",
    "allowed bytes": "the most bytes that the device may hold",
    "backend": "the language of the variant's kernels",
    "batch": "how far bits of a sequence differ if other sequences join its batch or leave it",
    "buffer": "the array or memory that is accessed",
    "cause": "a property of a variant that makes it slower or faster; docs/why.md describes every cause",
    "claim": "whether the variant's own formula equals the counted bytes; - without a formula",
    "claimed bytes": "bytes by the variant's own formula",
    "claimed MiB": "MiB by the variant's own formula",
    "clock MHz": "the clock of the multiprocessors during the sustained runs",
    "compile s": "seconds to compile the kernels",
    "compulsory": "MiB if each input is read once and each output is written once",
    "cost us": "predicted microseconds by which the cause makes the first variant slower; negative if faster",
    "device": "the device, counted from 0",
    "device MiB": "the most MiB that one device holds",
    "error / budget": "the largest ratio of an error to its budget, the largest error that a correct kernel can make; "
    "above 1, the result is wrong",
    "error / expected": "the largest error, relative to that expected from random rounding; above 1 is suspicious",
    "examples": "the number of problems, with their inputs, that were tried",
    "fewest possible": "the fewest sectors or wavefronts per request with which the same bytes could be moved",
    "findings": "the number of races, uninitialised reads and other defects that the sanitizer found",
    "held MiB": "MiB of all buffers on the device: its parts of inputs and outputs, and the plan's own",
    "held bytes": "the same in bytes",
    "idea": "what characterises the variant or the regime",
    "kernel": "whether the compiled kernels changed",
    "kernel digest": "a hash of the compiled kernels",
    "kind": "whether the requests load, store or do both",
    "launch": "the kernels that the plan launches, in order",
    "launches": "the number of kernels that the plan launches",
    "level": "where bytes are counted; docs/traffic.md describes every level",
    "line": "the line of the source file",
    "link": "the device that sends, and the device that receives",
    "links MiB": "MiB that copies move between devices",
    "local MiB": "MiB of the threads' local memory that are read and written",
    "measured ms": "milliseconds that were measured on the GPU",
    "name": "the variant",
    "own tile / fewest bytes": "bytes with the variant's own tile size, relative to the fewest with any that was tried",
    "own tile / least time": "time with the variant's own tile size, relative to the least with any that was tried",
    "padding": "how far bits of a row differ if rows of queries are put before it",
    "pairs covered": "how many pairs of classes of values, from two different axes, occurred together in an example, "
    "and how many exist",
    "per second": "examples per second",
    "predicted / measured": "the predicted time divided by the measured time",
    "predicted ms": "milliseconds that the model predicts",
    "rank": "by total bytes on the emulator, by time on a GPU; equal variants share a rank",
    "read MiB": f"MiB (2^20 bytes) read, {_COUNTED}",
    "refused": "examples that the variant does not support, which were not checked",
    "regime": "how the values of the inputs are drawn",
    "requested MiB": "MiB that the active lanes request",
    "requests": "the number of requests; the accesses of one warp in one instruction are a request",
    "runs": "the number of runs",
    "sectors": "the number of 32-byte sectors that the requests touch",
    "sectors / request": "the mean number of 32-byte sectors that a request touches",
    "sectors GB/s": "10^9 bytes per second, counted in sectors before any cache",
    "sent MiB": "MiB that copies move over the link",
    "share": "the percentage of all bytes",
    "share %": "the cost as a percentage of the whole difference",
    "since, UTC": "when the result was first stored",
    "source": "the text of the source line",
    "splits": "how far bits differ if the keys are split in another way: with other tile sizes",
    "sustained ms": "milliseconds per run if runs follow each other without a pause",
    "then": "the earlier result that is compared",
    "tile": "the tile sizes that were used",
    "time ms": "the median time of all launches together, in milliseconds, with cold caches",
    "total / compulsory": "total bytes / bytes if each input is read once and each output is written once",
    "total MiB": f"MiB (2^20 bytes) read and written, {_COUNTED}",
    "unit": "the unit of the variants' figures; M is million, instr is instructions",
    "until": "when the result was last stored",
    "variant": "one implementation of the operation",
    "verdict": "pass, fail (a wrong result or claim), error (it did not run), undecided (a trivial wrong result would "
    "pass, too, or the error is suspicious)",
    "wavefronts": "the number of passes over the banks of shared memory",
    "wavefronts / request": "the mean number of passes over the banks of shared memory that a request takes",
    "what changed": "the figures that differ from the earlier result",
    "what it is": "what is counted at the level",
    "where": "the source line with the largest cost, or the limiting resource",
    "written MiB": f"MiB (2^20 bytes) written, {_COUNTED}",
    "± %": "half the width of the 95 % confidence interval of the median time, as a percentage of the median",
}
"""By header, in which line breaks are blanks. Headers that are names of variants or of fields have no entry."""


def explained(headers: Iterable[str]) -> Iterator[str]:
    """A line for each of the headers that has a meaning, once."""
    for header in dict.fromkeys(" ".join(each.split()) for each in headers):
        if header in MEANINGS:
            yield f"{header}: {MEANINGS[header]}."
