"""What runs in a pod of a Kubernetes cluster: weights, server, probes and acceptance checks.

Decides: what runs in a pod.
Held by: tests/component/on_host/pod/test_pod_commands.py,
  tests/unit/on_host/pod/test_pod_limits.py, tests/component/on_host/pod/test_pod_machine.py,
  tests/component/on_host/pod/test_pod.py.
"""
