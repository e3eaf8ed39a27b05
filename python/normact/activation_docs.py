# SPDX-License-Identifier: Apache-2.0
"""What the docstrings of the activations say: one line of facts per kind, one text for all."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_F = TypeVar("_F", bound="Callable[..., Any]")


class Facts(NamedTuple):
    """Of a kind: formulas as in Python, and its values and slopes at -1, 1/2 and 2, rounded to four digits."""

    title: str
    value: str
    slope: str
    source: str
    values: list[float]
    slopes: list[float]


_GELU = 'Hendrycks, Gimpel, "Gaussian Error Linear Units (GELUs)", 2016, arXiv:1606.08415.'
_MOBILE = 'Howard et al., "Searching for MobileNetV3", 2019, arXiv:1905.02244.'

FACTS = {
    "identity": Facts(
        "The identity, which adds the bias and nothing else.",
        "x",
        "1",
        'The linear unit of Rosenblatt, "The Perceptron", 1958.',
        [-1.0, 0.5, 2.0],
        [1.0, 1.0, 1.0],
    ),
    "relu": Facts(
        "Rectified linear unit.",
        "max(x, 0)",
        "1 if x > 0 else 0",
        'Nair, Hinton, "Rectified Linear Units Improve Restricted Boltzmann Machines", 2010.',
        [0.0, 0.5, 2.0],
        [0.0, 1.0, 1.0],
    ),
    "relu6": Facts(
        "Rectified linear unit that ends at 6.",
        "min(max(x, 0), 6)",
        "1 if 0 < x < 6 else 0",
        'Krizhevsky, "Convolutional Deep Belief Networks on CIFAR-10", 2010.',
        [0.0, 0.5, 2.0],
        [0.0, 1.0, 1.0],
    ),
    "squared_relu": Facts(
        "Square of the rectified linear unit.",
        "max(x, 0)**2",
        "2 * max(x, 0)",
        'So et al., "Primer: Searching for Efficient Transformers for Language Modeling", 2021, arXiv:2109.08668.',
        [0.0, 0.25, 4.0],
        [0.0, 1.0, 4.0],
    ),
    "leaky_relu": Facts(
        "Rectified linear unit with a small slope on the left.",
        "x if x > 0 else alpha * x",
        "1 if x > 0 else alpha",
        'Maas, Hannun, Ng, "Rectifier Nonlinearities Improve Neural Network Acoustic Models", 2013.',
        [-0.01, 0.5, 2.0],
        [0.01, 1.0, 1.0],
    ),
    "elu": Facts(
        "Exponential linear unit.",
        "x if x > 0 else alpha * (exp(x) - 1)",
        "1 if x > 0 else alpha * exp(x)",
        'Clevert, Unterthiner, Hochreiter, "Fast and Accurate Deep Network Learning by Exponential Linear Units '
        '(ELUs)", 2015, arXiv:1511.07289.',
        [-0.6321, 0.5, 2.0],
        [0.3679, 1.0, 1.0],
    ),
    "gelu": Facts(
        "Gaussian error linear unit.",
        "x * Phi(x), Phi the distribution function of the standard normal distribution, phi its density",
        "Phi(x) + x * phi(x)",
        _GELU,
        [-0.1587, 0.3457, 1.9545],
        [-0.0833, 0.8675, 1.0852],
    ),
    "gelu_tanh": Facts(
        "Gaussian error linear unit in its approximation by tanh.",
        "x * (1 + tanh(u)) / 2 with u = sqrt(2 / pi) * (x + 0.044715 * x**3)",
        "(1 + tanh(u)) / 2 + x * (1 - tanh(u)**2) / 2 * sqrt(2 / pi) * (1 + 0.134145 * x**2)",
        _GELU,
        [-0.1588, 0.3457, 1.9546],
        [-0.083, 0.8674, 1.0861],
    ),
    "quick_gelu": Facts(
        "Gaussian error linear unit in its approximation by the logistic function.",
        "x * sigmoid(1.702 * x)",
        "s + 1.702 * x * s * (1 - s) with s = sigmoid(1.702 * x)",
        _GELU,
        [-0.1542, 0.3504, 1.9357],
        [-0.0678, 0.8792, 1.0738],
    ),
    "silu": Facts(
        "Sigmoid linear unit, also called swish.",
        "x * sigmoid(x)",
        "s + x * s * (1 - s) with s = sigmoid(x)",
        'Elfwing, Uchibe, Doya, "Sigmoid-Weighted Linear Units for Neural Network Function Approximation in '
        'Reinforcement Learning", 2017, arXiv:1702.03118.',
        [-0.2689, 0.3112, 1.7616],
        [0.0723, 0.7400, 1.0908],
    ),
    "sigmoid": Facts(
        "Logistic function.",
        "1 / (1 + exp(-x))",
        "s * (1 - s) with s = sigmoid(x)",
        'Rumelhart, Hinton, Williams, "Learning representations by back-propagating errors", 1986.',
        [0.2689, 0.6225, 0.8808],
        [0.1966, 0.235, 0.105],
    ),
    "tanh": Facts(
        "Hyperbolic tangent.",
        "tanh(x)",
        "1 - tanh(x)**2",
        'LeCun, Bottou, Orr, Mueller, "Efficient BackProp", 1998.',
        [-0.7616, 0.4621, 0.964],
        [0.42, 0.7864, 0.0707],
    ),
    "softplus": Facts(
        "Smooth rectified linear unit.",
        "x if beta * x > threshold else log(1 + exp(beta * x)) / beta",
        "1 if beta * x > threshold else sigmoid(beta * x)",
        'Dugas, Bengio, Belisle, Nadeau, Garcia, "Incorporating Second-Order Functional Knowledge for Better Option '
        'Pricing", 2000.',
        [0.3133, 0.9741, 2.1269],
        [0.2689, 0.6225, 0.8808],
    ),
    "mish": Facts(
        "Mish, the identity times tanh of softplus.",
        "x * tanh(log(1 + exp(x)))",
        "t + x * (1 - t**2) * sigmoid(x) with t = tanh(log(1 + exp(x)))",
        'Misra, "Mish: A Self Regularized Non-Monotonic Activation Function", 2019, arXiv:1908.08681.',
        [-0.3034, 0.3752, 1.944],
        [0.0592, 0.8864, 1.0693],
    ),
    "hardswish": Facts(
        "Swish with a logistic function of straight pieces.",
        "x * min(max(x + 3, 0), 6) / 6",
        "0 if x <= -3 else x / 3 + 1 / 2 if x < 3 else 1",
        _MOBILE,
        [-0.3333, 0.2917, 1.6667],
        [0.1667, 0.6667, 1.1667],
    ),
    "hardsigmoid": Facts(
        "Logistic function of straight pieces.",
        "min(max(x + 3, 0), 6) / 6",
        "1 / 6 if -3 < x < 3 else 0",
        _MOBILE,
        [0.3333, 0.5833, 0.8333],
        [0.1667, 0.1667, 0.1667],
    ),
}

_FORWARD = """\
{title}

