"""What is done with a served model from here: diagnosis, backups, Kubernetes clusters."""
