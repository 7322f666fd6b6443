"""The compiled library as Python sees it: structures, packed matrices, and running a program."""

import ctypes
import functools
import mmap
import threading
from ctypes import POINTER, c_float, c_int, c_int32, c_int64, c_void_p
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime.base import logs
from runtime.engine.kernels import build

_log = logs.get(__name__)

EMBED, NORM, LINEAR, ROPE, ATTEND, GATE, QUANTIZE, GATHER, ARGMAX, BEST = range(10)
F32, I8 = range(2)
ADD, QUANTIZED, GATED, ONLY_BEST = 1, 2, 4, 8
SILU, GELU_TANH, GELU = range(3)

# int8 rows are padded to the depth of a tile; outputs to a pair of panels; rows to a pair of tiles.
DEPTH: Final = 64
I8_COLUMNS: Final = 32
I8_ROWS: Final = 32
_ARENA_BYTES: Final = 64 << 20
_ALIGNMENT: Final = 64
# Panels are prefetched beyond their end.
_GUARD: Final = 8192


class Matrix(ctypes.Structure):
    """``matrix`` of kernels.h."""

    _fields_ = [
        ("format", c_int32), ("n", c_int32), ("k", c_int32), ("padded", c_int32),
        ("data", c_void_p), ("scale", c_void_p), ("sums", c_void_p), ("bias", c_void_p),
    ]  # fmt: skip


class Op(ctypes.Structure):
    """``op`` of kernels.h."""

    _fields_ = [
        ("kind", c_int32), ("in_", c_int32), ("out", c_int32), ("flags", c_int32),
        ("n", c_int32), ("layer", c_int32), ("window", c_int32), ("act", c_int32),
        ("eps", c_float), ("scale", c_float), ("share", c_float), ("unused", c_float),
        ("weight", POINTER(Matrix)), ("norm", c_void_p), ("key_norm", c_void_p),
        ("after", POINTER(Matrix)),
    ]  # fmt: skip


class AttentionShape(ctypes.Structure):
    """``attention_shape`` of kernels.h."""

    _fields_ = [
        ("heads", c_int32), ("kv_heads", c_int32), ("head_dim", c_int32), ("rotary_dim", c_int32),
        ("block_tokens", c_int32), ("slots", c_int64), ("cache", c_void_p), ("cos", c_void_p), ("sin", c_void_p),
    ]  # fmt: skip


class Step(ctypes.Structure):
    """``step`` of kernels.h."""

    _fields_ = [
        ("rows", c_int32), ("num_spans", c_int32), ("num_single", c_int32), ("num_picks", c_int32),
        ("quantized_stride", c_int32), ("unused", c_int32),
        ("tokens", c_void_p), ("positions", c_void_p), ("row_span", c_void_p), ("tables", c_void_p),
        ("picks", c_void_p), ("spans", c_void_p), ("buffers", c_void_p), ("strides", c_void_p),
        ("quantized", c_void_p), ("quantized_scale", c_void_p), ("argmax", c_void_p), ("finite", c_void_p),
        ("nanoseconds", c_void_p),
        ("shape", AttentionShape),
    ]  # fmt: skip


class Library:
    """The functions, with their types. Calls give up the interpreter's lock while they run."""

    def __init__(self, path: str) -> None:
        found: Any = ctypes.CDLL(path)
        self.run = found.millpond_run
        self.run.argtypes = [c_void_p, c_int, c_void_p, c_int]
        self.run.restype = c_int
        self.pack_f32 = found.millpond_pack_f32
        self.pack_f32.argtypes = [c_void_p, c_void_p, c_int, c_int, c_int]
        self.pack_f32.restype = None
        self.pack_i8 = found.millpond_pack_i8
        self.pack_i8.argtypes = [c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_int]
        self.pack_i8.restype = None
        self.panel = int(found.millpond_panel())
        self.lanes = self.panel // 2
        self.group = int(found.millpond_group())
        self.fast_int8 = bool(found.amx_usable())


_loading = threading.Lock()


def prepare() -> None:
    """Compile and load in a thread of its own, while the caller has other things to do."""
    threading.Thread(target=load, name="kernels", daemon=True).start()


def load() -> Library | None:
    """The library, or ``None`` where it cannot be had: callers then compute with torch."""
    with _loading:  # whoever comes second waits for the one that compiles
        return _load()


@functools.cache
def _load() -> Library | None:
    path = build.library_path()
    if path is None:
        return None
    try:
        return Library(str(path))
    except OSError as exc:
        _log.warning("kernels_unavailable", reason=str(exc))
        return None


