"""Benchmark of solving a linear map of the residual stream."""

import time

from bench import Row, difference, request_round

# Ridge of ghosted layers. The peer that solves least squares by QR uses no ridge.
RIDGE = 1e-6
# Tolerance relative to the map's largest entry. It is above the effect of the ridge, and far below the resolution of f32
# operators.
SOLUTION = 1e-6


def solve(bench):
    import numpy
    import torch
    from safetensors.torch import save_file

    channels = bench.size(4096, 256)
    rows = 2 * channels
    torch.manual_seed(0)
    # Channels are correlated and have different scales, like in a residual stream. The layers add a tenth to them.
    mixing, noise = torch.randn(channels, channels) / channels**0.5, torch.randn(rows, channels)
    pre = (torch.randn(rows, channels) @ mixing + 0.1 * noise) * torch.logspace(0, 2, channels)
    post = pre + 0.1 * pre @ mixing.T + 0.1 * torch.randn(rows, channels)
    folder = bench.create_folder("solve")
    file, solution = folder / "system.safetensors", folder / "solution"
    save_file({"pre": pre.contiguous(), "post": post.contiguous()}, str(file))
    driver = bench.start_driver("solve", file, solution)
    request_round(driver)

    def ours():
        seconds = request_round(driver)["seconds"]
        return seconds, torch.from_numpy(numpy.fromfile(solution).reshape(channels, channels))

    def cholesky():
        started = time.perf_counter()
        x = pre.double()
        delta = post.double() - x
        gram = x.T @ x
        gram.diagonal().add_(RIDGE)
        found = torch.cholesky_solve(x.T @ delta, torch.linalg.cholesky(gram))
        return time.perf_counter() - started, found

    def least_squares():
        started = time.perf_counter()
        x = pre.double()
        found = torch.linalg.lstsq(x, post.double() - x, driver="gels").solution
        return time.perf_counter() - started, found

    (mine, *others), (map_of_ours, *maps) = bench.run_rounds(ours, cholesky, least_squares)
    driver.communicate()
    what = f"least-squares map of {channels:,} channels from {rows:,} rows, f64"
    for peer, seconds, found in zip(("torch, Cholesky", "torch, lstsq by QR"), others, maps):
        apart = (map_of_ours - found).abs().max().item() / found.abs().max().item()
        difference(f"the map against {peer}", [apart], [0.0], SOLUTION)
        yield Row("solve", what, peer, mine, seconds, f"map {apart:.0e} ({SOLUTION:.0e})")
