from collections.abc import Iterable


LAYER: int = 0

RMS: int = 1

ROW_VARIANTS: dict = ...

def set_row_variant(variant: int, /) -> int: ...

def norm_forward(kind: int, x: object | None, weight: object | None, bias: object | None, residual: object | None, y: object | None, residual_out: object | None, mean: object | None, rstd: object | None, axis: object | None, eps: object | None, weight_offset: object | None, activation: object | None, stream: object | None, allocator: object | None) -> None: ...

def norm_backward(kind: int, dy: object | None, x: object | None, weight: object | None, bias: object | None, mean: object | None, rstd: object | None, dresidual: object | None, dx: object | None, dweight: object | None, dbias: object | None, axis: object | None, weight_offset: object | None, activation: object | None, stream: object | None, allocator: object | None) -> None: ...

ACTIVATIONS: dict = ...

GATE_LAYOUTS: dict = {'separate' : 0, 'split' : 1, 'interleaved' : 2}

def activation_forward(function: str, kind: int, x: object | None, bias: object | None, y: object | None, mask: object | None, axis: object | None, alpha: object | None, beta: object | None, threshold: object | None, stream: object | None, allocator: object | None) -> None: ...

def activation_backward(function: str, kind: int, dy: object | None, x: object | None, bias: object | None, y: object | None, mask: object | None, dx: object | None, dbias: object | None, axis: object | None, alpha: object | None, beta: object | None, threshold: object | None, stream: object | None, allocator: object | None) -> None: ...

def gated_forward(function: str, kind: int, layout: int, gate: object | None, up: object | None, gate_bias: object | None, up_bias: object | None, y: object | None, axis: object | None, alpha: object | None, beta: object | None, threshold: object | None, limit: object | None, up_offset: object | None, stream: object | None, allocator: object | None) -> None: ...

def gated_backward(function: str, kind: int, layout: int, dy: object | None, gate: object | None, up: object | None, gate_bias: object | None, up_bias: object | None, dgate: object | None, dup: object | None, dgate_bias: object | None, dup_bias: object | None, axis: object | None, alpha: object | None, beta: object | None, threshold: object | None, limit: object | None, up_offset: object | None, stream: object | None, allocator: object | None) -> None: ...

def empty(shape: Iterable[int], dtype: str, /) -> object: ...

def framework_of(x: object, function: str, name: str) -> str:
    """
    The framework of an array: numpy, torch, jax, tensorflow, cupy or other. TypeError if x is no array.
    """

def describe(x: object, /) -> tuple[int, int, int, int, int, tuple[int, ...], tuple[int, ...] | None]:
    """
    What the library is told of an array: address, device type and id, dtype code and bits, shape, strides.
    """

def build_info(name: str, /) -> str | None: ...

def set_num_threads(count: int, /) -> None: ...

def get_num_threads() -> int: ...