class Arena:
    """Zeroed memory for weights in large pieces, on huge pages where the system has them: fewer page-table walks."""

    def __init__(self) -> None:
        self._piece: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._at = 0

    def take(self, num_bytes: int) -> NDArray[np.uint8]:
        """``num_bytes`` zeroed bytes, aligned to 64."""
        self._at = -(-self._at // _ALIGNMENT) * _ALIGNMENT
        if self._at + num_bytes > self._piece.size:
            size = max(num_bytes, _ARENA_BYTES)
            # private: shared memory gets no huge pages
            length = -(-(size + _GUARD) // mmap.PAGESIZE) * mmap.PAGESIZE
            piece = mmap.mmap(-1, length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if hasattr(mmap, "MADV_HUGEPAGE"):
                piece.madvise(mmap.MADV_HUGEPAGE)
            self._piece, self._at = np.frombuffer(piece, np.uint8)[:size], 0
        found = self._piece[self._at : self._at + num_bytes]
        self._at += num_bytes
        return found


def aligned(num_bytes: int) -> NDArray[np.uint8]:
    """``num_bytes`` bytes of any content, aligned to 64."""
    raw = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    skip = -raw.ctypes.data % _ALIGNMENT
    return raw[skip : skip + num_bytes]


class PackedMatrix:
    """A matrix [n, k] in the layout of the kernels. Keeps alive what ``struct`` points to.

    ``interleaved``: the first half of the outputs are gates and the second half their ups; each panel gets a vector of
    gates and the vector of their ups. Float32, and halves of whole vectors, only.
    """

    def __init__(
        self,
        library: Library,
        arena: Arena,
        plain: NDArray[np.float32],
        *,
        format_: int,
        bias: Any = None,
        interleaved: bool = False,
    ) -> None:
        n, k = plain.shape
        self.interleaved = interleaved
        assert plain.flags.c_contiguous
        self._kept: list[NDArray[Any]] = []
        self.struct = Matrix(format=format_, n=n, k=k, padded=-(-k // DEPTH) * DEPTH)
        if format_ == F32:
            columns = -(-n // library.panel) * library.panel
            data = self._keep(arena.take(columns * k * 4))
            for first, source, count in _pieces(n, library.lanes if interleaved else 0):
                library.pack_f32(data.ctypes.data, plain.ctypes.data + source * k * 4, first, count, k)
        else:
            columns = -(-n // I8_COLUMNS) * I8_COLUMNS
            data = self._keep(arena.take(columns * self.struct.padded))
            scale = self._keep(np.zeros(columns, np.float32))
            sums = self._keep(np.zeros((-(-k // library.group), columns), np.int32))
            library.pack_i8(data.ctypes.data, scale.ctypes.data, sums.ctypes.data, plain.ctypes.data, n, k)
            self.struct.scale, self.struct.sums = scale.ctypes.data, sums.ctypes.data
        self.struct.data = data.ctypes.data
        if bias is not None:
            padded = self._keep(np.zeros(columns, np.float32))
            for first, source, count in _pieces(n, library.lanes if interleaved else 0):
                padded[first : first + count] = bias[source : source + count]
            self.struct.bias = padded.ctypes.data
        self.num_bytes = sum(array.nbytes for array in self._kept)

    def _keep(self, array: NDArray[Any]) -> NDArray[Any]:
        self._kept.append(array)
        return array


def _pieces(outputs: int, lanes: int) -> list[tuple[int, int, int]]:
    """Where outputs go, a vector of ``lanes`` gates and one of ups in turn: (to, from, how many). 0: as they are."""
    if not lanes:
        return [(0, 0, outputs)]
    half = outputs // 2
    starts = range(0, half, lanes)
    return [piece for at in starts for piece in ((2 * at, at, lanes), (2 * at + lanes, half + at, lanes))]


class Program:
    """Operations in a row, and the buffers between them. ``widths`` are floats per row of each buffer.

    ``quantized_width`` is the widest row that is quantized, 0 for none. Buffers grow to the most rows seen; a caller
    may put arrays of its own in their place for one run.
    """

    def __init__(self, library: Library, ops: list[Op], widths: list[int], *, quantized_width: int) -> None:
        self._library = library
        self._ops = (Op * len(ops))(*ops)
        self._kept = ops  # they hold the matrices
        self._widths = widths
        self._strides = (c_int32 * len(widths))(*widths)
        self._pointers = (c_void_p * len(widths))()
        self._buffers: dict[int, NDArray[np.uint8]] = {}
        self._rows = 0
        self._int8_stride = -(-quantized_width // DEPTH) * DEPTH
        self._int8 = np.zeros(0, np.uint8)
        self._int8_scale = np.zeros(0, np.float32)
        self._given: frozenset[int] = frozenset()

    def reserve(self, rows: int, given: frozenset[int] = frozenset()) -> None:
        """Make room for ``rows``; buffers in ``given`` are the caller's.

        Raises:
            MemoryError: there is none.
        """
        if rows <= self._rows and given == self._given:
            return
        self._buffers = {}
        for number, width in enumerate(self._widths):
            if number not in given:
                self._buffers[number] = aligned(rows * width * 4)
                self._pointers[number] = self._buffers[number].ctypes.data
        if self._int8_stride:
            padded = -(-rows // I8_ROWS) * I8_ROWS + I8_ROWS
            self._int8 = aligned(padded * self._int8_stride)
            self._int8_scale = np.zeros(padded * -(-self._int8_stride // self._library.group), np.float32)
        self._rows, self._given = rows, given

    def buffer(self, number: int, rows: int) -> NDArray[np.float32]:
        """What the last run left in buffer ``number``: [rows, width], until the next one."""
        width = self._widths[number]
        return self._buffers[number].view(np.float32)[: rows * width].reshape(rows, width)

    @property
    def kinds(self) -> list[int]:
        """What each operation is."""
        return [op.kind for op in self._kept]

    def run(self, step: Step, threads: int, given: dict[int, int], *, count: int | None = None) -> None:
        """Run on ``step``; ``given`` are addresses of the caller's buffers. Only the first ``count`` operations."""
        for number, address in given.items():
            self._pointers[number] = address
        step.buffers = ctypes.addressof(self._pointers)
        step.strides = ctypes.addressof(self._strides)
        step.quantized_stride = self._int8_stride
        step.quantized = self._int8.ctypes.data
        step.quantized_scale = self._int8_scale.ctypes.data
        count = len(self._ops) if count is None else count
        if self._library.run(self._ops, count, ctypes.addressof(step), threads) != 0:
            raise RuntimeError("The program has more operations than the kernels take.")
