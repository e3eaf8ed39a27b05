# SPDX-License-Identifier: Apache-2.0
"""The four parts of the demo: agreement, search, time and training."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

import torch

from normact.demo import MAX_LOSS_DIFFERENCE, MIN_COSINE, model, texts
from normact.demo.terminal import chart, heading, styled, verdict, write
from normact.demo.turns import NAMES, duration, largest_difference, place, plot_losses, take_turns

if TYPE_CHECKING:
    from collections.abc import Callable

LEARNING_RATE = 0.0015


def show_agreement(encoders: model.Encoders, device: str) -> bool:
    """Embeds all sentences with both encoders and compares the vectors."""
    heading(f"1  The embeddings of {len(texts.SENTENCES)} sentences agree")
    tokens = model.tokenize(encoders.tokenizer, texts.SENTENCES, device)
    with torch.no_grad():
        original, fused = (model.embed(bert, tokens).double() for bert in encoders[:2])
    cosine = torch.nn.functional.cosine_similarity(original, fused).min().item()
    difference = (original - fused).abs().max().item()
    passed = cosine >= MIN_COSINE
    verdict(passed, f"smallest cosine {cosine:.9f} (required: {MIN_COSINE}), largest difference {difference:.1e}")
    return passed


def show_search(encoders: model.Encoders, device: str) -> None:
    """Ranks the sentences for each query with normact's encoder, and says where the original ranks otherwise."""
    heading("2  Semantic search with normact's encoder")
    tokens = model.tokenize(encoders.tokenizer, texts.SENTENCES + texts.QUERIES, device)
    count = len(texts.SENTENCES)
    rankings = []
    with torch.no_grad():
        for bert in encoders[:2]:
            vectors = model.embed(bert, tokens)
            rankings.append((vectors[count:] @ vectors[:count].T).topk(3))
    for query, scores, order in zip(texts.QUERIES, *rankings[1], strict=True):
        write(f"  {styled(query, 'cyan')}")
        for score, index in zip(scores.tolist(), order.tolist(), strict=True):
            write(f"    {score:5.2f}  {texts.SENTENCES[index]}")
    same = torch.equal(rankings[0].indices, rankings[1].indices)
    write(f"  The original encoder gives {'the same' if same else 'another'} order.")


def show_time(encoders: model.Encoders, device: str) -> None:
    """Times the fused pieces alone and the whole encoder, both libraries in turn."""
    heading("3  Time (medians, both in turn)")
    tokens = model.tokenize(encoders.tokenizer, texts.SENTENCES, device)
    norm, fused_norm = encoders.original.embeddings.LayerNorm, encoders.fused.embeddings.LayerNorm
    batch = tokens["input_ids"].shape
    h, residual, dy = (torch.randn(*batch, norm.weight.numel(), device=device) for _ in range(3))
    bias = encoders.original.encoder.layer[0].intermediate.dense.bias.detach().clone().requires_grad_(True)
    wide, wide_dy = (torch.randn(*batch, bias.numel(), device=device) for _ in range(2))

    def step(function: Callable[[], torch.Tensor], gradient: torch.Tensor) -> Callable[[], object]:
        return lambda: function().backward(gradient)

    h.requires_grad_(True)
    wide.requires_grad_(True)
    add_norm = (lambda: norm(h + residual)), (lambda: fused_norm(h, residual))
    bias_gelu = (
        lambda: torch.nn.functional.gelu(wide + bias),
        lambda: model.FusedBiasGelu.apply(wide, bias),
    )
    encoder = tuple(functools.partial(model.embed, bert, tokens) for bert in encoders[:2])
    rows = (
        (f"add + norm, forward, {_shape(h)}", add_norm, 200, False),
        ("add + norm, forward and backward", tuple(step(f, dy) for f in add_norm), 200, True),
        (f"bias + GELU, forward, {_shape(wide)}", bias_gelu, 100, False),
        ("bias + GELU, forward and backward", tuple(step(f, wide_dy) for f in bias_gelu), 100, True),
        (f"encoder, {len(texts.SENTENCES)} sentences", encoder, 15, False),
    )
    write(styled(f"  {'':46}{NAMES[0]:>10}{NAMES[1]:>10}", "dim"))
    for label, functions, rounds, grad in rows:
        with torch.set_grad_enabled(grad):
            original, fused = take_turns(functions, rounds, device, "timing")
        ratio = f"{original.median / fused.median:4.2f}x"
        if original.disturbed or fused.disturbed:
            ratio = "the machine is busy"
        write(f"  {label:46}{duration(original.median):>10}{duration(fused.median):>10}   {ratio}")
    encoders.original.zero_grad()
    encoders.fused.zero_grad()


