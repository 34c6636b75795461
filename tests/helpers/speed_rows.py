"""A measured row as speeds.yaml has it, for tests that need some: eight GPUs, one request."""

GPU = {
    "model": "Kimi-K2.5",
    "quant": "INT4",
    "engine": "vllm",
    "cpu": "-",
    "gpus": "8x H200",
    "concurrency": 1,
    "context": "1000/500",
    "decode_tok_s_per_request": 80.0,
    "measured": True,
}
