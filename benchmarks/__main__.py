"""Run every benchmark: ``python -m benchmarks``."""

from benchmarks import optimiser_step, solve_loop, unrolling

if __name__ == "__main__":
    solve_loop.main()
    unrolling.main()
    optimiser_step.main()
