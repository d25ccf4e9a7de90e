import json, os, statistics, sys, time, torch
sys.path.insert(0, os.path.dirname(__file__))
import few
import forge_week0_transpose as w0
t0 = time.time()
ARCH = "sm_90a"
INT = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
def args_of(x, y, config):
    *b, m, n = x.shape; s = x.element_size()
    lines, length = (m, n) if config.gather else (n, m)
    pitch = x.stride(-2) if config.gather else y.stride(-2)
    shift = (config.tile_bytes // (lines * s)).bit_length() - 1
    batch = [1]
    for d in range(len(b)):
        batch[0] *= b[d]
    flat = (batch[0], *[v for d in reversed(range(len(b))) for v in (b[d], x.stride(d), y.stride(d))])
    return (x.data_ptr(), y.data_ptr(), lines, length, pitch, shift, flat, torch.cuda.current_stream().cuda_stream)
def call(x, y, **k):
    lines_rows = x.shape[-2] <= x.shape[-1]
    c = few.FewConfig(x.element_size(), lines_rows, x.dim() - 2, **k)
    f = few.build(c, arch=ARCH); a = args_of(x, y, c)
    return lambda: f.launch(*a) if hasattr(f, "launch") else f(*a)
bad = []; count = 0
def exact(shape, size, offset=0, out_offset=0):
    global count; count += 1
    g = torch.randint(0, 256, (max(1, int(torch.tensor(shape).prod())) * size + size * offset,), dtype=torch.uint8, device="cuda")
    x = g[size * offset:].view(INT[size]).view(shape)
    n = x.numel(); ys = torch.zeros(n + 40, dtype=INT[size], device="cuda")
    y = ys[16 + out_offset: 16 + out_offset + n].view(*shape[:-2], shape[-1], shape[-2])
    call(x, y, tile_bytes=tile)()
    want = x.transpose(-1, -2).contiguous()
    if not torch.equal(y.view(torch.uint8), want.view(torch.uint8)) or int((ys[:16 + out_offset] != 0).sum()) or int((ys[16 + out_offset + n:] != 0).sum()):
        bad.append((shape, size, offset, out_offset))
for tile in (2048, 16384):
  for size in (1, 2, 4, 8, 16):
    for lines in (2, 3, 4, 7, 8, 16, 27, 31, 32, 33, 63, 64):
        for length in (64, 97, 1000, 4099, 20001):
            if length >= lines:
                for off in ((0, 0), (1, 0), (0, 3), (3, 1)):
                    exact((lines, length), size, *off); exact((length, lines), size, *off)
    for shape in ((3, 5, 2001), (2, 4, 2001, 7), (5, 999, 33), (3, 2, 62, 130)):
        exact(shape, size); exact(shape, size, 1, 1)
torch.cuda.synchronize()
print("wrong", len(bad), "of", count, bad[:8], round(time.time() - t0, 1), flush=True)
TILES = (8192, 16384, 32768)
def t(fns, n=11):
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda"); out = {k: [] for k in fns}
    for f in fns.values(): f()
    for i in range(n):
        for k, f in fns.items():
            flush.zero_(); a, b = (torch.cuda.Event(enable_timing=True) for _ in "ab")
            torch.cuda._sleep(100000); a.record(); f(); b.record(); out[k].append((a, b))
    torch.cuda.synchronize()
    return {k: round(statistics.median(a.elapsed_time(b) * 1000 for a, b in v), 1) for k, v in out.items()}
res = {}
for shape in ((3, 16777216), (16777216, 3), (8, 4194304), (4194304, 8), (2, 16777217), (27, 262144), (262144, 27), (11, 136896), (22, 96582), (64, 1048576), (1048576, 64), (48, 349525), (349525, 48), (10684, 8), (5, 6760), (16, 20, 100001), (16, 1048576), (1048576, 16), (24, 699050), (32, 524288), (524288, 32), (12, 1398101), (3, 100000), (8, 20000), (33, 40000), (3, 12582912 + 16)):
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        x = (torch.randn(shape, device="cuda") * 50).to(dtype); y = torch.empty(*shape[:-2], shape[-1], shape[-2], device="cuda", dtype=dtype)
        fns = {"copy": lambda: y.view(shape).copy_(x), "eager": lambda: y.copy_(x.mT), "auto": lambda: w0.transpose(x)}
        for v in ("lines", "skinny", "vectorized", "shifted"):
            try: w0.transpose.explain(x, variant=v)
            except Exception: continue
            fns[v] = lambda v=v: w0.transpose(x, variant=v)
        for k in TILES if x.nbytes > 4 << 20 else (2048, 4096, 8192, 16384):
            fns[f"few{k}"] = call(x, y, tile_bytes=k)
        r = t(fns); r["v"] = w0.transpose.explain(x).variant
        res[f"{shape} {dtype}"] = r; print(shape, str(dtype)[6:], r, flush=True)
json.dump(res, open(os.environ["OUT"] + "/few.json", "w"), indent=0)
print(round(time.time() - t0, 1))
