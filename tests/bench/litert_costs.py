"""What a call costs beside the kernels at E2B's cache sizes: `python tests/bench/litert_costs.py`.

Caches have E2B's layout: 12 local layers of 1,024 slots and 3 full ones. A step writes one row to each of the 30 tensors;
its cost must not grow with their slots. Times are the fastest of many calls, since noise only adds.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
import tiny

from paceline.backends.litert.backend import LiteRtBackend
from paceline.backends.litert.calls import CacheViews
from paceline.backends.litert.model import CompiledModel, Environment, TensorBuffer
from paceline.bundle import Bundle
from paceline.kv_cache import KVCache, aligned_zeros
from paceline.signatures import VERIFY, CacheKind, CacheSpec, Port
from paceline_export.bundle import export
from paceline_export.lower.flatbuffer import Builtin, Subgraph, TfliteFile
from paceline_export.recipes import F32

CALLS = 2000
WINDOW = 833  # local caches of 1,024 slots
E2B_CACHES = [CacheSpec(i, CacheKind.FULL if i % 5 == 4 else CacheKind.LOCAL, 1, 512 if i % 5 == 4 else 256) for i in range(15)]
E2B_LAYOUT = {
    "layer_types": (4 * [tiny.LOCAL] + [tiny.FULL]) * 7,
    "num_hidden_layers": 35,
    "num_kv_shared_layers": 20,
    "head_dim": 256,
    "global_head_dim": 512,
    "num_attention_heads": 1,
    "sliding_window": WINDOW,
}


def fastest_ms(call: Callable[[], object]) -> float:
    times = []
    for _ in range(CALLS):
        start = perf_counter()
        call()
        times.append(perf_counter() - start)
    return 1000 * min(times)


def cache_step_ms(folder: Path, slots: int) -> float:
    """One call of a graph that only writes a row to every KV tensor."""
    file = TfliteFile()
    graph = Subgraph(file, "step")
    position = graph.input(Port("start", "int32", (4,)))
    for spec in E2B_CACHES:
        size = slots if spec.kind is CacheKind.FULL else 1024
        row = graph.input(Port(f"row_{spec.layer}", "float32", (1, 1, 1, spec.head_dim)))
        for name in (spec.key, spec.value):
            port = Port(name, "float32", (1, 1, size, spec.head_dim))
            cached = graph.input(port)
            written = graph.tensor(cached.shape)
            graph.operator(Builtin.DYNAMIC_UPDATE_SLICE, [cached, row, position], [written])
            graph.output(port, written)
    graph.finish()
    path = folder / f"step_{slots}.tflite"
    file.save(path, lambda *_: None)
    environment = Environment()
    call = CompiledModel(environment, path, threads=2).bind("step")
    buffers = CacheViews(environment, KVCache(E2B_CACHES, WINDOW, slots)).at(slots)
    for tensor in call.info.inputs:
        if tensor.name not in buffers:
            buffers[tensor.name] = TensorBuffer(environment, aligned_zeros(tensor.shape, tensor.dtype))
    call.set_buffers(buffers)
    return fastest_ms(call.run)


def binding_ms(bundle: Path, rows: int) -> float:
    """What our own code adds to a verify call at 4,000 rows of context: masks, positions, tokens."""
    backend = LiteRtBackend(Bundle.open(bundle), threads=2, weight_cache=False)
    cache = KVCache(backend.manifest.caches, backend.manifest.window, 4096)
    graphs = backend.bind(cache)
    cache.make_room(16)
    cache.length, cache.local_start = 4000, 3136
    graphs.verify(np.zeros(rows, np.int64), ())
    call = graphs._call(rows)
    call.call.run = lambda: None  # type: ignore[method-assign]
    tokens = np.zeros(rows, np.int64)
    return fastest_ms(lambda: graphs.verify(tokens, ()))


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    for slots in (512, 4096, 32768):
        print(f"cache step, 12 local x 1024, 3 full x {slots:6}: {cache_step_ms(folder, slots):.3f} ms")
    export(*tiny.write_pair(folder, **E2B_LAYOUT), folder / "bundle", lambda *_: None, recipe=F32)
    for rows in VERIFY:
        print(f"our own code in a call of {rows} rows: {binding_ms(folder / 'bundle', rows):.3f} ms")


if __name__ == "__main__":
    main()