With ``x + bias`` in the place of ``x``, where there is a bias::

    y = {value}

Parameters
----------
x : array
    float64, float32, float16 or bfloat16, of any shape and any strides. An array of NumPy, PyTorch, JAX,
    TensorFlow or CuPy, or any other with ``__dlpack__`` (then give `out`). It is not copied.
{parameters}bias : array, optional
    Of shape ``(x.shape[axis],)``; the dtype of x, or float32 beside 16 bits. Added in float32 (float64 to float64).
axis : int
    The axis of x that the bias runs along; 1 for images in NCHW.
out : array{or_tuple}, optional
    Where to write y{outputs}. It may be x itself.
stream : int or stream object, optional
    As in `layer_norm`.

Returns
-------
y : array
    Like x: same framework, device, shape, dtype and, where x is dense, memory layout.
{results}
Raises
------
ValueError, TypeError, NotImplementedError
    As in `layer_norm`.

References
----------
{source}

Examples
--------
>>> import numpy as np
>>> {name}(np.array([-1.0, 0.5, 2.0])).round(4).tolist()
{values}
"""

_BACKWARD = """\
Gradients of `{name}`.

With ``x + bias`` in the place of ``x``, where there was a bias::

    dx    = dy * ({slope})
    dbias = the sum of dx over all axes but `axis`

