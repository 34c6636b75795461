"""What runs in a pod of a Kubernetes cluster: weights, server, probes and acceptance checks."""
