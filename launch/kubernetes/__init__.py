"""Workers on Kubernetes: the manifests of a run."""
