from collections.abc import Iterable


LAYER: int = 0

RMS: int = 1

ROW_VARIANTS: dict = ...

def set_row_variant(variant: int, /) -> int: ...

def norm_forward(kind: int, x: object | None, weight: object | None, bias: object | None, residual: object | None, y: object | None, residual_out: object | None, mean: object | None, rstd: object | None, axis: object | None, eps: object | None, weight_offset: object | None, stream: object | None, allocator: object | None) -> None: ...

def norm_backward(kind: int, dy: object | None, x: object | None, weight: object | None, mean: object | None, rstd: object | None, dresidual: object | None, dx: object | None, dweight: object | None, dbias: object | None, axis: object | None, weight_offset: object | None, stream: object | None, allocator: object | None) -> None: ...

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
