# SPDX-License-Identifier: Apache-2.0
"""The kernels on TensorFlow tensors, differentiable.

The functions have the names and arguments of normact's own, less `out`, `stream` and what the backward needs. They take
eager tensors and variables without a copy, record their gradients on a `tf.GradientTape`, and can be differentiated
once. (The functions of `normact` itself take eager tensors alone and record nothing.)

Inside `tf.function` every call is a `tf.py_function`, and so is its gradient: TensorFlow goes back to Python for it,
which costs some 0.1 ms forward and 0.4 ms backward. (An eager call costs some 0.02 ms, with a gradient 0.6 ms; small
layers of TensorFlow's own operations take 0.4 and 2.8 ms.) Three things follow from that. The function cannot be
compiled by XLA: with `jit_compile=True` TensorFlow says "unsupported operations: EagerPyFunc"; leave that out. A
SavedModel of it runs only in the process that made it; save weights. And a wrong argument that only the kernel finds is
found when the graph runs: TensorFlow makes a tf.errors.InvalidArgumentError of our ValueError, with its sentence in it.

Results are in memory of ours that is aligned to 64 bytes, as TensorFlow needs it; inputs may lie anywhere. On a GPU
results are in TensorFlow's memory; as it does not tell its stream, a call there returns when its work is done.

>>> import tensorflow as tf, normact.tensorflow
>>> x, weight = tf.random.normal((8, 512)), tf.Variable(tf.ones(512))
>>> with tf.GradientTape() as tape:
...     loss = tf.reduce_sum(normact.tensorflow.rms_norm(x, weight, activation="silu") ** 2)
>>> tape.gradient(loss, weight).shape
TensorShape([512])
"""

from normact.tensorflow.activations import (
    activation,
    elu,
    gelu,
    gelu_tanh,
    hardsigmoid,
    hardswish,
    identity,
    leaky_relu,
    mish,
    quick_gelu,
    relu,
    relu6,
    sigmoid,
    silu,
    softplus,
    squared_relu,
    tanh,
)
from normact.tensorflow.channel_norms import batch_norm, group_norm, instance_norm
from normact.tensorflow.gates import gated, geglu, glu, reglu, swiglu
from normact.tensorflow.norms import layer_norm, rms_norm

__all__ = [
    "activation",
    "batch_norm",
    "elu",
    "gated",
    "geglu",
    "gelu",
    "gelu_tanh",
    "glu",
    "group_norm",
    "hardsigmoid",
    "hardswish",
    "identity",
    "instance_norm",
    "layer_norm",
    "leaky_relu",
    "mish",
    "quick_gelu",
    "reglu",
    "relu",
    "relu6",
    "rms_norm",
    "sigmoid",
    "silu",
    "softplus",
    "squared_relu",
    "swiglu",
    "tanh",
]
