"""The kernels of the arithmetic child, as PTX that the driver compiles for any GPU.

PTX ISA 6.0 for sm_60: every driver since CUDA 9 (384.81) accepts it, for Pascal and all later GPUs. The doubles hold
small integers, so every sum is exact: a result is right or wrong, without a tolerance. Expected values are computed
from the index alone, so a check trusts nothing read from memory except the result.

Every check writes to ``wrong``: two 64-bit words, the number of wrong values and the position of the first.
"""

TILE = 64  # edge of the square of C that one block of dgemm computes
EDGE = 16  # a block has EDGE x EDGE threads; each computes TILE / EDGE rows and columns
BLOCK = 256  # threads of every other kernel
_PER_THREAD = TILE // EDGE
_PITCH = TILE + 1  # of A in shared memory: columns are written, and with 64 doubles they would all hit one bank

NAMES = (
    "daxpy_start",
    "daxpy",
    "daxpy_check",
    "dgemm_start",
    "dgemm",
    "dgemm_check",
    "memory_write",
    "memory_check",
)

_HEADER = ".version 6.0\n.target sm_60\n.address_size 64\n"

# %i = the thread's number in the whole grid; the thread returns if it is not below the first parameter, n
_NUMBERED = """
    .reg .pred %p<4>;
    .reg .b32 %r<16>;
    .reg .b64 %n, %i, %a<12>;
    .reg .f64 %d<12>;
    mov.u32 %r0, %ctaid.x;
    mov.u32 %r1, %ntid.x;
    mov.u32 %r2, %tid.x;
    mul.wide.u32 %i, %r0, %r1;
    cvt.u64.u32 %a0, %r2;
    add.u64 %i, %i, %a0;
    ld.param.u64 %n, [n];
    setp.ge.u64 %p0, %i, %n;
    @%p0 ret;
"""

# counts a wrong value at position %i
_COUNT = """
    ld.param.u64 %a10, [wrong];
    mov.u64 %a11, 1;
    red.global.add.u64 [%a10], %a11;
    red.global.min.u64 [%a10+8], %i;
"""


def _kernel(name: str, parameters: str, body: str) -> str:
    listed = ",\n".join(
        f"    .param .{kind} {parameter}" for kind, parameter in (p.split() for p in parameters.split(","))
    )
    return f"\n.visible .entry {name}(\n{listed}\n)\n{{{body}    ret;\n}}\n"


def _remainder(target: str, modulus: int) -> str:
    """target (f64) = %i mod modulus"""
    return f"    rem.u64 %a1, %i, {modulus};\n    cvt.rn.f64.u64 {target}, %a1;\n"


def _at(target: str, array: str) -> str:
    """target = address of array[%i], 8 bytes each"""
    return f"    ld.param.u64 {target}, [{array}];\n    shl.b64 %a2, %i, 3;\n    add.u64 {target}, {target}, %a2;\n"


# x[i] = i mod 1021, y[i] = i mod 509
_DAXPY_START = _kernel(
    "daxpy_start",
    "u64 n,u64 x,u64 y",
    _NUMBERED
    + _remainder("%d0", 1021)
    + _at("%a3", "x")
    + "    st.global.f64 [%a3], %d0;\n"
    + _remainder("%d1", 509)
    + _at("%a4", "y")
    + "    st.global.f64 [%a4], %d1;\n",
)

# y = y + a x; n counts pairs, since only 16 bytes per thread saturate the memory bus
_DAXPY = _kernel(
    "daxpy",
    "u64 n,u64 x,u64 y,f64 a",
    _NUMBERED
    + """
    ld.param.u64 %a3, [x];
    ld.param.u64 %a4, [y];
    ld.param.f64 %d0, [a];
    shl.b64 %a2, %i, 4;
    add.u64 %a3, %a3, %a2;
    add.u64 %a4, %a4, %a2;
    ld.global.v2.f64 {%d1, %d2}, [%a3];
    ld.global.v2.f64 {%d3, %d4}, [%a4];
    fma.rn.f64 %d3, %d0, %d1, %d3;
    fma.rn.f64 %d4, %d0, %d2, %d4;
    st.global.v2.f64 [%a4], {%d3, %d4};
""",
)

# y[i] must be i mod 509 + total (i mod 1021), where total is the sum of all a
_DAXPY_CHECK = _kernel(
    "daxpy_check",
    "u64 n,u64 y,f64 total,u64 wrong",
    _NUMBERED
    + _remainder("%d0", 1021)
    + _remainder("%d1", 509)
    + _at("%a4", "y")
    + """
    ld.param.f64 %d2, [total];
    fma.rn.f64 %d3, %d2, %d0, %d1;
    ld.global.f64 %d4, [%a4];
    setp.eq.f64 %p1, %d3, %d4;
    @%p1 ret;
"""
    + _COUNT,
)

