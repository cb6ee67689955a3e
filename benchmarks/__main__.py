"""Run every benchmark: ``python -m benchmarks``."""

from benchmarks import solve_loop, unrolling

if __name__ == "__main__":
    solve_loop.main()
    unrolling.main()
