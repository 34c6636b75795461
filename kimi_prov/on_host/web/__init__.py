"""The web UI to chat with the model, and the data of its accounts."""
