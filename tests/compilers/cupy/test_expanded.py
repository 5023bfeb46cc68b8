"""What `show --expanded` leaves of a CUDA source."""

from __future__ import annotations

from harness.compilers.cupy.expanded import expand

SOURCE = """#line 1 "features.cuh"
// A feature that is on: f(x) { with a brace in a comment }.
struct On {
    static constexpr bool IS_ON = true;
    float factor;
    __device__ float operator()(float x) const { return factor * x; }
};

// A feature that is off.
struct Off {
    static constexpr bool IS_ON = false;
    __device__ float operator()(float x) const { return x; }
};

constexpr int HALF = N / 2;  // of the elements
constexpr int UNUSED = 3;

// Without terms.
template <class... All> struct Terms { };
// With terms.
template <class Term, class... Others> struct Terms<Term, Others...> { Term term; Terms<Others...> others; };

__device__ float slow(float x) { return x / 3.0f; }
__device__ float fast(float x) { return x * 0.5f; }
using Feature = Off;
using Scores = Terms<>;
#line 1 "kernel.cu"
// The kernel.
extern "C" __global__ __launch_bounds__(WIDTH) void k(float *x, Feature feature, Scores scores)
{
    if constexpr (Feature::IS_ON) {
        x[0] = feature(slow(x[0]));
    } else {
        x[0] = fast(x[0]);  // quickly
    }
    if constexpr (HALF > 2) x[1] = 1.0f;
#pragma unroll STEPS
    for (int i = 0; i < HALF; ++i) x[i] += 1.0f;
}
extern "C" __global__ void other(float *x) { x[0] = slow(x[0]); }
"""
OPTIONS = ("-DN=4", "-DWIDTH=32", "-DSTEPS=2", "-DNOBODY=7", "--std=c++17")


def test_what_is_off_is_left_out_with_all_that_it_alone_uses():
    text = expand(SOURCE, "k", OPTIONS)
    assert "struct Off" in text and "struct On" not in text
    assert "if constexpr" not in text and "slow" not in text and "other" not in text and "UNUSED" not in text
    assert "    x[0] = fast(x[0]);  // quickly\n" in text and "x[1]" not in text
    assert "template <class... All> struct Terms" in text and "Terms<Term, Others...>" not in text


def test_comments_and_places_stay():
    text = expand(SOURCE, "k", OPTIONS)
    assert "// A feature that is off." in text and "A feature that is on" not in text
    assert (
        text.index("// --- features.cuh") < text.index("struct Off") < text.index("// --- kernel.cu\n\n// The kernel.")
    )
    assert "#line" not in text


def test_the_options_that_are_used_come_first():
    text = expand(SOURCE, "k", OPTIONS)
    assert text.startswith("constexpr int N = 4;\nconstexpr int WIDTH = 32;\nconstexpr int STEPS = 2;\n")
    assert "NOBODY" not in text


def test_what_is_on_stays():
    text = expand(SOURCE.replace("= Off;", "= On;").replace("Terms<>;", "Terms<On>;"), "k", ("-DN=6", "-DWIDTH=32"))
    assert "struct Off" not in text and "        x[0]" not in text and "    x[0] = feature(slow(x[0]));" in text
    assert "    x[1] = 1.0f;" in text and "Terms<Term, Others...>" in text and "fast" not in text


def test_an_unknown_condition_stays():
    source = "template <int M> __device__ void f(float *x) { if constexpr (M > 1) x[0] = 0.0f; }\n"
    source += 'extern "C" __global__ void k(float *x) { f<2>(x); }\n'
    assert expand(source, "k", ()) == source


def test_a_source_whose_kernel_is_not_found_is_shown_whole():
    source = "template <int M> __global__ void k(float *x) { }\n"
    assert expand(source, "k<3>", ()) == source