Parameters
----------
dy : array
    The gradient of y; shape and dtype of x.
x : array{x_optional}
    The forward's x.
{parameters}bias : array, optional
    The forward's. It asks for `dbias` and gives its shape and dtype.
axis : int
    The forward's.
out : array or tuple, optional
    Where to write: dx, or ``(dx, dbias)`` with None for what the function shall make itself. dx may be dy or x{or_y}.
stream : int or stream object, optional
    As in `layer_norm`.

Returns
-------
ActivationGrads
    ``(dx, dbias)``; dbias is None without a bias. Its sums are made in a fixed order: the same inputs give the same
    bits.

Raises
------
ValueError, TypeError, NotImplementedError
    As in `layer_norm`.

Examples
--------
>>> import numpy as np
>>> {name}_backward(np.ones(3), np.array([-1.0, 0.5, 2.0])).dx.round(4).tolist()
{slopes}
"""

_OF_NUMBERS = {
    "leaky_relu": "alpha : float\n    Finite. The backward from y needs one that is not negative.\n",
    "elu": "alpha : float\n    Finite. The backward from y needs one that is not negative.\n",
    "gelu": 'approximate : {"none", "tanh"}\n    "tanh" is `gelu_tanh`; the name of the option is PyTorch\'s.\n',
    "softplus": "beta : float\n    Finite and positive.\nthreshold : float\n    Beyond it y is x. Not NaN.\n",
}
_MASK = """\
return_mask : bool
    Return which elements are positive, one bit each, as the backward reads them.
"""
_MASK_RESULT = """\
ActivationOutput
    ``(y, mask)`` instead, if `return_mask` is given. mask is uint8 of shape ``(ceil(x.size / 8),)``: bit ``i % 8`` of
    byte ``i // 8`` belongs to element i in row-major order of the indices.
"""
_FROM_OUTPUT = """\
y : array, optional
    The forward's result instead of x: exactly one of them is given.
"""
_FROM_MASK = """\
y, mask : array, optional
    The forward's result, or its mask, instead of x: exactly one of the three is given.
"""


_DIFFERENTIABLE = """\
{title}

With ``{x} + bias`` in the place of ``x``, where there is a bias::

    y = {value}

{more}Parameters, results and errors are those of `activation`.
"""


def differentiable_docs(kind: str, more: str = "", x: str = "x") -> Callable[[_F], _F]:
    """A decorator that writes the docstring of a kind in the package of one framework, whose argument is called `x`."""
    facts = FACTS[kind]
    return _documented(_DIFFERENTIABLE.format(title=facts.title, value=facts.value, x=x, more=more and more + "\n\n"))


def forward_docs(kind: str, mask: bool = False) -> Callable[[_F], _F]:
    """A decorator that writes the docstring of a kind's forward."""
    facts = FACTS[kind]
    text = _FORWARD.format(
        name=kind,
        title=facts.title,
        value=facts.value,
        parameters=_OF_NUMBERS.get(kind, "") + (_MASK if mask else ""),
        or_tuple=" or tuple" if mask else "",
        outputs=": y, or ``(y, mask)`` with None for what the function shall make itself" if mask else "",
        results=_MASK_RESULT if mask else "",
        source=_wrapped(facts.source),
        values=facts.values,
    )
    return _documented(text)


def backward_docs(kind: str, output: bool = False, mask: bool = False) -> Callable[[_F], _F]:
    """The same for its backward: whether that may start from the output, or from the mask."""
    facts = FACTS[kind]
    text = _BACKWARD.format(
        name=kind,
        slope=facts.slope,
        x_optional=", optional" if output else "",
        parameters=(_FROM_MASK if mask else _FROM_OUTPUT if output else "") + _OF_NUMBERS.get(kind, ""),
        or_y=" or y" if output else "",
        slopes=facts.slopes,
    )
    return _documented(text)


def _documented(text: str) -> Callable[[_F], _F]:
    def decorate(function: _F) -> _F:
        function.__doc__ = text
        return function

    return decorate


def _wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, 110))
