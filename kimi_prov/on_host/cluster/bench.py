"""`cluster bench JOB|newest -- ARGUMENT...`: vLLM's own client against the server that answers."""

from __future__ import annotations

import os
import subprocess
import tempfile

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.cluster import endpoint
from kimi_prov.on_host.cluster.site import Site

_MODULE = "vllm.entrypoints.cli.main"


def main(argv: list[str]) -> int:
    """Run `vllm bench serve` with the endpoint's address, certificate and key."""
    wanted, rest = (argv[0], argv[1:]) if argv and argv[0] != "--" else (endpoint.NEWEST, argv)
    site = Site.from_environment()
    site.require_environment()
    found, key = endpoint.find_with_key(site, wanted)
    results = site.locate("results")
    os.makedirs(results, mode=0o755, exist_ok=True)
    model = site.replace_root(site.plan["model"]["serve_dir"])
    line = [site.engine_python, "-I", "-m", _MODULE, "bench", "serve"]
    line += ["--base-url", str(found["url"]).removesuffix("/v1"), "--model", model]
    line += ["--served-model-name", site.model(), *[word for word in rest if word != "--"]]
    line += ["--save-result", "--result-dir", results]
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as bundle:
        bundle.write(str(found["certificate"]))
        bundle.flush()
        # The key is in the environment of this process's own child, and in no argument.
        environment = {
            **site.build_engine_environment(),
            "OPENAI_API_KEY": key,
            "SSL_CERT_FILE": bundle.name,
        }
        done = subprocess.run(line, check=False, env=environment)
    if done.returncode != 0:
        raise HostError(
            f"vllm bench serve ended with status {done.returncode}; its lines above say why",
            "correct the arguments in jobs/bench.sbatch",
        )
    print(f"results are in {results}", flush=True)
    return 0
