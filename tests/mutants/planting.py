"""How a mistake is planted: once in CUDA's text and once in Numba's, which are read side by side."""

from __future__ import annotations

from collections.abc import Iterator

from tests.mutants.patching import Mutant, Patch, folder_of

CUDA, NUMBA = "cupy", "numba"
SPLIT = "_mma/split_attention.cuh"
"""What blocks of `split-kv` and of `paged-split-kv` do with their splits."""
Replacement = tuple[str, str] | tuple[str, str, str]
"""What is there, exactly once, and what it becomes; at last the file below variants/, if it is another one."""


def in_kernel(
    algorithm: str,
    bug: str,
    cuda: Replacement,
    numba: Replacement,
    *more: tuple[Replacement | None, Replacement | None],
    sanitize: bool = False,
) -> Iterator[Mutant]:
    """Planted in the algorithm's own kernel; `more` are further replacements, CUDA's and Numba's, or None."""
    folder = folder_of(algorithm)
    pairs = ((cuda, numba), *more)
    yield from planted(algorithm, bug, f"{folder}/kernel.cu", f"{folder}/numba_kernel.py", pairs, sanitize)


def in_output(
    bug: str,
    cuda: Replacement,
    numba: Replacement,
    *more: tuple[Replacement | None, Replacement | None],
    sanitize: bool = False,
) -> Iterator[Mutant]:
    """Planted where `fa2-mma` divides and writes O, for which CUDA has a file of its own."""
    folder = folder_of("fa2-mma")
    yield from planted(
        "fa2-mma", bug, f"{folder}/output.cuh", f"{folder}/numba_kernel.py", ((cuda, numba), *more), sanitize
    )


def in_products(
    bug: str,
    cuda: Replacement,
    numba: Replacement,
    *more: tuple[Replacement | None, Replacement | None],
    sanitize: bool = False,
) -> Iterator[Mutant]:
    """Planted in the products of `fa2-mma` and the softmax between them, which have a file of their own."""
    folder = folder_of("fa2-mma")
    files = f"{folder}/products.cuh", f"{folder}/numba_products.py"
    yield from planted("fa2-mma", bug, *files, ((cuda, numba), *more), sanitize)


def in_split_kv(
    bug: str, *replacements: Replacement, file: str = "attention/split_kv/kernel.cu", sanitize: bool = False
) -> Mutant:
    """Planted in `split-kv`, which is CUDA alone."""
    patches = tuple(Patch(*(elsewhere or (file,)), old, new) for old, new, *elsewhere in replacements)
    return Mutant(bug, f"split-kv-{CUDA}", patches, sanitize)


def in_cuda_of_mma(
    bug: str, old: str, new: str, file: str = "attention/fa2_mma/kernel.cu", sanitize: bool = False
) -> Mutant:
    """Planted in what the Numba twin of `fa2-mma` has otherwise, or not at all."""
    return Mutant(bug, f"fa2-mma-{CUDA}", (Patch(file, old, new),), sanitize)


def in_tiles(
    algorithm: str,
    bug: str,
    cuda: Replacement,
    numba: Replacement,
    *more: tuple[Replacement | None, Replacement | None],
    sanitize: bool = False,
) -> Iterator[Mutant]:
    """Planted in what all algorithms do with tiles, and seen through one of them."""
    yield from planted(algorithm, bug, "_tiles/tiles.cuh", "_tiles/numba_tiles.py", ((cuda, numba), *more), sanitize)


def in_feature(
    algorithm: str,
    feature: str,
    bug: str,
    cuda: Replacement,
    numba: Replacement,
    *more: tuple[Replacement | None, Replacement | None],
    sanitize: bool = False,
) -> Iterator[Mutant]:
    """Planted in the types of a feature, such as `limits` or `tile_order`, and seen through one algorithm."""
    files = f"_features/{feature}.cuh", f"_features/numba_{feature}.py"
    yield from planted(algorithm, bug, *files, ((cuda, numba), *more), sanitize)


