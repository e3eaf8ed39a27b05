# SPDX-License-Identifier: Apache-2.0
"""The README's code blocks run as they stand, and what they compute is right."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import normact

ROOT = pathlib.Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")

# What a block's y must be, in NumPy and in float64, from the names that the block leaves behind.
CHECK = """
import numpy
f64 = lambda array: numpy.asarray(array.get() if hasattr(array, "get") else array).astype(numpy.float64)
expected = f64(x) + (f64(residual) if "residual" in globals() else 0.0)
centred = expected - expected.mean(-1, keepdims=True) if "{op}" == "layer_norm" else expected
expected = centred / numpy.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
assert type(y) is type(x) and y.shape == x.shape and y.dtype == x.dtype
numpy.testing.assert_allclose(f64(y), expected, rtol=1e-4, atol=1e-5)
"""


def blocks(language: str) -> list[str]:
    """The contents of the README's code blocks in this language."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def imports(block: str) -> str:
    """The array library that a block uses: what it imports first."""
    return block.split(maxsplit=2)[1]


def run(*command: object, **options) -> str:
    """The command's output; its failure is the test's."""
    result = subprocess.run(
        [str(part) for part in command], capture_output=True, encoding="utf-8", check=False, timeout=300, **options
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def norms() -> list[str]:
    return [
        block
        for block in blocks("python")
        if re.search("(layer|rms)_norm", block) and not re.search(r"normact\.(torch|tensorflow|jax|keras)", block)
    ]


def test_readme_has_a_block_for_each_library():
    assert [imports(block) for block in norms()] == ["numpy", "torch", "jax", "tensorflow", "cupy"]


@pytest.mark.parametrize(
    "library", ["numpy", "torch", "jax", "tensorflow", pytest.param("cupy", marks=pytest.mark.cuda)]
)
def test_readme_python(library):
    if library == "cupy":
        pytest.importorskip("cupy")
    (block,) = (block for block in norms() if imports(block) == library)
    op = re.search(r"normact\.(\w+)\(", block)[1]
    run(sys.executable, "-c", block + CHECK.format(op=op))


def test_readme_torch_gradients():
    (block,) = (block for block in norms() if imports(block) == "torch")
    check = """
s, w = (x + residual).double().requires_grad_(), weight.double().requires_grad_()
torch.nn.functional.layer_norm(s, (512,), w).backward(dy.double())
torch.testing.assert_close(dx.double(), s.grad, rtol=1e-4, atol=1e-5)
torch.testing.assert_close(dweight.double(), w.grad, rtol=1e-4, atol=1e-5)
assert dbias is None
"""
    run(sys.executable, "-c", block + check)


def test_readme_jax():
    pytest.importorskip("flax")
    (block,) = (block for block in blocks("python") if "import normact.jax" in block)
    check = """
def want(x, weight):
    h = x / jax.numpy.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * weight
    return (jax.nn.silu(h) ** 2).sum()
for found, expected in zip((dx, dweight), jax.grad(want, argnums=(0, 1))(x, weight)):
    assert abs(found - expected).max() < 1e-4
assert y.shape == x.shape and y.min() == 0
"""
    run(sys.executable, "-c", block + check)


def test_readme_batch_and_group_norm():
    (block,) = (block for block in blocks("python") if "batch_norm" in block)
    check = """
from torch.nn import functional
leaves = [t.double().requires_grad_() for t in (x, weight, bias, addend)]
means, variances = torch.zeros(32).double(), torch.ones(32).double()
want = functional.relu(functional.batch_norm(leaves[0], means, variances, *leaves[1:3], True) + leaves[3])
want.backward(dy.double())
close = lambda found, expected: torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
close(y, want.detach())
close(running_mean, means)
close(running_var, variances)
for found, leaf in zip((dx, dweight, dbias, daddend), leaves):
    close(found, leaf.grad)
assert y.is_contiguous(memory_format=torch.channels_last) and mask.numel() == y.numel() // 8
close(z, functional.silu(functional.group_norm(x.double(), 8)))
close(torch.cat(parts), functional.batch_norm(x.double(), None, None, None, None, True))
"""
    run(sys.executable, "-c", block + check)


def test_readme_differentiable():
    (block,) = (block for block in blocks("python") if "normact.torch" in block)
    check = """
s, w = x.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
torch.nn.functional.silu(torch.nn.functional.rms_norm(s, (512,), w)).square().mean().backward()
torch.testing.assert_close(x.grad.double(), s.grad, rtol=1e-4, atol=1e-7)
torch.testing.assert_close(weight.grad.double(), w.grad, rtol=1e-4, atol=1e-7)
assert torch.equal(total, model(x) + x)
torch.testing.assert_close(y, torch.nn.functional.layer_norm(total, (512,)))
"""
    assert run(sys.executable, "-c", block + check).split() == "replaced 2 modules: 1: GELU 2: LayerNorm".split()


def test_readme_tensorflow_and_keras():
    (block,) = (block for block in blocks("python") if "normact.tensorflow" in block)
    check = """
import numpy as np
s, w = tf.cast(x, "float64"), tf.Variable(tf.ones(512, "float64"))
with tf.GradientTape() as tape:
    h = s / tf.sqrt(tf.reduce_mean(s * s, -1, keepdims=True) + 1e-6) * w
    want = tf.reduce_mean((h * tf.sigmoid(h)) ** 2)
np.testing.assert_allclose(loss, want, rtol=1e-5)
np.testing.assert_allclose(dweight, tape.gradient(want, w), rtol=1e-3, atol=1e-7)
assert model.predict(x, verbose=0).shape == (8, 4) and not any(layer.supports_jit for layer in model.layers[2:3])
"""
    run(sys.executable, "-c", block + check)


def test_readme_activations():
    (block,) = (block for block in blocks("python") if "normact.gelu(" in block)
    check = """
from torch.nn import functional
s = (x + bias).double().requires_grad_()
want = functional.gelu(s)
want.backward(dy.double())
torch.testing.assert_close(y.double(), want.detach(), rtol=1e-5, atol=1e-6)
torch.testing.assert_close(dx.double(), s.grad, rtol=1e-5, atol=1e-6)
torch.testing.assert_close(dbias.double(), s.grad.sum(0), rtol=1e-4, atol=1e-5)
assert torch.equal(positive, x.relu()) and mask.dtype == torch.uint8 and mask.numel() == 8 * 512 // 8
torch.testing.assert_close(z, functional.silu(x[:, :256]) * x[:, 256:], rtol=1e-5, atol=1e-6)
"""
    run(sys.executable, "-c", block + check)


def test_readme_c_and_cmake(tmp_path):
    (program,), (lists,) = blocks("c"), blocks("cmake")
    (tmp_path / "main.c").write_text(program, encoding="utf-8")
    (tmp_path / "CMakeLists.txt").write_text(lists, encoding="utf-8")
    cmake = shutil.which("cmake", path=str(pathlib.Path(sys.executable).parent)) or shutil.which("cmake")
    assert cmake is not None, "cmake is needed: pip install cmake"
    run(cmake, "-S", tmp_path, "-B", tmp_path / "build", f"-Dnormact_DIR={normact.cmake_dir()}")
    run(cmake, "--build", tmp_path / "build")
    output = run(tmp_path / "build" / "program")
    assert output.strip() == re.search(r"/\* ([\d. ]+) \*/", program)[1]
    assert output.split() == ["1.4606", "1.4142"]  # 4 / sqrt(7.5) and 1 / sqrt(0.5)


DOCUMENTS = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "cpp/cuda/ROWS.md",
    "cpp/cuda/POINTWISE.md",
    "cpp/cuda/CHANNELS.md",
    "cpp/cpu/CPU.md",
    "python/FRAMEWORKS.md",
)


def anchors(document: pathlib.Path) -> set[str]:
    """What links to a page's headings end in: lower case, without punctuation, hyphens for spaces."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_documents_name_existing_files(document):
    page = ROOT / document
    text = page.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", text):
        linked = page.parent / target if target else page
        assert linked.exists(), f"{document} links to {target}"
        assert not anchor or anchor in anchors(linked), f"{document} links to {target}#{anchor}"
    named = re.findall(r"`((?:\w+/)+\w+\.(?:h|cuh|cpp|cu|py|md))`", text)
    for target in named:
        places = [ROOT / base / target for base in ("", "cpp", "python")]
        assert any(place.exists() for place in places), f"{document} names {target}"