# row and column of element %i of a matrix of edge e: %a5 = i / e, %a6 = i mod e
_PLACE = "    ld.param.u64 %a7, [e];\n    div.u64 %a5, %i, %a7;\n    rem.u64 %a6, %i, %a7;\n"


def _small(target: str, of: str, modulus: int) -> str:
    return f"    rem.u64 %a1, {of}, {modulus};\n    cvt.rn.f64.u64 {target}, %a1;\n"


# A[i][k] = i mod 7 + k mod 5,  B[k][j] = k mod 3 + j mod 11: every product matters, and their sum has a closed form
_DGEMM_START = _kernel(
    "dgemm_start",
    "u64 n,u64 e,u64 a,u64 b",
    _NUMBERED
    + _PLACE
    + _small("%d0", "%a5", 7)
    + _small("%d1", "%a6", 5)
    + "    add.f64 %d0, %d0, %d1;\n"
    + _at("%a3", "a")
    + "    st.global.f64 [%a3], %d0;\n"
    + _small("%d2", "%a5", 3)
    + _small("%d3", "%a6", 11)
    + "    add.f64 %d2, %d2, %d3;\n"
    + _at("%a4", "b")
    + "    st.global.f64 [%a4], %d2;\n",
)

# C[i][j] = (i mod 7) (W + e (j mod 11)) + VW + (j mod 11) V, with V, W, VW the sums over k of k mod 5, k mod 3 and
# their product
_DGEMM_CHECK = _kernel(
    "dgemm_check",
    "u64 n,u64 e,u64 c,f64 v,f64 w,f64 vw,u64 wrong",
    _NUMBERED
    + _PLACE
    + _small("%d0", "%a5", 7)
    + _small("%d1", "%a6", 11)
    + _at("%a3", "c")
    + """
    ld.param.f64 %d2, [v];
    ld.param.f64 %d3, [w];
    ld.param.f64 %d4, [vw];
    cvt.rn.f64.u64 %d5, %a7;
    fma.rn.f64 %d6, %d5, %d1, %d3;
    fma.rn.f64 %d7, %d1, %d2, %d4;
    fma.rn.f64 %d8, %d0, %d6, %d7;
    ld.global.f64 %d9, [%a3];
    setp.eq.f64 %p1, %d8, %d9;
    @%p1 ret;
"""
    + _COUNT,
)