def in_softmax(
    bug: str, cuda: Replacement, numba: Replacement, *more: tuple[Replacement | None, Replacement | None]
) -> Iterator[Mutant]:
    """Planted in the softmax of `three-pass`, which has a file of its own."""
    folder = folder_of("three-pass")
    yield from planted("three-pass", bug, f"{folder}/softmax.cu", f"{folder}/numba_softmax.py", ((cuda, numba), *more))


def in_rows_seeing(algorithm: str, bug: str, cuda: Replacement, numba: Replacement) -> Iterator[Mutant]:
    """Planted where an algorithm finds the rows that see a key or a tile."""
    folder = folder_of(algorithm)
    yield from planted(algorithm, bug, f"{folder}/rows_seeing.cuh", f"{folder}/numba_rows_seeing.py", ((cuda, numba),))


def in_sweep(
    algorithm: str, bug: str, cuda: Replacement, numba: Replacement, *, sanitize: bool = False
) -> Iterator[Mutant]:
    """Planted in a sweep over the scores of all keys, and seen through one algorithm."""
    yield from planted(algorithm, bug, "_tiles/sweep.cuh", "_tiles/numba_sweep.py", ((cuda, numba),), sanitize)


def in_backward(
    algorithm: str,
    bug: str,
    cuda: Replacement,
    numba: Replacement,
    *more: tuple[Replacement | None, Replacement | None],
    sanitize: bool = False,
) -> Iterator[Mutant]:
    """Planted in what all algorithms of the backward pass do with tiles, and seen through one of them."""
    pairs = ((cuda, numba), *more)
    yield from planted(algorithm, bug, "_tiles/backward.cuh", "_tiles/numba_backward.py", pairs, sanitize)


def in_backward_weights(bug: str, cuda: Replacement, numba: Replacement) -> Iterator[Mutant]:
    """Planted in the launch of `bwd-three-pass` between the products, for which CUDA has a file of its own."""
    folder = folder_of("bwd-three-pass")
    yield from planted("bwd-three-pass", bug, f"{folder}/weights.cu", f"{folder}/numba_kernel.py", ((cuda, numba),))


def in_rows(
    algorithm: str,
    bug: str,
    cuda: Replacement,
    numba: Replacement,
    *more: tuple[Replacement | None, Replacement | None],
    sanitize: bool = False,
) -> Iterator[Mutant]:
    """Planted in what all algorithms of softmax do with rows, and seen through one of them."""
    yield from planted(algorithm, bug, "_rows/rows.cuh", "_rows/numba_rows.py", ((cuda, numba), *more), sanitize)


def in_warps(
    algorithm: str,
    bug: str,
    cuda: Replacement,
    numba: Replacement,
    *more: tuple[Replacement | None, Replacement | None],
    sanitize: bool = False,
) -> Iterator[Mutant]:
    """Planted in what all algorithms without tiles do with rows, and seen through one of them."""
    yield from planted(algorithm, bug, "_warps/warps.cuh", "_warps/numba_warps.py", ((cuda, numba), *more), sanitize)


def in_plan(algorithm: str, bug: str, old: str, new: str, sanitize: bool = False) -> Iterator[Mutant]:
    """Planted in the plan, which both backends share."""
    file = f"{folder_of(algorithm)}/__init__.py"
    for backend in (CUDA, NUMBA):
        yield Mutant(bug, f"{algorithm}-{backend}", (Patch(file, old, new),), sanitize)


def planted(
    algorithm: str,
    bug: str,
    cuda_file: str,
    numba_file: str,
    pairs: tuple[tuple[Replacement | None, Replacement | None], ...],
    sanitize: bool = False,
) -> Iterator[Mutant]:
    """Planted in a file of CUDA's and in one of Numba's; `pairs` are replacements there, see `in_kernel`."""
    for backend, file, replacements in (
        (CUDA, cuda_file, [cuda for cuda, _ in pairs]),
        (NUMBA, numba_file, [numba for _, numba in pairs]),
    ):
        given = [replacement for replacement in replacements if replacement is not None]
        patches = tuple(Patch(*(elsewhere or (file,)), old, new) for old, new, *elsewhere in given)
        yield Mutant(bug, f"{algorithm}-{backend}", patches, sanitize)
