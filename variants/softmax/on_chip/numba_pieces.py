"""Pieces for Numba: adjacent elements of a row that one instruction loads or stores. In CUDA a piece is a struct."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

from variants._features.numba_stored import conversions


@functools.cache
def pieces_of(VECTOR: int, dtype: str) -> tuple[Callable, Callable]:
    """Device functions that load a piece into a local array, and store it.

    A piece has VECTOR elements, stored as `dtype`. `k` is its number in the local array, and `piece` in the other one.
    It is moved as words of 32 bits: LLVM makes two instructions of a vector of more than four items.
    """
    bits = 8 * conversions(dtype)[0]().itemsize
    item, word = ir.IntType(bits), ir.IntType(max(bits, min(32, VECTOR * bits)))
    items_per_word = word.width // bits
    words = ir.VectorType(word, VECTOR // items_per_word)
    piece_bytes = VECTOR * bits // 8

    def element(context: Any, builder: Any, kind: Any, array: Any, number: Any, integer: Any) -> Any:
        """A pointer to an element, as one to an integer or a vector of them."""
        first = context.make_array(kind)(context, builder, value=array).data
        return builder.bitcast(builder.gep(first, [number], inbounds=True), integer.as_pointer())

    def moving(signature: Any, move: Callable[[Any, list[Any], Any], None]) -> tuple[Any, Any]:
        """An intrinsic that does `move` with the addresses of the items in the local array and of the piece."""

        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            local, k, array, piece = arguments
            first, start = (builder.mul(number, ir.Constant(number.type, VECTOR)) for number in (k, piece))
            places = [
                element(context, builder, signature.args[0], local, builder.add(first, ir.Constant(k.type, e)), item)
                for e in range(VECTOR)
            ]
            move(builder, places, element(context, builder, signature.args[2], array, start, words))
            return context.get_dummy_value()

        return signature, emit

    def load(builder: Any, places: list[Any], source: Any) -> None:
        loaded = builder.load(source, align=piece_bytes)
        for e, place in enumerate(places):
            of_word = builder.extract_element(loaded, ir.Constant(ir.IntType(32), e // items_per_word))
            shifted = builder.lshr(of_word, ir.Constant(word, e % items_per_word * bits))
            builder.store(builder.trunc(shifted, item) if bits < word.width else shifted, place)

    def store(builder: Any, places: list[Any], to: Any) -> None:
        packed = ir.Constant(words, ir.Undefined)
        for number in range(words.count):
            of_word = ir.Constant(word, 0)
            for e in range(items_per_word):
                one = builder.load(places[number * items_per_word + e])
                one = builder.zext(one, word) if bits < word.width else one
                of_word = builder.or_(of_word, builder.shl(one, ir.Constant(word, e * bits)))
            packed = builder.insert_element(packed, of_word, ir.Constant(ir.IntType(32), number))
        builder.store(packed, to, align=piece_bytes)

    @intrinsic
    def load_piece(typing_context, local, k, array, piece):
        return moving(types.void(local, types.int64, array, types.int64), load)

    @intrinsic
    def store_piece(typing_context, local, k, array, piece):
        return moving(types.void(local, types.int64, array, types.int64), store)

    return load_piece, store_piece
