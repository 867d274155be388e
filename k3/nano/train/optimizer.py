"""Muon for matrices, AdamW for all else, over parameters that lie in one buffer.

Muon's step is the orthogonal matrix next to the momentum (five Newton-Schulz steps), scaled so that its
entries are as large as AdamW's. Matrices of one shape lie together and are stepped as one batch.
"""
import torch

BETAS, EPS = (0.9, 0.95), 1e-8
MOMENTUM = 0.95
WEIGHT_DECAY = 0.05
CLIP = 1.0
ALIGN = 32  # elements
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
# Tables, single rows and the router: no map from activations to activations.
ADAM_ENDS = ("embed_tokens/weight", "lm_head/weight", "res_proj/weight", "/gate/weight", "/b_proj/weight")


def by_muon(name, p):
    return p.dim() >= 2 and not name.endswith(ADAM_ENDS) and "conv1d" not in name


def orthogonal(x):
    """The orthogonal factor of each matrix of a batch, roughly."""
    a, b, c = NEWTON_SCHULZ
    tall = x.shape[-2] > x.shape[-1]
    x = x.to(torch.bfloat16 if x.is_cuda else x.dtype)
    x = x.mT if tall else x
    x = x / (x.float().square().sum((-2, -1), keepdim=True).sqrt() + 1e-7).to(x.dtype)
    for _ in range(5):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return (x.mT if tall else x).float()


class Optimizer:
    """Takes the parameters over: afterwards they and their gradients are views of `values` and `grads`.
    `state` lists all that a run needs to go on."""

    def __init__(self, parameters, rate, muon_rate):
        learned = {n: p for n, p in parameters.items() if p.requires_grad}
        device = next(iter(learned.values())).device
        groups = {}
        for name, p in learned.items():
            if by_muon(name, p):
                groups.setdefault(tuple(p.shape[-2:]), []).append(p)
        others = [p for n, p in learned.items() if not by_muon(n, p)]
        size = sum(-(-p.numel() // ALIGN) * ALIGN for p in learned.values())
        self.values, self.grads = (torch.zeros(size, device=device) for _ in range(2))
        at = 0
        self.groups = []  # (matrices [n, rows, columns], first, last)
        for shape, members in groups.items():
            first = at
            for p in members:
                at = self.move(p, at)
            self.groups.append(((-1, *shape), first, at))
        self.split = at
        for p in others:
            at = self.move(p, at)
        # In bf16, so that a run's state is small to carry.
        self.momentum = torch.zeros(self.split, device=device, dtype=torch.bfloat16)
        self.mean = torch.zeros(at - self.split, device=device)
        self.square = torch.zeros(at - self.split, device=device)
        decays = torch.zeros_like(self.square)
        for p in others:
            if p.dim() >= 2:
                first = p.storage_offset() - self.split
                decays[first:first + p.numel()] = WEIGHT_DECAY
        self.decays, self.rate, self.muon_rate = decays, rate, muon_rate
        # Of this step: share of the rate, and AdamW's corrections.
        self.now = torch.zeros(3, device=device)
        self.norm = torch.zeros((), device=device)

    def move(self, p, at):
        if at % ALIGN:
            raise ValueError(f"a parameter begins at element {at}")
        for attribute, buffer in (("data", self.values), ("grad", self.grads)):
            view = buffer[at:at + p.numel()].view(p.shape)
            if attribute == "data":
                view.copy_(p.data)
            setattr(p, attribute, view)
        return at + -(-p.numel() // ALIGN) * ALIGN

    @property
    def state(self):
        return {"values": self.values, "momentum": self.momentum, "mean": self.mean, "square": self.square}

    def prepare(self, step, share):
        """What the next `update` needs to know of its step."""
        corrections = [1 / (1 - beta ** (step + 1)) for beta in BETAS]
        numbers = torch.tensor([share, *corrections])
        if self.now.is_cuda:  # else the copy waits for all that runs
            numbers = numbers.pin_memory()
        self.now.copy_(numbers, non_blocking=True)

    @torch.no_grad()
    def update(self):
        """One step from the gradients, which it clears. Reads no number on the host."""
        share, first_correction, second_correction = self.now
        self.norm.copy_(self.grads.square().sum().sqrt())
        self.grads.mul_((CLIP / (self.norm + 1e-6)).clamp(max=1.0))
        split = self.split
        matrices = self.grads[:split]
        momentum = self.momentum.float().lerp(matrices, 1 - MOMENTUM)
        self.momentum.copy_(momentum)
        ahead = matrices.lerp(momentum, MOMENTUM)
        self.values[:split].mul_(1 - share * (self.muon_rate * WEIGHT_DECAY))
        for shape, begin, end in self.groups:
            step = orthogonal(ahead[begin:end].view(shape))
            scale = 0.2 * max(shape[1:]) ** 0.5 * self.muon_rate
            self.values[begin:end].sub_(step.reshape(-1) * (share * scale))
        grad = self.grads[split:]
        self.mean.lerp_(grad, 1 - BETAS[0])
        self.square.lerp_(grad.square(), 1 - BETAS[1])
        step = (self.mean * first_correction) / ((self.square * second_correction).sqrt() + EPS)
        rest = self.values[split:]
        rest.sub_((step + self.decays * rest) * (share * self.rate))
        self.grads.zero_()