def _shape(tensor: torch.Tensor) -> str:
    return "x".join(str(size) for size in tensor.shape)


def contrastive_loss(bert: Any, tokens: Any, pairs: int) -> tuple[torch.Tensor, int]:
    """InfoNCE: of all meanings, a proverb must find its own; and how many of the proverbs do."""
    vectors = model.embed(bert, tokens)
    scores = 20.0 * vectors[:pairs] @ vectors[pairs:].T
    target = torch.arange(pairs, device=scores.device)
    return torch.nn.functional.cross_entropy(scores, target), int((scores.argmax(1) == target).sum())


def show_training(encoders: model.Encoders, device: str, steps: int, plot: str) -> bool:
    """Fine-tunes both encoders on the proverbs, step by step side by side, and compares the losses."""
    pairs = len(texts.PROVERBS)
    heading(f"4  Fine-tuning on {pairs} proverbs and their meanings, {steps} steps")
    sides = [pair[0] for pair in texts.PROVERBS] + [pair[1] for pair in texts.PROVERBS]
    tokens = model.tokenize(encoders.tokenizer, sides, device)
    losses: tuple[list[float], list[float]] = ([], [])
    found: tuple[list[int], list[int]] = ([], [])
    # Plain SGD: an adaptive optimizer divides by the size of the gradients, and so would hide that they are wrong.
    optimizers = [torch.optim.SGD(bert.parameters(), lr=LEARNING_RATE) for bert in encoders[:2]]

    def step(side: int) -> None:
        loss, hits = contrastive_loss(encoders[side], tokens, pairs)
        optimizers[side].zero_grad()
        loss.backward()
        optimizers[side].step()
        losses[side].append(loss.item())
        found[side].append(hits)

    times = take_turns((lambda: step(0), lambda: step(1)), steps - 1, device, "training")
    for line in chart(*losses, NAMES):
        write("  " + line)
    write(f"  Proverbs that find their meaning: {found[1][0]} of {pairs} before, {found[1][-1]} after.")
    write(f"  Median step: {NAMES[0]} {duration(times[0].median)}, {NAMES[1]} {duration(times[1].median)}.")
    difference = largest_difference(losses)
    passed = difference <= MAX_LOSS_DIFFERENCE  # a NaN fails
    largest = f"largest relative difference of the losses {difference:.1e}"
    verdict(passed, f"{largest} (allowed: {MAX_LOSS_DIFFERENCE})")
    plot_losses([("Fine-tuning MiniLM", "contrastive loss", losses)], plot)
    return passed


def run(device: str, steps: int, plot: str) -> int:
    """All parts in order; 0 if both encoders agree."""
    start = time.perf_counter()
    torch.manual_seed(0)
    write(styled("normact: a pretrained sentence encoder on fused kernels", "bold"))
    write(f"  {place(device)}")
    encoders = model.load(device)
    weights = sum(weight.numel() for weight in encoders.original.parameters())
    write(
        f"  all-MiniLM-L6-v2, {weights / 1e6:.1f} million weights, fp32; {encoders.norms} norms and "
        f"{len(encoders.fused.encoder.layer)} GELUs replaced"
    )
    agrees = show_agreement(encoders, device)
    show_search(encoders, device)
    show_time(encoders, device)
    learns = show_training(encoders, device, steps, plot)
    heading(f"{'Done' if agrees and learns else 'The encoders do not agree'} in {time.perf_counter() - start:.0f} s.")
    return 0 if agrees and learns else 1
