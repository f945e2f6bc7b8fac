from collections.abc import Sequence

VERSION: str
BUFFERS: tuple[str, ...]

class Problem:
    direction: int
    batch: int
    heads_q: int
    heads_kv: int
    seq_q: int
    seq_kv: int
    head_dim: int
    head_dim_v: int
    scale: float
    mask: int
    align: int
    gradients: int
    window_left: int
    window_right: int
    flags: int
    normalizer: int
    entmax_alpha: float
    softcap: float
    dropout: float
    alibi: int
    sink: int
    dist_window: int
    bias_batch: int
    bias_heads: int
    bias_rows: int
    keep_batch: int
    keep_heads: int
    keep_rows: int
    spans: int
    spans_batch: int
    spans_heads: int
    block_q: int
    block_kv: int
    block_width: int
    block_bits: int
    block_batch: int
    block_heads: int
    slopes_batch: int
    sinks_batch: int
    bias_table_size: int
    d_lse: int
    max_logit_batch: int
    workspace_limit: int
    parts: int
    part_stride: int
    d_part_stride: int
    merge_into: int
    bias_index_batch: int
    bias_index_dtype: int
    lengths_q: int
    lengths_kv: int
    total_q: int
    total_kv: int
    def __init__(self) -> None: ...
    @staticmethod
    def parse(line: str) -> Problem: ...
    def set_tensor(self, name: str, dtype: int, strides: Sequence[int]) -> None: ...
    def contiguous(self, dtype: int) -> None: ...

class View:
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device_type: int
    device_id: int
    def __init__(self, array: object) -> None: ...

class Device:
    name: str
    backend: str
    human: str
    driver: str
    on_host: bool
    buffer_bytes: int
    def __init__(self, name: str, disable: str = "", threads: int = 0) -> None: ...
    def release_buffers(self) -> None: ...
    def describe(self) -> str: ...
    def explain(self, problem: Problem) -> str: ...

class Plan:
    workspace_size: int
    workspace_alignment: int
    flops: float
    estimated_ms: float
    tile_rows: int
    tile_cols: int
    backend: str
    path: str
    name: str
    unordered: int
    kernels: list[str]
    def __init__(self, device: Device, problem: Problem) -> None: ...
    def execute(
        self,
        stream: int,
        addresses: tuple[int, ...],
        workspace_size: int,
        seed: int,
        offset: int,
    ) -> None: ...
    def execute_staged(
        self, buffers: tuple[tuple[int, int, bool, bool] | None, ...], seed: int, offset: int
    ) -> None: ...

def shared_device(name: str) -> Device: ...
def abandon_devices() -> None: ...
def torch_connect(folder: str, space: str) -> str: ...
def torch_override() -> str: ...
def torch_missed() -> bytes: ...
def torch_remember(
    key: bytes, plan: Plan, outputs: Sequence[tuple[str, tuple[int, ...], tuple[int, ...]]]
) -> int: ...
def torch_forget(captured: bool = False) -> None: ...
def torch_abandon() -> None: ...
def torch_calls() -> tuple[int, int, int]: ...
def jax_handlers() -> dict[str, object]: ...
def list_devices() -> list[tuple[str, str, str, bool]]: ...
