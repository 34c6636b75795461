"""A plan becomes objects of a Kubernetes cluster: pods without root, behind a Service."""