def _dgemm() -> str:
    """C = A B, all of edge e, a multiple of TILE, by rows.

    A block computes a TILE x TILE square of C. For each EDGE columns of A and rows of B, its threads load them into
    shared memory (A transposed), then each thread multiplies its rows ty, ty + EDGE, … with its columns tx, …
    """
    each = range(_PER_THREAD)
    sums = [f"%c{row * _PER_THREAD + column}" for row in each for column in each]
    load = "".join(
        f"""
    ld.global.f64 %d0, [%apos+{0}];
    st.shared.f64 [%aput+{8 * EDGE * step}], %d0;
    add.u64 %apos, %apos, %arow;
    ld.global.f64 %d1, [%bpos+{8 * EDGE * step}];
    st.shared.f64 [%bput+{8 * EDGE * step}], %d1;"""
        for step in each
    )
    multiply = ""
    for k in range(EDGE):
        multiply += "".join(
            f"""
    ld.shared.f64 %x{step}, [%aget+{8 * (k * _PITCH + EDGE * step)}];
    ld.shared.f64 %y{step}, [%bget+{8 * (k * TILE + EDGE * step)}];"""
            for step in each
        )
        multiply += "".join(
            f"\n    fma.rn.f64 %c{row * _PER_THREAD + column}, %x{row}, %y{column}, %c{row * _PER_THREAD + column};"
            for row in each
            for column in each
        )
    store = "".join(
        "".join(f"\n    st.global.f64 [%cpos+{8 * EDGE * column}], %c{row * _PER_THREAD + column};" for column in each)
        + "\n    add.u64 %cpos, %cpos, %arow;"
        for row in each
    )
    body = f"""
    .reg .pred %p;
    .reg .b32 %tx, %ty, %bx, %by, %aput, %bput, %aget, %bget, %r<4>;
    .reg .b64 %e, %apos, %bpos, %cpos, %arow, %brow, %left, %back, %t<8>;
    .reg .f64 %d<2>, %x<{_PER_THREAD}>, %y<{_PER_THREAD}>, %c<{_PER_THREAD**2}>;
    .shared .align 8 .b8 a_tile[{8 * EDGE * _PITCH}];
    .shared .align 8 .b8 b_tile[{8 * EDGE * TILE}];
    mov.u32 %tx, %tid.x;
    mov.u32 %ty, %tid.y;
    mov.u32 %bx, %ctaid.x;
    mov.u32 %by, %ctaid.y;
    ld.param.u64 %e, [e];

    // where this thread loads: A[by TILE + ty][tx], B[ty][bx TILE + tx]; and its first element of C
    mad.lo.u32 %r0, %by, {TILE}, %ty;
    mad.lo.u32 %r1, %bx, {TILE}, %tx;
    cvt.u64.u32 %t0, %r0;
    cvt.u64.u32 %t1, %r1;
    cvt.u64.u32 %t2, %tx;
    cvt.u64.u32 %t3, %ty;
    mul.lo.u64 %t4, %t0, %e;
    add.u64 %t5, %t4, %t2;
    shl.b64 %t5, %t5, 3;
    ld.param.u64 %apos, [a];
    add.u64 %apos, %apos, %t5;
    mul.lo.u64 %t6, %t3, %e;
    add.u64 %t6, %t6, %t1;
    shl.b64 %t6, %t6, 3;
    ld.param.u64 %bpos, [b];
    add.u64 %bpos, %bpos, %t6;
    add.u64 %t4, %t4, %t1;
    shl.b64 %t4, %t4, 3;
    ld.param.u64 %cpos, [c];
    add.u64 %cpos, %cpos, %t4;

    // EDGE rows on, in bytes: for A from one element to the next, for B from one step to the next
    mul.lo.u64 %arow, %e, {8 * EDGE};
    mov.u64 %brow, %arow;
    // after its elements A goes back to the first row, and EDGE columns on
    mul.lo.u64 %back, %arow, {_PER_THREAD};
    sub.u64 %back, %back, {8 * EDGE};

    // where it puts them: a_tile[tx][ty], b_tile[ty][tx]; and where it reads: a_tile[0][ty], b_tile[0][tx]
    mov.u32 %aget, a_tile;
    mov.u32 %bget, b_tile;
    mad.lo.u32 %r2, %tx, {_PITCH}, %ty;
    mad.lo.u32 %aput, %r2, 8, %aget;
    mad.lo.u32 %r3, %ty, {TILE}, %tx;
    mad.lo.u32 %bput, %r3, 8, %bget;
    mad.lo.u32 %aget, %ty, 8, %aget;
    mad.lo.u32 %bget, %tx, 8, %bget;
{"".join(f"    mov.f64 {total}, 0d0000000000000000;{chr(10)}" for total in sums)}
    mov.u64 %left, %e;
next:{load}
    sub.u64 %apos, %apos, %back;
    add.u64 %bpos, %bpos, %brow;
    bar.sync 0;
{multiply}
    bar.sync 0;
    sub.u64 %left, %left, {EDGE};
    setp.ne.u64 %p, %left, 0;
    @%p bra next;
{store}
"""
    return _kernel("dgemm", "u64 e,u64 a,u64 b,u64 c", body)


# word i = i times the golden ratio of 2^64 + seed, inverted where the mask is set: neighbours differ in many bits
_WORD = """
    ld.param.u64 %a3, [seed];
    ld.param.u64 %a4, [mask];
    mul.lo.u64 %a5, %i, 0x9E3779B97F4A7C15;
    add.u64 %a5, %a5, %a3;
    xor.b64 %a5, %a5, %a4;
"""
_MEMORY_WRITE = _kernel(
    "memory_write",
    "u64 n,u64 memory,u64 seed,u64 mask",
    _NUMBERED + _WORD + _at("%a6", "memory") + "    st.global.u64 [%a6], %a5;\n",
)
_MEMORY_CHECK = _kernel(
    "memory_check",
    "u64 n,u64 memory,u64 seed,u64 mask,u64 wrong",
    _NUMBERED
    + _WORD
    + _at("%a6", "memory")
    + """
    ld.global.u64 %a7, [%a6];
    setp.eq.u64 %p1, %a7, %a5;
    @%p1 ret;
"""
    + _COUNT,
)


def ptx() -> str:
    """All of :data:`NAMES` as one module."""
    return "".join(
        (
            _HEADER,
            _DAXPY_START,
            _DAXPY,
            _DAXPY_CHECK,
            _DGEMM_START,
            _dgemm(),
            _DGEMM_CHECK,
            _MEMORY_WRITE,
            _MEMORY_CHECK,
        )
    )
