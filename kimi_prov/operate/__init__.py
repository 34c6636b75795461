"""What is done with a model that is served where others provision: a Kubernetes cluster."""
