"""Step sizes of optimisers."""

from mirrordescent.schedules import Schedule


class LearningRate(Schedule):
    """t(k) = lr·s(k), where the optimiser sets lr before every step.

    Args:
        schedule: s.
    """

    def __init__(self, schedule: Schedule) -> None:
        super().__init__()
        self.schedule = schedule
        self.lr = 1.0

    def __call__(self, k: int) -> float:
        # Without the hooks of nn.Module, which take longer than the product.
        return self.lr * float(self.schedule(k))
