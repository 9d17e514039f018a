"""What is right and what to feed: PyTorch's own scaler on the CPU, and gradients of all sizes."""

import torch


def parameters(shapes, seed=0):
    """Parameters drawn from N(0, 1), without gradients."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def give(parameters, gradients):
    """Set gradients as a backward pass would leave them."""
    for one, grad in zip(parameters, gradients, strict=True):
        one.grad = None if grad is None else grad.clone()


def library_scales(outcomes, **settings):
    """The scale after each update as PyTorch has it; `outcomes` says whether all was finite."""
    names = {"init": "init_scale", "growth": "growth_factor"}
    names |= {"backoff": "backoff_factor", "interval": "growth_interval"}
    scaler = torch.amp.GradScaler(
        device="cpu", **{names[name]: value for name, value in settings.items()}
    )
    (weight,) = parameters([(1,)])
    optimizer = torch.optim.SGD([weight], lr=0.0)
    scales = []
    for finite in outcomes:
        scaler.scale(weight.sum())
        weight.grad = torch.tensor([1.0 if finite else float("inf")])
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales


def small_gradients(seed, size=20_000):
    """Gradients of either sign; the exponents of their sizes lie evenly between -30 and -10."""
    generator = torch.Generator().manual_seed(seed)
    exponents = -30 + 20 * torch.rand(size, generator=generator, dtype=torch.float64)
    signs = torch.randint(0, 2, (size,), generator=generator) * 2 - 1
    return (signs * 2.0**exponents).float()
