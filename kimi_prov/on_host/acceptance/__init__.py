"""What `verify --suite full` asks a served model, and how the answers are judged."""
