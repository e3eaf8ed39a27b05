# SPDX-License-Identifier: Apache-2.0
"""The demo on images: a ResNet that reads digits and a UNet that cleans them, with PyTorch's norms and with normact's.

Both forms of a net start from the same numbers and see the same batches, step by step side by side. They learn in
float64: a ReLU whose input is 0 within rounding lets through or does not, and in float32 that happens often enough to
part two curves that are both right. The time is that of float32.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

import normact.torch as nt
from normact.demo import vision
from normact.demo.terminal import chart, heading, styled, verdict, write
from normact.demo.turns import NAMES, Losses, duration, largest_difference, pair, place, plot_losses, take_turns

BATCH = 64
HELD_OUT = 397  # images that nothing is learned from
NOISE = 0.4  # of pixels from 0 to 1
MAX_LOSS_DIFFERENCE = 1e-9  # relative
ROUNDS = 10  # of the timing


class Digits(NamedTuple):
    """Images [images, 1, 8, 8] from 0 to 1, and which digit each is."""

    images: Tensor
    labels: Tensor

    def batch(self, step: int, count: int = BATCH) -> tuple[Tensor, Tensor]:
        """The images of a step: those held out are the last."""
        generator = torch.Generator().manual_seed(step)
        chosen = torch.randint(len(self.images) - HELD_OUT, (count,), generator=generator)
        return self.images[chosen.to(self.images.device)], self.labels[chosen.to(self.images.device)]

    def noise(self, seed: int, count: int) -> Tensor:
        """The same on every device."""
        generator = torch.Generator().manual_seed(1_000_000 + seed)
        return NOISE * torch.randn(count, 1, 8, 8, generator=generator).to(self.images)

    def float(self) -> Digits:
        """In float32."""
        return self._replace(images=self.images.float())


def load(device: str) -> Digits:
    """1,797 handwritten digits from the files of scikit-learn, in an order that depends on nothing."""
    from sklearn.datasets import load_digits

    found: Any = load_digits()
    order = torch.randperm(len(found.images), generator=torch.Generator().manual_seed(0))
    images = torch.as_tensor(found.images, dtype=torch.float64)[order, None] / 16
    return Digits(images.to(device), torch.as_tensor(found.target)[order].to(device))


Loss = Callable[[nn.Module, Digits, int], Tensor]  # of a net, on the batch of a step


def train(
    nets: tuple[nn.Module, nn.Module], loss_of: Loss, digits: Digits, steps: int, device: str, rate: float
) -> tuple[Losses, bool]:
    """Steps of plain SGD side by side; the losses, and whether they agree."""
    losses: Losses = ([], [])
    # An adaptive optimizer divides by the size of the gradients, and so would hide that they are wrong.
    optimizers = [torch.optim.SGD(net.parameters(), lr=rate) for net in nets]

    def step(side: int) -> None:
        loss = loss_of(nets[side], digits, len(losses[side]))
        optimizers[side].zero_grad()
        loss.backward()
        optimizers[side].step()
        losses[side].append(loss.item())

    singles = [copy.deepcopy(net).float() for net in nets]
    take_turns((lambda: step(0), lambda: step(1)), steps - 1, device, "training")
    for line in chart(*losses, NAMES):
        write("  " + line)
    difference = largest_difference(losses)
    passed = difference <= MAX_LOSS_DIFFERENCE  # a NaN fails
    verdict(passed, f"largest relative difference of the losses {difference:.1e} (allowed: {MAX_LOSS_DIFFERENCE})")
    images = digits.float()
    calls = [lambda net=net: loss_of(net, images, 0).backward() for net in singles]
    times = take_turns(calls, ROUNDS, device, "timing")
    seconds = ", ".join(f"{name} {duration(each.median)}" for name, each in zip(NAMES, times, strict=True))
    write(f"  Forward and backward in fp32: {seconds}.")
    return losses, passed


def show_resnet(digits: Digits, device: str, steps: int) -> tuple[Losses, bool]:
    """Learns to read digits; in the end both nets read those held out, with the running statistics."""
    heading(f"1  A ResNet reads digits: BatchNorm-Add-ReLU in one pass, {steps} steps")
    nets = pair(vision.ResNet, *vision.RESNET_NORMS, device, torch.float64)

    def loss_of(net: nn.Module, digits: Digits, step: int) -> Tensor:
        images, labels = digits.batch(step)
        return functional.cross_entropy(net(images), labels)

    losses, passed = train(nets, loss_of, digits, steps, device, 0.05)
    with torch.no_grad():
        answers = [net.eval()(digits.images[-HELD_OUT:]).argmax(1) for net in nets]
    right = [(answer == digits.labels[-HELD_OUT:]).float().mean().item() for answer in answers]
    write(f"  Accuracy on {HELD_OUT} digits held out: {NAMES[0]} {right[0]:.1%}, {NAMES[1]} {right[1]:.1%}.")
    agree = torch.equal(*answers)
    verdict(agree, "the nets give the same answers")
    return losses, passed and agree


def show_unet(digits: Digits, device: str, steps: int) -> tuple[Losses, bool]:
    """Learns to tell the noise in an image; in the end cleans images held out."""
    heading(f"2  A UNet cleans digits: GroupNorm-SiLU in one pass, {steps} steps")
    nets = pair(vision.UNet, vision.GroupNormSilu, nt.GroupNormSiLU, device, torch.float64)

    def loss_of(net: nn.Module, digits: Digits, step: int) -> Tensor:
        images, noise = digits.batch(step)[0], digits.noise(step, BATCH)
        return functional.mse_loss(net(images + noise), noise)

    losses, passed = train(nets, loss_of, digits, steps, device, 0.05)
    clean, noise = digits.images[-HELD_OUT:], digits.noise(-1, HELD_OUT)
    with torch.no_grad():
        left = [(noise - net(clean + noise)).square().mean().sqrt().item() for net in nets]
    before = noise.square().mean().sqrt().item()
    after = ", ".join(f"{name} {value:.3f}" for name, value in zip(NAMES, left, strict=True))
    write(f"  Noise in {HELD_OUT} digits held out: {before:.3f} before, {after} after.")
    return losses, passed


def run(device: str, steps: int, plot: str) -> int:
    """Both nets; 0 if PyTorch and normact agree."""
    start = time.perf_counter()
    write(styled("normact: convolutional nets on fused kernels", "bold"))
    write(f"  {place(device)}")
    digits = load(device)
    write(f"  {len(digits.images)} handwritten digits of 8 x 8 pixels (scikit-learn), batches of {BATCH}")
    read, reads = show_resnet(digits, device, steps)
    cleaned, cleans = show_unet(digits, device, steps)
    write()
    plot_losses([("ResNet, digits", "cross entropy", read), ("UNet, noise", "mean squared error", cleaned)], plot)
    passed = reads and cleans
    heading(f"{'Done' if passed else 'The nets do not agree'} in {time.perf_counter() - start:.0f} s.")
    return 0 if passed else 1
