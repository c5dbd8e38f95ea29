from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.optim import Optimizer


class Yogi(Optimizer):
    """The server's optimizer of FedYogi: rates for each parameter that fall slowly when changes become small.

    Rule of a step, for each parameter; g is the pseudo-gradient ``w - sum_i weight_i * w_i``:

        m = beta_1 * m + (1 - beta_1) * g
        v = v - (1 - beta_2) * g^2 * sign(v - g^2)
        w = w - lr * m / (sqrt(v) + tau)

    m begins at 0 and v at tau^2; there is no bias correction.

    Paper: Reddi et al., Adaptive Federated Optimization, ICLR 2021, arXiv:2003.00295, Algorithm 2.

    Args:
        params: Parameters to update.
        lr: Learning rate, the paper's eta.
        betas: Factors of m and v.
        tau: How much less than fully adaptive the rates are.

    Raises:
        ValueError: If a number is out of range.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float = 0.01,
        betas: tuple[float, float] = (0.9, 0.99),
        tau: float = 1e-3,
    ) -> None:
        if not (lr >= 0 and all(0 <= beta < 1 for beta in betas) and tau > 0):
            allowed = "lr of 0 or more, betas from 0 to below 1, tau above 0"
            raise ValueError(f"lr {lr}, betas {betas}, tau {tau}; allowed: {allowed}")
        super().__init__(params, {"lr": lr, "betas": betas, "tau": tau})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update each parameter that has a gradient."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            beta_1, beta_2 = group["betas"]
            tau = group["tau"]
            for parameter in group["params"]:
                if (grad := parameter.grad) is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["mean"] = torch.zeros_like(grad)
                    state["square"] = torch.full_like(grad, tau**2)
                square = grad.square()
                state["mean"].lerp_(grad, 1 - beta_1)
                state["square"].addcmul_(square, (state["square"] - square).sign(), value=beta_2 - 1)
                parameter.addcdiv_(state["mean"], state["square"].sqrt() + tau, value=-group["lr"])
        return loss
